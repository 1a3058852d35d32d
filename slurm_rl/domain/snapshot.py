"""A snapshot of a cluster, and the plan that is made from one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_rl.kernel.arrays import Array
    from slurm_rl.kernel.tables import World


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known at an instant: jobs, estimates, usage, nodes and who holds them. Nobody changes it."""

    now: int
    world: World
    pending: Array  # jobs that wait, ascending


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job stands where it stands."""

    policy: str
    rank: int  # 0 = first
    of: int
    score: float  # the policy's own
    promoted: bool  # waited so long that it goes before the policy's order
    fallback: bool  # the policy's scores were unusable: Slurm's own order stands

    def __str__(self) -> str:
        if self.fallback:
            return f"{self.policy} gave no usable scores; Slurm's own order stands"
        why = "promoted: it has waited too long" if self.promoted else f"{self.policy} score {self.score:.6g}"
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
class Plan:
    """What to change, and why; jobs by their index in the snapshot."""

    now: int
    order: tuple[int, ...]  # pending jobs, the first to run first
    site_factor: tuple[int, ...]  # of the jobs in that order; on top of Slurm's priority they give it, if bounded
    reasons: tuple[Reason, ...]  # of the jobs in that order
    starts: tuple[Start, ...]
    deferrals: tuple[PlannedDeferral, ...] = ()
