"""A simulation as an object: a workload, a policy, a backfill rule and a placer; run it, or step through it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from slurm_rl.backfill import BACKFILLS, CONSERVATIVE
from slurm_rl.decide import in_order, renew_fairshare
from slurm_rl.domain.arrays import (
    ACCOUNT,
    ENTRY,
    EVENT,
    FIRST_ROW,
    GPU_MILLI,
    GROUP,
    LIVE,
    LOG,
    NEVER,
    TURN,
    USER,
    Array,
    make_entries,
)
from slurm_rl.domain.build import Workload
from slurm_rl.domain.links import link
from slurm_rl.domain.snapshot import Snapshot
from slurm_rl.domain.tables import World, enough_rows, fill_views
from slurm_rl.errors import InputError, unknown_name
from slurm_rl.jit import kernel
from slurm_rl.linking import link_kernels
from slurm_rl.place.kernels import MIP, PLACERS
from slurm_rl.place.plan import Planner
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT
from slurm_rl.policy.heuristics import SRPT, STATIC_PRIORITY
from slurm_rl.policy.registry import PolicySpec, booked, network_tables, settings_for
from slurm_rl_sim import state as st
from slurm_rl_sim.engine import BEFORE_PASS, DONE, GROW, advance, warm_start
from slurm_rl_sim.ticks import cycles


@dataclass(frozen=True, slots=True)
class NodeEvents:
    """Nodes that go down (up = 0) or come back (up = 1), by their number in the cluster file."""

    time: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    node: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    up: Array = field(default_factory=lambda: np.zeros(0, np.int8))


_DEFERRABLE = "use --backfill easy, firstfit or none"


@kernel
def _read_cycles() -> int:
    return cycles()


def check_deferral(backfill: str, placement: str) -> None:
    """Refuses rules that do not leave a job for later: those that book nodes ahead would start it all the same."""
    if placement != "mip":
        raise InputError("needs --placement mip", field="--defer")
    if BACKFILLS[backfill] >= CONSERVATIVE:
        raise InputError(f"not with backfill {backfill}, which books nodes ahead", field="--defer", remedy=_DEFERRABLE)


class Simulation:
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
    ) -> None:
        if backfill not in BACKFILLS:
            raise unknown_name("backfill", backfill, BACKFILLS)
        if placement not in PLACERS:
            raise unknown_name("placement", placement, PLACERS)
        if preempt and policy.code not in (SRPT, STATIC_PRIORITY):
            raise InputError("preemption needs the policy srpt or static-priority", field="--preempt")
        if not 0.0 <= influence <= 1.0:
            raise InputError(f"must be between 0 and 1, got {influence:g}", field="--influence")
        if planner is not None and planner.settings.deferral is not None:
            check_deferral(backfill, placement)
        if BACKFILLS[backfill] >= CONSERVATIVE:
            policy = booked(policy)
        self.workload, self.policy = workload, policy
        self.planner = (planner or Planner()) if PLACERS[placement] == MIP else None
        settings = settings_for(
            policy,
            backfill=int(BACKFILLS[backfill]),
            placer=PLACERS[placement],
            influence=influence,
            preempt=preempt,
            weights=weights,
        )
        self.world = self._make_world(settings, run_time, events or NodeEvents())
        self.cycles_per_second = 0.0

    def _make_world(self, settings: dict[str, float], run_time: Array, events: NodeEvents) -> World:
        wl = self.workload
        jobs, nodes, pools = len(wl.jobs), len(wl.nodes), len(wl.pools)
        start = int(wl.jobs["submit"][0]) if jobs else 0
        width = self._width()
        asked = int(width[wl.jobs["request"]].sum())
        widest = int(width.max(initial=1))
        live = np.zeros(jobs, dtype=LIVE)
        live["start"] = live["end"] = live["booked_start"] = live["version"] = -1
        live["state"][list(wl.rejected)] = st.REJECTED
        users = np.zeros(len(wl.user_account), dtype=USER)
        users["account"], users["fairshare"], users["time"] = wl.user_account, 1.0, start
        accounts = np.zeros(wl.accounts, dtype=ACCOUNT)
        accounts["time"] = start
        scratch = 0 if settings["fixed_order"] and not self.planner else jobs
        entries = self._most_entries(asked) + (asked if settings["backfill"] == CONSERVATIVE else widest)
        world = World(
            jobs=wl.jobs,
            live=live,
            shapes=wl.shapes.copy(),  # passes note misfits in them
            nodes=wl.nodes.copy(),  # which are down
            kind_ptr=wl.kind_ptr,
            kind_node=wl.kind_node,
            class_ptr=wl.class_ptr,
            class_list=wl.class_list,
            speed=wl.speed,
            pools=wl.pools.copy(),
            free=np.zeros((FIRST_ROW, nodes, 3), dtype=np.int32),
            used=np.zeros((FIRST_ROW, nodes, wl.slots), dtype=np.int16),
            total=np.zeros((FIRST_ROW, pools, 3), dtype=np.int64),
            entries=make_entries(entries),
            spot=np.zeros(widest, dtype=ENTRY),
            running=np.empty(jobs, dtype=np.int64),
            amount=np.zeros((1, len(wl.cluster.classes), 3), dtype=np.int64),
            users=users,
            accounts=accounts,
            groups=np.zeros(wl.groups + 1, dtype=GROUP),
            partition_factor=np.zeros(max(len(wl.partition_names), 1)),
            qos_factor=np.zeros(int(wl.jobs["qos"].max(initial=0)) + 1),
            work=np.asarray(run_time, dtype=np.float64) * wl.reference_speed,
            heap=np.empty(jobs, dtype=np.int64),
            queue=np.empty(jobs, dtype=np.int64),
            scores=np.empty(scratch),
            order=np.empty(scratch, dtype=np.int64),
            scratch=np.empty(scratch, dtype=np.int64),
            started=np.empty(jobs, dtype=np.int64),
            **network_tables(self.policy, jobs),
            events=self._events(events),
            log=np.empty(asked + 1, dtype=LOG),
            prefer=wl.speed[wl.shapes["row"]],
            hint_of=np.zeros(jobs if settings["placer"] == MIP else 0, dtype=np.int64),
            latency=np.zeros(st.LATENCY_BUCKETS, dtype=np.int64),
        )
        for name, value in settings.items():
            world[name] = value
        link_kernels(world)
        if settings["preempt"]:
            link(world, "preempt")
        if len(world["events"]):
            link(world, "node_events")
        if self.planner:
            link(world, "order_queue")
        world["clock"], world["tick"], world["wake"] = start, NEVER, NEVER
        if settings["backfill"] >= CONSERVATIVE:
            enough_rows(world, 512, on_nodes=settings["backfill"] == CONSERVATIVE)
        fill_views(world)
        return world

    def _width(self) -> Array:
        """Entries that a placement of each shape can have at most: one a node, one a unit where GPUs are shared."""
        shapes = self.workload.shapes
        nodes = np.diff(self.workload.kind_ptr)[shapes["kind"]]
        width = np.where(shapes["share"] > 0, shapes["units"], np.minimum(shapes["units"], nodes))
        return np.maximum(width, 1).astype(np.int64)

    def _most_entries(self, asked: int) -> int:
        """Bound on entries held at a time: the units that the nodes can hold, or all that the trace asks for."""
        wl = self.workload
        least = int(wl.shapes["share"][wl.shapes["share"] > 0].min(initial=GPU_MILLI))
        room = np.minimum(wl.nodes["cpu"].astype(np.int64), 1 << 20) + wl.nodes["gpu"] * np.int64(GPU_MILLI // least)
        return min(asked, int(room.sum()))

    def _events(self, events: NodeEvents) -> Array:
        position = np.empty(len(self.workload.node_number), dtype=np.int64)
        position[self.workload.node_number] = np.arange(len(position))
        rows = np.zeros(len(events.time), dtype=EVENT)
        rows["time"], rows["node"], rows["up"] = events.time, position[events.node], events.up
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
            self._more_rows()

    def _more_rows(self) -> None:
        """Doubles the rows of the profile and the log; nothing was scheduled since it was asked for."""
        enough_rows(self.world, 2 * len(self.world["rows"]), on_nodes=self.world["backfill"] == CONSERVATIVE)
        log = self.world["log"]
        self.world["log"] = np.concatenate([log, np.empty(len(log), dtype=log.dtype)])

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
        done = self._planned(until) if self.planner else self._advance(until, pause=False) == DONE
        elapsed = time.perf_counter() - wall
        if elapsed > 1e-4:
            self.cycles_per_second = (_read_cycles() - ticks) / elapsed
        return done

    def _planned(self, until: int) -> bool:
        """Goes from pass to pass, with a plan made before each."""
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
            queues.append((pool, queue))
        planner.plan(self.world, queues)

    def to_next_pass(self) -> bool:
        """Applies events up to the next scheduling pass and stops before it; False at the end."""
        return self._advance(int(NEVER) - 1, pause=True) == BEFORE_PASS

    def finish_pass(self) -> None:
        """Makes the pass that `to_next_pass` stopped before, and stops before anything else happens."""
        if self.planner:
            self._plan(self.planner)
        self._advance(self.now, pause=False)

    def snapshot(self) -> Snapshot:
        """What a scheduler may know at this moment: everything but the true run times."""
        world = self.world.copy()
        world["work"] = np.zeros(0)
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
