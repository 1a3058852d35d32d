"""Takes back what was written: every job of the journal or of our advice gets SiteFactor 0, shown or not.

Slurm shows the factor of eligible pending jobs only. Those are read back. The others (held, dependent, deferred,
running, with a priority set by hand) keep theirs and may act on it later: they are written too, and count as returned
when slurmctld has confirmed the write of that very job. This module needs no compiler and no arrays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from slurm_rl.controller.ours import Claim, Ours, rows_of, shown
from slurm_rl.controller.restore import give_back, key_of, lift_all
from slurm_rl.errors import InputError, SlurmError
from slurm_rl.obs.journal import Change, Journal, JournalError, Key, own_name
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import JobUpdate, SlurmJob, SlurmState, UpdateResult, UpdateStatus
from slurm_rl.slurm.text import setting

_BATCH = 1000
_ROUNDS = 3
_IN_FLIGHT = 60.0  # seconds in which a write that nobody reported on may still reach slurmctld
_PAUSE = 0.5
_MIN_JOB_AGE = 300.0  # Slurm's default: for so long a job that has ended may be requeued

RETURNED, ACKNOWLEDGED, LEFT, UNVERIFIED, GONE = "returned", "acknowledged", "left", "unverified", "gone"


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo found and did; touched = returned + gone + left + unverified."""

    touched: int = 0  # jobs of ours that had a factor, or of which Slurm does not show it
    returned: int = 0  # … seen at 0, or confirmed
    acknowledged: int = 0  # … of these: not shown, and slurmctld confirmed the write of each
    gone: int = 0  # … that ended meanwhile
    left: tuple[int, ...] = ()  # jobs that still have one
    unverified: tuple[int, ...] = ()  # jobs whose factor is not shown, and whose write was not confirmed
    stopped_leader: bool = False
    steered: int = 0  # jobs that had a feature expression of ours
    freed: int = 0  # … and have their user's own again
    deferred: int = 0  # jobs that had a start time of ours
    lifted: int = 0  # … and may start again

    @property
    def complete(self) -> bool:
        return not self.left and not self.unverified


def undo(
    client: SlurmClient,
    journal: Journal,
    *,
    everything: bool = False,
    token: int | None = None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Undone:
    """Returns jobs to SiteFactor 0 and reads them back; with `everything`, also those that the journal does not know.

    Without a token of the caller's own the lease is seized, so that a running controller stops; it is also told to
    stay off.
    """
    stopped = False
    own = token is None
    if token is None:
        stopped = journal.leader(clock()) not in (None, own_name())
        # A full disk must not keep us from taking back: the journal's word matters before writing, not before undoing.
        with suppress(JournalError):
            if stopped:
                journal.command(clock(), "off", "undo")
            token = journal.acquire(own_name(), clock(), 300.0, force=True)
    unsettled = journal.in_flight(clock() - _IN_FLIGHT)
    if unsettled:
        _await_quiet(client, sleep)
    steered, freed = give_back(client, journal)
    deferred, lifted = lift_all(client, journal, clock=clock)
    run = _Undoing(client, journal, everything, token, clock)
    for attempt in range(_ROUNDS):
        todo = run.look()
        if not todo and unsettled:  # a write of a killed controller may have come after our own
            unsettled = False
            sleep(_PAUSE)
            todo = run.look()
        if not todo:
            break
        run.write(todo)
        if attempt == _ROUNDS - 1:
            run.look()
    with suppress(JournalError):
        run.record()
        if own and token is not None:
            journal.release(token)
    fates = list(run.fate.values())
    return Undone(
        touched=len(fates),
        returned=fates.count(RETURNED) + fates.count(ACKNOWLEDGED),
        acknowledged=fates.count(ACKNOWLEDGED),
        gone=fates.count(GONE),
        left=tuple(job for job, what in run.fate.items() if what == LEFT),
        unverified=tuple(job for job, what in run.fate.items() if what == UNVERIFIED),
        stopped_leader=stopped,
        steered=steered,
        freed=min(freed, steered),
        deferred=deferred,
        lifted=min(lifted, deferred),
    )


class _Undoing:
    """One undo: what became of each job, and which rows of the journal may go."""

    def __init__(
        self,
        client: SlurmClient,
        journal: Journal,
        everything: bool,
        token: int | None,
        clock: Callable[[], float],
    ) -> None:
        self.client, self.journal, self.everything, self.token = client, journal, everything, token
        self.clock = clock
        self.fate: dict[int, str] = {}
        self.state: SlurmState | None = None
        self._advice = journal.advice(0.0)
        self._open: set[Key] = set()  # rows of records that are not done
        self._unseen: set[Key] = set()  # rows of records that slurmctld has confirmed, but does not show
        self._foreign: set[Key] = set()

    def look(self) -> list[SlurmJob]:
        """Reads the queue, settles what can be settled, and returns the records that are to be written."""
        self.state = state = self.client.snapshot()
        ours = Ours(self.journal.touched(), self.journal.watched(), self._advice)
        self._open, self._unseen, self._foreign = set(), set(), set()
        todo = []
        for job in state.jobs:
            factor, claim = shown(job), ours.claim(job)
            if claim is None and self.everything and factor != 0 and not (job.cron and factor is None):
                claim = Claim(None, write=True)
            if claim is None:
                continue
            row = claim.key or key_of(job)
            if claim.foreign:
                self._foreign.add(row)
            if self.fate.get(job.job_id) == ACKNOWLEDGED and factor is None:
                self._unseen.add(row)
            elif claim.write or (self.everything and factor):
                todo.append(job)
                self._open.add(row)
                self.fate[job.job_id] = UNVERIFIED if factor is None else LEFT
            elif factor == 0 and job.job_id in self.fate:
                self.fate[job.job_id] = RETURNED
            elif factor is None:
                self._unseen.add(row)
        there = {job.job_id for job in state.jobs}
        self.fate |= {job: GONE for job in self.fate if job not in there}
        return todo

    def write(self, jobs: Sequence[SlurmJob]) -> None:
        """Writes 0 to each; of those that Slurm does not show, the answer decides."""
        for at in range(0, len(jobs), _BATCH):
            batch = jobs[at : at + _BATCH]
            numbers: list[int] = []
            with suppress(JournalError):
                rows = [Change(*key_of(j), shown(j), 0, "undo") for j in batch]
                numbers = self.journal.intend(0, self.token, self.clock(), rows) if self.token is not None else []
            results = self._update(batch)
            with suppress(JournalError):
                if numbers:
                    self.journal.settle([(n, r.status.value) for n, r in zip(numbers, results, strict=True)])
            if results and all(r.status is UpdateStatus.NOT_SENT for r in results):
                raise SlurmError("undo: slurmctld does not answer; run slurm-rl undo again when it does")
            for job, result in zip(batch, results, strict=True):
                if result.applied and shown(job) is None:
                    self.fate[job.job_id] = ACKNOWLEDGED
                elif result.status is UpdateStatus.REFUSED and job.state == "COMPLETING":
                    self.fate[job.job_id] = GONE

    def _update(self, jobs: Sequence[SlurmJob]) -> list[UpdateResult]:
        """One record that cannot be written must not keep the others from it."""
        updates = [JobUpdate.of(j, site_factor=0) for j in jobs]
        try:
            return self.client.update(updates)
        except InputError:
            found = []
            for update in updates:
                try:
                    found += self.client.update([update])
                except InputError as error:
                    found.append(UpdateResult(update.job_id, UpdateStatus.REFUSED, str(error)))
            return found

    def record(self) -> None:
        """Drops rows of jobs that were seen at 0, and watches those of which nobody knows."""
        assert self.state is not None  # noqa: S101  (there was a look)
        now, touched, watched = self.clock(), self.journal.touched(), self.journal.watched()
        there = rows_of(self.state.jobs, {*touched, *watched})
        unseen = self._unseen - self._open
        done = {key for key in touched if key in there and key not in self._open | unseen}
        self.journal.watch([(key, True) for key in sorted(unseen)], now)
        self.journal.watch([(key, False) for key in touched if key not in there], now)
        self.journal.forget(sorted(done))
        late = now - max(min_job_age(self.state), _MIN_JOB_AGE)
        over = {key for key, row in watched.items() if key not in there and row.time < late}
        over |= {key for key in watched if key in there and key not in self._open | unseen} | self._foreign
        self.journal.unwatch(sorted(over))


def min_job_age(state: SlurmState) -> float:
    """Seconds for which slurmctld remembers a job that has ended, and lets it be requeued."""
    number = setting(state.config, "MinJobAge").partition(" ")[0]
    return float(number) if number.isdecimal() else _MIN_JOB_AGE


def _await_quiet(client: SlurmClient, sleep: Callable[[float], None]) -> None:
    """A killed controller's scontrol may still be writing: wait until factors stand still, but not for ever."""
    before = _factors(client.snapshot().jobs)
    for _ in range(20):
        sleep(_PAUSE)
        now = _factors(client.snapshot().jobs)
        if now == before:
            return
        before = now


def _factors(jobs: Iterable[SlurmJob]) -> dict[int, int | None]:
    return {job.job_id: shown(job) for job in jobs}
