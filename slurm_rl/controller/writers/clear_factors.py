"""Takes SiteFactors back: every job of the journal or of our advice gets 0, whether Slurm shows its factor or not.

Slurm shows the factor of eligible pending jobs only. Those are read back. The others (held, dependent, deferred,
running, with a priority set by hand) keep theirs and may act on it later: they are written too, and count as returned
when slurmctld has confirmed the write of that very job.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from slurm_rl.controller.ours import Claim, Ours, rows_of, shown
from slurm_rl.controller.writers.protocol import ROUNDS, TakeBack, TakenBack, key_of
from slurm_rl.errors import InputError, SlurmError
from slurm_rl.obs.journal import Change, JournalError, Key
from slurm_rl.slurm.model import JobUpdate, SlurmJob, SlurmState, UpdateResult, UpdateStatus
from slurm_rl.slurm.scontrol import setting

PAUSE = 0.5
_BATCH = 1000
_MIN_JOB_AGE = 300.0  # Slurm's default
_PURGE = 120.0  # seconds beyond MinJobAge within which slurmctld drops a job that has ended: it looks once a minute
_FOR_EVER = 86_400.0  # with MinJobAge=0 slurmctld drops no job: after a day nobody is expected to requeue one

RETURNED, ACKNOWLEDGED, LEFT, UNVERIFIED, GONE = "returned", "acknowledged", "left", "unverified", "gone"


def clear_factors(order: TakeBack) -> TakenBack:
    """Writes 0 until it is seen or confirmed, and records in the journal what is known then."""
    clearing = _Clearing(order)
    unsettled = order.unsettled
    for attempt in range(ROUNDS):
        todo = clearing.look()
        if not todo and unsettled:  # a write of a killed controller may have come after our own
            unsettled = False
            order.sleep(PAUSE)
            todo = clearing.look()
        if not todo:
            break
        clearing.write(todo)
        if attempt == ROUNDS - 1:
            clearing.look()
    with suppress(JournalError):
        clearing.record()
    fates = list(clearing.fate.values())
    return TakenBack(
        found=len(fates),
        returned=fates.count(RETURNED) + fates.count(ACKNOWLEDGED),
        acknowledged=fates.count(ACKNOWLEDGED),
        gone=fates.count(GONE),
        left=tuple(job for job, fate in clearing.fate.items() if fate == LEFT),
        unverified=tuple(job for job, fate in clearing.fate.items() if fate == UNVERIFIED),
        ended=frozenset(clearing.ended),
    )


class _Clearing:
    """One undo: what became of each job, and which rows of the journal may go."""

    def __init__(self, order: TakeBack) -> None:
        self.client, self.journal, self.clock = order.client, order.journal, order.clock
        self.everything, self.token = order.everything, order.token
        self.fate: dict[int, str] = {}
        self.state: SlurmState | None = None
        self.ended: set[Key] = set()  # rows of jobs that are not there, and may be requeued
        self._advice = order.journal.advice(0.0)
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
        late = now - may_return_for(self.state)
        self.ended = {key for key in touched if key not in there}
        self.ended |= {key for key, w in watched.items() if key not in there and w.time >= late and not w.confirmed}
        unseen = self._unseen - self._open
        done = {key for key in touched if key in there and key not in self._open | unseen}
        self.journal.watch([(key, True) for key in sorted(unseen)], now)
        self.journal.watch([(key, False) for key in touched if key not in there], now)
        self.journal.forget(sorted(done))
        over = {key for key, row in watched.items() if key not in there and row.time < late}
        over |= {key for key in watched if key in there and key not in self._open | unseen} | self._foreign
        self.journal.unwatch(sorted(over))


def may_return_for(state: SlurmState) -> float:
    """Seconds for which slurmctld remembers a job that has ended, and lets it be requeued."""
    number = setting(state.config, "MinJobAge").partition(" ")[0]
    age = float(number) if number.isdecimal() else _MIN_JOB_AGE
    return (age or _FOR_EVER) + _PURGE
