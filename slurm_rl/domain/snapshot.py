"""A snapshot of a cluster, and the plan that is made from one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slurm_rl.kernel.arrays import Array
    from slurm_rl.kernel.tables import World


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known at an instant: jobs, estimates, usage, nodes and who holds them. Nobody changes it."""

    now: int
    world: World
    pending: Array  # jobs that wait, ascending
    pools: tuple[str, ...] = ()  # each pool's partitions, for those who keep something by pool
    kept_back: frozenset[int] = frozenset()  # of these, jobs that a limit keeps from starting: ordered, never started


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job stands where it stands."""

    policy: str
    rank: int  # 0 = first
    of: int
    score: float  # the policy's own
    promoted: bool  # waited so long that it goes before the policy's order
    fallback: bool  # the policy's scores were unusable: Slurm's own order stands
    ruler: str = ""  # of a policy that chooses: which one scored this job
    lane: tuple[float, float] | None = None  # if the lane promoted it: the lane's share of work started, and the most

    def __str__(self) -> str:
        if self.fallback:
            return f"{self.policy} gave no usable scores; Slurm's own order stands"
        if self.lane is not None:
            used, most = self.lane
            return f"{self.rank + 1} of {self.of}: goes first within the lane: {used:.0%} of {most:.0%} used"
        scored = f"{self.policy} lets {self.ruler} rule, score" if self.ruler else f"{self.policy} score"
        why = "promoted: it has waited too long" if self.promoted else f"{scored} {self.score:.6g}"
        return f"{self.rank + 1} of {self.of}: {why}"


@dataclass(frozen=True, slots=True)
class Start:
    """A job that can start now, and where: (node, units of its request) pairs."""

    job: int
    nodes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PlannedDeferral:
    """A job that fits and is deferred, until when at most, and the number of the GPU type it should wait for."""

    job: int
    until: int
    awaits: int


@dataclass(frozen=True, slots=True)
class Ruler:
    """The policy that was chosen to order a pool's queue, and why."""

    pool: str  # its partitions; "" where nobody has named them
    policy: str
    why: str
    since: float
    decisions: int
    switches: int
    held_back: int  # switches that did not happen, for the margin or the hour's bound


@dataclass(frozen=True, slots=True)
class Plan:
    """What to change, and why; jobs by their index in the snapshot."""

    now: int
    order: tuple[int, ...]  # pending jobs, the first to run first
    site_factor: tuple[int, ...]  # of the jobs in that order; on top of Slurm's priority they give it, if bounded
    reasons: tuple[Reason, ...]  # of the jobs in that order
    starts: tuple[Start, ...]
    deferrals: tuple[PlannedDeferral, ...] = ()
    rulers: tuple[Ruler, ...] = ()  # of a policy that chooses, one for each pool with a queue
    memory: Mapping[str, Array] | None = None  # … and its state after this plan, by table
