"""A simulation as an object: a workload, a policy, a backfill rule and a placer; run it, or step through it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from slurm_rl.backfill.catalogue import RULES, make_tables
from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.decide import in_order, not_held, renew_fairshare
from slurm_rl.domain.snapshot import Snapshot
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import EVENT, NEVER, TURN, Array
from slurm_rl.kernel.build import Workload
from slurm_rl.kernel.jit import kernel
from slurm_rl.kernel.linking import link_kernels
from slurm_rl.kernel.links import link
from slurm_rl.kernel.tables import World, enough_rows, fill_views
from slurm_rl.kernel.world import new_world
from slurm_rl.place.catalogue import PLACEMENTS
from slurm_rl.place.counting import BY_LEVELS, BY_RUNS, ONE_BY_ONE, find_index, make_levels, make_runs, without_index
from slurm_rl.place.outside import find_placement
from slurm_rl.place.plan import Planner
from slurm_rl.policy.catalogue import POLICIES
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT
from slurm_rl.policy.meta import meta_tables
from slurm_rl.policy.multifactor import RAW_PARTITION
from slurm_rl.policy.outside_calls import OutsideCalls
from slurm_rl.policy.registry import PolicySpec, booked, network_tables, settings_for
from slurm_rl_sim import state as st
from slurm_rl_sim.alike import LONG, compares_groups, group_waiting, make_groups, may_group_later
from slurm_rl_sim.best import sorts_as_it_looks
from slurm_rl_sim.engine import BEFORE_PASS, DONE, GROW, advance, warm_start
from slurm_rl_sim.outside import score_from_outside
from slurm_rl_sim.renewed import keep_sorted, keeps_sorted
from slurm_rl_sim.reservations import boundaries, reserved_first
from slurm_rl_sim.site_priority import partition_tables, static_points
from slurm_rl_sim.ticks import cycles


@dataclass(frozen=True, slots=True)
class NodeEvents:
    """Nodes that go down (up = 0) or come back (up = 1), by their number in the cluster file."""

    time: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    node: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    up: Array = field(default_factory=lambda: np.zeros(0, np.int8))


@kernel
def _read_cycles() -> int:
    return cycles()


def check_deferral(backfill: str, placement: str) -> None:
    """Refuses rules that do not defer a job: those that book nodes ahead would start it all the same."""
    if not PLACEMENTS[placement].planned:
        planned = " or ".join(row.name for row in PLACEMENTS if row.planned)
        raise InputError(f"needs --placement {planned}", field="--defer")
    if RULES[backfill].books_many:
        others = ", ".join(row.name for row in RULES if not row.books_many)
        problem = f"not with backfill {backfill}, which books nodes ahead"
        raise InputError(problem, field="--defer", remedy=f"use --backfill {others}")


class ReplayState:
    """Holds all arrays of one replay; `run` to the end, or go from pass to pass with `to_next_pass`."""

    def __init__(
        self,
        workload: Workload,
        run_time: Array,
        policy: PolicySpec,
        *,
        backfill: str = "easy",
        placement: str = "first-fit",
        influence: float = 1.0,
        preempt: bool = False,
        events: NodeEvents | None = None,
        weights: dict[str, float] | None = None,
        planner: Planner | None = None,
        slurm: SlurmSettings | None = None,
        index: str | None = None,  # how nodes are looked up (place/counting.py); None: as it pays
    ) -> None:
        self.rule, self.placement = RULES[backfill], PLACEMENTS[find_placement(placement)]
        if preempt and not policy.row.may_preempt:
            able = " or ".join(row.name for row in POLICIES if row.may_preempt)
            raise InputError(f"preemption needs the policy {able}", field="--preempt")
        if preempt and "quotas" in workload.site:
            raise InputError("not together with limits", field="--preempt", remedy="leave out --preempt or --limits")
        if preempt and "kept" in workload.site:
            raise InputError("not together with reservations", field="--preempt", remedy="leave out one of them")
        learns_memory = "gpu_mem" in workload.site
        if learns_memory and self.rule.name == "slurm":
            raise InputError("not with --backfill slurm: Slurm knows nothing of it", field="--gpu-memory learned")
        if not 0.0 <= influence <= 1.0:
            raise InputError(f"must be between 0 and 1, got {influence:g}", field="--influence")
        if planner is not None and planner.settings.deferral is not None:
            check_deferral(backfill, placement)
        if self.rule.books_many:
            policy = booked(policy)
        self.workload, self.policy = workload, policy
        self.planner = (planner or Planner()) if self.placement.planned else None
        self.calls = OutsideCalls(policy.outside) if policy.outside is not None else None
        own: dict[str, Array] = {}
        if slurm is not None:
            raw = RAW_PARTITION in slurm.priority_flags
            own |= partition_tables(workload, slurm.partitions, raw=raw)
            if weights is None and slurm.has_weights:
                own["points"] = static_points(workload, slurm)
            weights = weights or slurm.own_weights
        own |= workload.site
        own |= reserved_first(own)
        if learns_memory:
            own["jobs"] = workload.jobs  # a copy is made, as of all of these
        settings = settings_for(policy, influence=influence, preempt=preempt, weights=weights)
        settings |= slurm.priority if slurm is not None else {}
        settings |= self.rule.told(slurm) | self.placement.settings
        settings["fixed_order"] = settings["fixed_order"] and "tiers" not in own
        may = not preempt and not {"kept", "gpu_mem"} & own.keys() and not settings.get("least_loaded")
        self.index = find_index(workload, backfill, self.placement.name, index) if may else ONE_BY_ONE
        settings["by_runs"] = self.index == BY_RUNS
        self.world = self._make_world(settings, run_time, events or NodeEvents(), own)
        self.cycles_per_second = 0.0

    def _make_world(
        self, settings: dict[str, float], run_time: Array, events: NodeEvents, own: dict[str, Array]
    ) -> World:
        wl = self.workload
        world = new_world(
            wl,
            settings,
            now=int(wl.jobs["submit"][0]) if len(wl.jobs) else 0,
            bookings=self.rule.keeps_bookings,
            work=np.asarray(run_time, dtype=np.float64) * wl.reference_speed,
            events=self._events(events),
            **{name: table.copy() for name, table in own.items()},
            **network_tables(self.policy, len(wl.jobs)),
            **meta_tables(self.policy, len(wl.pools)),
        )
        world["live"]["state"][list(wl.rejected)] = st.REJECTED
        make_tables(world, self.rule)
        link_kernels(world, self.policy.row, self.placement, self.rule)
        if self.index == BY_RUNS:
            make_runs(world)
        elif self.index == BY_LEVELS:
            make_levels(world, self.rule.name)
        learned = len(world["gpu_mem"]) > 0  # a request may change while its job waits
        plain = self.planner is None and self.calls is None and not learned
        if plain and compares_groups(world):
            make_groups(world)
        elif plain and keeps_sorted(world):
            keep_sorted(world)
        elif plain and may_group_later(world):
            world["long_queue"] = LONG
        elif sorts_as_it_looks(world):
            link(world, "start_best")
        if settings["lane_share"]:
            link(world, "enter_lane")
        if settings["preempt"]:
            link(world, "preempt")
        if len(world["events"]):
            link(world, "node_events")
        if len(world["gpu_mem"]):
            link(world, "learn_memory")
        if self.rule.profile == "nodes":
            enough_rows(world, 512, on_nodes=True)
            fill_views(world)
        return world

    def _events(self, events: NodeEvents) -> Array:
        position = np.empty(len(self.workload.node_number), dtype=np.int64)
        position[self.workload.node_number] = np.arange(len(position))
        rows = np.zeros(len(events.time), dtype=EVENT)
        rows["time"], rows["node"], rows["up"] = events.time, position[events.node], events.up
        rows = np.concatenate([rows, boundaries(self.workload.site.get("kept"))])
        return rows[np.argsort(rows["time"], kind="stable")]

    def warm(self, job: Array, began: Array, now: int) -> None:
        """Puts jobs on the cluster that began before `now`; they must be able to run side by side."""
        job, began = np.asarray(job, dtype=np.int64), np.asarray(began, dtype=np.int64)
        misfits = warm_start(self.world.record, job, began, now)
        if misfits:
            raise InputError(f"{misfits} of {len(job)} running jobs do not fit beside the others")

    def _advance(self, until: int, pause: bool) -> int:
        while True:
            status = int(advance(self.world.record, until, pause))
            if status != GROW:
                return status
            if self.world["longest"] > self.world["long_queue"] and not len(self.world["alike"]):
                group_waiting(self.world, np.flatnonzero(self.world["live"]["state"] == st.QUEUED))
            else:
                self._more_rows()

    def _more_rows(self) -> None:
        """Doubles the rows of the profile and the log; nothing was scheduled since it was asked for."""
        if self.rule.profile == "nodes":
            enough_rows(self.world, 2 * len(self.world["rows"]), on_nodes=True)
        for name in ("log", "log_gpus", "log_more"):
            rows = self.world[name]
            self.world[name] = np.concatenate([rows, np.empty(len(rows), dtype=rows.dtype)])

    def tape(self, rows: int, turns: int, *, temperature: float = 0.0, seed: int = 0) -> None:
        """Records what a network sees and does, for training; above temperature 0 its orders are drawn, not sorted."""
        self.world["tape"] = np.empty((rows, JOB_COUNT + POOL_COUNT + 1), dtype=np.float32)
        self.world["turns"] = np.zeros(turns, dtype=TURN)
        self.world["taping"], self.world["temperature"] = 1, temperature
        self.world["dice"] = np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(seed * 2654435761 + 1)
        link(self.world, "record_turn")

    def run(self, until: int = int(NEVER) - 1) -> bool:
        """Simulates up to an instant, or to the end; whether the end was reached."""
        ticks, wall = _read_cycles(), time.perf_counter()
        done = self._pass_by_pass(until) if self.planner or self.calls else self._advance(until, pause=False) == DONE
        elapsed = time.perf_counter() - wall
        if elapsed > 1e-4:
            self.cycles_per_second = (_read_cycles() - ticks) / elapsed
        return done

    def _pass_by_pass(self, until: int) -> bool:
        """Goes from pass to pass, with scores from outside, or a plan, made before each."""
        while (status := self._advance(until, pause=True)) == BEFORE_PASS:
            self.finish_pass()
        return status == DONE

    def _plan(self, planner: Planner) -> None:
        """Tells the placer where jobs should go in the pass that is due."""
        renew_fairshare(self.world.record, self.now)
        queues = []
        pools = self.world["pools"]
        for pool in np.flatnonzero(pools["queue_last"] > pools["queue_first"]).tolist():
            queue = self.world["queue"][int(pools["queue_first"][pool]) : int(pools["queue_last"][pool])]
            if not self.world["fixed_order"]:
                queue = in_order(self.world.record, float(self.now), queue)
            queues.append((pool, not_held(self.world, queue)))
        planner.plan(self.world, queues)

    def to_next_pass(self) -> bool:
        """Applies events up to the next scheduling pass and stops before it; False at the end."""
        return self._advance(int(NEVER) - 1, pause=True) == BEFORE_PASS

    def finish_pass(self) -> None:
        """Makes the pass that `to_next_pass` stopped before, and stops before anything else happens."""
        if self.calls is not None:
            score_from_outside(self.world, self.calls, self.now)
        if self.planner:
            self._plan(self.planner)
        self._advance(self.now, pause=False)

    def snapshot(self) -> Snapshot:
        """What a scheduler may know at this moment: everything but the true run times."""
        world = self.world.copy()
        world["work"], world["gpu_mem"] = np.zeros(0), np.zeros((0, 2), dtype=np.int64)
        without_index(world)
        return Snapshot(self.now, world, np.flatnonzero(self.world["live"]["state"] == st.QUEUED))

    @property
    def now(self) -> int:
        return int(self.world["clock"])

    @property
    def pass_due(self) -> bool:
        """Whether the next thing to happen is a scheduling pass."""
        return bool(self.world["pass_due"])

    @property
    def ended(self) -> int:
        """How many jobs have ended so far."""
        return int(self.world["ended"])
