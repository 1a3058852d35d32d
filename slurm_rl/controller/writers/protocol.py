"""One protocol for all writes to Slurm: the users' values, the wanted ones, writing and taking back.

Undo loads the writers, and undo must start on a machine in any state: no compiler, no arrays and no framework is
imported by this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from slurm_rl.controller.ours import keys_of
from slurm_rl.obs.journal import Change, Journal, JournalError, Key
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import JobUpdate, SlurmJob, SlurmState

if TYPE_CHECKING:
    from slurm_rl.config import Config
    from slurm_rl.controller.slurm_snapshot import LiveQueue
    from slurm_rl.domain.snapshot import Plan

IN_FLIGHT = 60.0  # seconds in which a write that nobody reported on may still reach slurmctld
ROUNDS = 3  # looks at the queue before a take-back gives up
W = TypeVar("W")
Row = TypeVar("Row")


def key_of(job: SlurmJob) -> Key:
    """A job's key in the journal: Slurm uses ids again."""
    return job.job_id, job.submit_time or 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One tick, once it is decided: what was seen, what is planned, and who may write."""

    said: SlurmState  # as Slurm told it
    queue: LiveQueue  # as users made it
    plan: Plan
    factors: Sequence[tuple[SlurmJob, Change]]  # SiteFactors that are not as decided, in the order of writing
    tick: int
    token: int
    clock: Callable[[], float]
    may_write: Callable[[], bool]  # False: stop here; raises LostLease if another controller leads
    pause: Callable[[float], object]  # seconds; ends early when the controller is to stop
    log: Any


@dataclass(frozen=True, slots=True)
class TakeBack:
    """How an undo is to be done."""

    client: SlurmClient
    journal: Journal
    everything: bool  # also what the journal does not know
    token: int | None  # None: the journal cannot be written
    unsettled: bool  # a write of a killed controller may still be under way
    clock: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What became of jobs that had something of ours: found = returned + gone + left + unverified."""

    found: int = 0
    returned: int = 0
    acknowledged: int = 0  # … of these: not shown by Slurm, but slurmctld confirmed the write of each
    gone: int = 0  # they ended meanwhile
    left: tuple[int, ...] = ()
    unverified: tuple[int, ...] = ()
    ended: frozenset[Key] = frozenset()  # not of these: they would have something of ours again if they were requeued


class Writer(Protocol[W]):
    """Writes one field of jobs. A write is in the journal, with what the user had, before it is sent."""

    name: ClassVar[str]

    def follow(self, config: Config) -> None:
        """Takes over another configuration."""
        ...

    def own(self, state: SlurmState) -> SlurmState:
        """The state as users made it, without what we wrote."""
        ...

    def settle(self, turn: Turn) -> None:
        """Notes what became of earlier writes, and forgets jobs that are over."""
        ...

    def wanted(self, turn: Turn) -> Sequence[W]:
        """What to write, the most urgent first."""
        ...

    def imagine(self, turn: Turn, most: int) -> int:
        """Records what enforce mode would write; Slurm is told nothing. How many writes."""
        ...

    def apply(self, client: SlurmClient, writes: Sequence[W], turn: Turn) -> int:
        """Journals, then writes; how many were applied."""
        ...

    @staticmethod
    def take_back(order: TakeBack) -> TakenBack:
        """Gives every job back what its user had; works without a configuration and on a read-only disk."""
        ...


def return_all(
    order: TakeBack,
    rows: Callable[[], Mapping[Key, Row]],
    release: Callable[[Sequence[Key]], None],
    ours: Callable[[SlurmJob, Row], bool],
    update: Callable[[SlurmJob, Row], JobUpdate],
    over: Callable[[Mapping[Key, Row], SlurmState], set[Key]],
) -> TakenBack:
    """Takes back what Slurm shows of every waiting job: looks, writes, and looks again.

    A row stays as long as its job has something of ours, or may have it again after a requeue. Of jobs that have ended
    nothing can be changed: `over` says which of them cannot come back with it.
    """
    found = returned = 0
    ended: frozenset[Key] = frozenset()
    for attempt in range(ROUNDS):
        known = rows()
        if not known:
            break
        state = order.client.snapshot()
        jobs = dict(zip(keys_of(state.jobs, known), state.jobs, strict=True))
        absent = {k: row for k, row in known.items() if k not in jobs}
        ended = frozenset(absent.keys() - over(absent, state))
        mine = {k: row for k, row in known.items() if k in jobs and ours(jobs[k], row)}
        with suppress(JournalError):
            release([k for k in known if k not in mine and k not in ended])
        mine = {k: row for k, row in mine.items() if jobs[k].pending}
        if attempt == 0:
            found = len(mine)
        if not mine:
            break
        returned += sum(r.applied for r in order.client.update([update(jobs[k], row) for k, row in mine.items()]))
    return TakenBack(found, min(returned, found), ended=ended)
