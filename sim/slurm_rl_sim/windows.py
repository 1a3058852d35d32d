"""Windows of a part of a trace, each on a cluster that earlier jobs have filled, opened at a first choice."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import InputError, unknown_name
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.linking import link_slot
from slurm_rl.kernel.tables import World
from slurm_rl.place.catalogue import PLACEMENTS
from slurm_rl.place.outside import find_placement
from slurm_rl.policy.catalogue import BY_USER, GIVEN, POLICIES
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT
from slurm_rl.policy.registry import PolicySpec, parse_policy
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.contention import contended_begins
from slurm_rl_sim.given import trace_and_cluster
from slurm_rl_sim.metrics import METRICS, some_metrics
from slurm_rl_sim.picking import CHOICE, CRAMPED, ENDED, UNPLANNED, to_choice
from slurm_rl_sim.progress import Progress
from slurm_rl_sim.replay import Prepared, prepare
from slurm_rl_sim.result import result_of
from slurm_rl_sim.rewards import Payment
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.stretch import stretch

PARTS = ("train", "test")  # of a trace's time: the first, and what is left
EVERY_METRIC = tuple(m.name for m in METRICS)
_AGENT = PolicySpec("agent", GIVEN, BY_USER)
_TRIES = 100  # windows that may go by before one lets somebody choose
# Tables that nobody changes once a window is open: its copies share them.
_CONSTANT = frozenset(
    "jobs kind_ptr kind_node class_ptr class_list speed work events partition_factor qos_factor net "
    "features context".split()  # these two lie in the observations
)


@dataclass(slots=True)
class Window:
    """A window, the jobs in the agent's hand, and what the baseline makes of it."""

    simulation: ReplayState
    prepared: Prepared
    opening: int
    hand: Array
    count: Array  # of jobs in hand; like `pool` and `planned` an array of one, since kernels write to it
    pool: Array  # whose jobs they are
    planned: Array
    baseline: dict[str, Any] = field(default_factory=dict)  # its metrics, shared by all copies

    def copy(self) -> Window:
        """Another one to play, from the same moment on."""
        simulation = copy.copy(self.simulation)
        simulation.world = self.simulation.world.fork(_CONSTANT)
        place = (self.hand.copy(), self.count.copy(), self.pool.copy(), self.planned.copy())
        return Window(simulation, self.prepared, self.opening, *place, self.baseline)

    def to_choice(self) -> bool:
        """Goes on to the next pool that has a choice; False at the end."""
        while True:
            status = int(
                to_choice(self.simulation.world.record, 0, self.count, self.pool, self.opening, self.hand, self.planned)
            )
            if status in (CHOICE, ENDED):
                return status == CHOICE
            self.planned[0] |= self.help(status)

    def help(self, status: int) -> int:
        """What compiled code cannot do for itself; 1 if that was a plan for the pass that is due."""
        if status == CRAMPED:
            self.simulation._more_rows()
        elif status == UNPLANNED and self.simulation.planner is not None:
            self.simulation._plan(self.simulation.planner)
            return 1
        return 0


def _keep_order(world: World, kept: bool) -> None:
    """Keeps the queue in the order of submission, which costs less than to sort it at every pass; or no longer."""
    link_slot(world, POLICIES["fcfs"], "score")
    world["fixed_order"], world["steady"] = int(kept), 0
    world["pools"]["planned"] = 0  # what the last pass found out was for the other kind of order


class WindowSource:
    """Draws windows and pays for schedules; it keeps nothing of the windows that are played."""

    def __init__(
        self,
        trace: str | Path | Trace,
        cluster: str | Path | Cluster | None,
        *,
        jobs: int,
        warm_up: int,
        slots: int,
        backfill: str,
        placement: str,
        baseline: str,
        train_share: float,
        part: str,
        contention: float,
        defers: bool,
        payment: Payment,
    ) -> None:
        if not 0.0 <= contention <= 1.0:
            raise InputError(f"must be between 0 and 1, got {contention:g}", field="contention")
        if part not in PARTS:
            raise unknown_name("part", part, PARTS)
        found, where = trace_and_cluster(trace, cluster)
        first, last = found.span()
        early = found.submit_time <= first + train_share * (last - first)
        own = np.flatnonzero((early if part == "train" else ~early) & (found.run_time >= 0))
        self.jobs, self._warm_up, self._slots = jobs, warm_up, slots
        if len(own) < jobs + 2:
            raise InputError(
                f"has {len(own)} jobs in its {part}ing part, an episode needs {jobs}",
                file=found.name,
                remedy="give a longer trace or fewer jobs",
            )
        self._whole = prepare(found.take(own), where)
        self._backfill, self._placement = backfill, placement
        self._baseline = parse_policy(baseline)
        self._contention, self._begins = contention, np.zeros(0, dtype=np.int64)
        self._defers, self.payment = defers, payment
        self.told: Collection[str] = EVERY_METRIC  # metrics of the baseline that are wanted
        # Up to its first choice a window goes by submission: FCFS can go on from there, others begin at its beginning.
        self._forks = baseline == "fcfs" and not self.planned

    @property
    def planned(self) -> bool:
        """Whether a plan is made before each pass, outside compiled code."""
        return bool(PLACEMENTS[find_placement(self._placement)].planned)

    @property
    def longest(self) -> int:
        """Jobs that a window has at most, those before it included."""
        return self.jobs + self._warm_up

    def draw(self, dice: np.random.Generator) -> Window:
        """A window in which somebody has a choice."""
        for _ in range(_TRIES):
            window = self.open(self.any_begin(dice))
            if window is not None:
                return window
        raise self.nobody_waits()

    def any_begin(self, dice: np.random.Generator) -> int:
        """Where a window begins: with the chance `contention` where jobs queue most, else anywhere."""
        if self._contention > 0.0 and dice.random() < self._contention:
            if not len(self._begins):
                self._begins = contended_begins(self._whole, self.jobs, self._backfill, self._placement)
            return int(self._begins[dice.integers(len(self._begins))])
        return int(dice.integers(0, len(self._whole.trace) - self.jobs))

    def open(self, begin: int) -> Window | None:
        """The window from job `begin` on, at its first choice; None if there is none in it."""
        opening = int(self._whole.trace.submit_time[begin])
        prepared = stretch(self._whole, max(begin - self._warm_up, 0), begin + self.jobs, opening)
        simulation = self._simulate(prepared, _AGENT)
        world, jobs = simulation.world, len(prepared.trace)
        world["track_usage"] = 1
        world["features"] = np.zeros((self._slots, JOB_COUNT), dtype=np.float32)
        world["context"] = np.zeros(POOL_COUNT, dtype=np.float32)
        world["live"]["score"] = -world["jobs"]["submit"].astype(float)
        if self._defers:
            world["hint_of"] = np.zeros(jobs, dtype=np.int64)
        count, pool, planned = (np.zeros(1, dtype=np.int64) for _ in range(3))
        pool[0] = len(world["pools"])
        window = Window(simulation, prepared, opening, np.zeros(self._slots, dtype=np.int64), count, pool, planned)
        if not self.planned:
            _keep_order(world, True)
            simulation.run(opening - 1)
            _keep_order(world, False)
        if not window.to_choice():
            return None
        if self._forks:
            other = window.copy().simulation
            _keep_order(other.world, True)
            self._measure_baseline(window, other)
        return window

    def _simulate(self, prepared: Prepared, policy: PolicySpec) -> ReplayState:
        return ReplayState(
            prepared.workload, prepared.trace.run_time, policy, backfill=self._backfill, placement=self._placement
        )

    def reward(self, window: Window) -> tuple[float, dict[str, Any]]:
        """What a window that was played to its end is paid, and the metrics of both schedules that `told` names."""
        mine = some_metrics(result_of(window.simulation, window.prepared.trace, window.prepared.measured), self.told)
        self.run_baseline(window)
        return self.payment.of(mine, window.baseline), {"metrics": mine, "baseline": window.baseline}

    def follow(self, window: Window) -> Progress:
        """Payments step by step of a window that is about to be played."""
        self.run_baseline(window)
        return Progress(window, self.payment)

    def run_baseline(self, window: Window) -> None:
        """Notes what the baseline makes of a window, unless that is known."""
        if not window.baseline:
            self._measure_baseline(window, self._simulate(window.prepared, self._baseline))

    def _measure_baseline(self, window: Window, simulation: ReplayState) -> None:
        simulation.run()
        result = result_of(simulation, window.prepared.trace, window.prepared.measured)
        window.baseline |= some_metrics(result, self.told)

    def nobody_waits(self) -> InputError:
        """What to tell a user whose trace has no queues."""
        return InputError(
            "no window of the trace has a choice: no job waits, so there is nothing to learn",
            file=self._whole.trace.name,
            remedy="a smaller cluster or more load",
        )
