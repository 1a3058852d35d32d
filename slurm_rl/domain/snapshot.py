"""A snapshot of a cluster, and the plan that is made from one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np

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


class Reasons(Sequence[Reason]):
    """The reasons of a plan's jobs, in its order: kept as columns, each made when somebody asks for it."""

    __slots__ = ("_common", "_lanes", "_ruling", "promoted", "scores")

    def __init__(
        self,
        policy: str,
        scores: Array,
        promoted: Array,
        *,
        fallback: bool = False,
        ruling: Sequence[str] = (),  # of each job, of a policy that chooses
        lanes: Mapping[int, tuple[float, float]] | None = None,  # by place
    ) -> None:
        self.scores, self.promoted = scores, promoted
        self._common, self._ruling, self._lanes = (policy, fallback), ruling, lanes or {}

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, at: int) -> Reason: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Reason, ...]: ...
    def __getitem__(self, at: int | slice) -> Reason | tuple[Reason, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        rank = range(len(self))[at]
        policy, fallback = self._common
        ruler = self._ruling[rank] if self._ruling else ""
        score, promoted = float(self.scores[rank]), bool(self.promoted[rank])
        return Reason(policy, rank, len(self), score, promoted, fallback, ruler, self._lanes.get(rank))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))


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
    reasons: Sequence[Reason]  # of the jobs in that order
    starts: tuple[Start, ...]
    deferrals: tuple[PlannedDeferral, ...] = ()
    rulers: tuple[Ruler, ...] = ()  # of a policy that chooses, one for each pool with a queue
    memory: Mapping[str, Array] | None = None  # … and its state after this plan, by table

    @property
    def scores(self) -> Array:
        """The policy's own scores of the jobs in that order."""
        if isinstance(self.reasons, Reasons):
            return self.reasons.scores
        return np.array([r.score for r in self.reasons], dtype=np.float64)

    @property
    def promoted(self) -> Array:
        """Which of the jobs in that order have waited too long for the policy's order."""
        if isinstance(self.reasons, Reasons):
            return self.reasons.promoted
        return np.array([r.promoted for r in self.reasons], dtype=bool)
