"""Takes back what was written: every job of the journal that still waits gets SiteFactor 0."""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from slurm_rl.controller.deferring import lift_all
from slurm_rl.controller.placement import give_back
from slurm_rl.errors import SlurmError
from slurm_rl.obs.journal import Change, Journal, JournalError, own_name
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import JobUpdate, SlurmJob, UpdateStatus

_BATCH = 1000
_ROUNDS = 3
ADVICE_AGE = 5.0  # seconds between advice and the job's submit time, at most


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo found and did."""

    touched: int  # jobs of ours that still wait with a factor
    returned: int
    left: tuple[int, ...]  # jobs that still have one
    stopped_leader: bool
    steered: int = 0  # jobs that had a feature expression of ours
    freed: int = 0  # … and have their user's own again
    deferred: int = 0  # jobs that had a start time of ours
    lifted: int = 0  # … and may start again


def ours(jobs: Sequence[SlurmJob], touched: dict[tuple[int, int], int]) -> list[SlurmJob]:
    """Pending jobs with a factor that we wrote; a task split from an array keeps its array's."""
    found = []
    for job in jobs:
        if not job.pending or job.site_factor == 0:
            continue
        submitted = job.submit_time or 0
        array = job.array_job_id or job.job_id
        if (job.job_id, submitted) in touched or (array, submitted) in touched:
            found.append(job)
    return found


def advised(jobs: Sequence[SlurmJob], advice: Sequence[tuple[float, int, int]]) -> list[SlurmJob]:
    """Pending jobs whose factor the submit plugin wrote on our advice: same user, same value, same moment."""
    given: dict[tuple[int, int], list[float]] = {}
    for when, uid, value in advice:
        given.setdefault((uid, value), []).append(when)
    if not given:
        return []
    return [
        job
        for job in jobs
        if job.pending
        and job.site_factor
        and any(
            -ADVICE_AGE <= (job.submit_time or 0) - when <= ADVICE_AGE
            for when in given.get((_uid(job.user), job.site_factor), [])
        )
    ]


def _uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return int(user) if user.isdecimal() else -1


def undo(
    client: SlurmClient,
    journal: Journal,
    *,
    everything: bool = False,
    token: int | None = None,
    clock: Callable[[], float] = time.time,
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
    steered, freed = give_back(client, journal)
    deferred, lifted = lift_all(client, journal, clock=clock)
    first, returned, left = 0, 0, list[SlurmJob]()
    for attempt in range(_ROUNDS):
        state = client.snapshot()
        touched = journal.touched()
        left = ours(state.jobs, touched)
        known = {j.job_id for j in left}
        extra = [j for j in state.jobs if j.pending and j.site_factor] if everything else []
        extra += advised(state.jobs, journal.advice(0.0))
        left += {j.job_id: j for j in extra if j.job_id not in known}.values()
        # Slurm does not show the factor of held and dependent jobs: those are written once, on trust.
        left = [j for j in left if j.site_factor is not None or attempt == 0]
        first = max(first, len(left))
        if not left:
            break
        for at in range(0, len(left), _BATCH):
            returned += _write(client, journal, left[at : at + _BATCH], token, clock())
    with suppress(JournalError):
        if not left:
            journal.forget(list(journal.touched()))
        if own and token is not None:
            journal.release(token)
    return Undone(
        touched=first,
        returned=min(returned, first),
        left=tuple(j.job_id for j in left),
        stopped_leader=stopped,
        steered=steered,
        freed=min(freed, steered),
        deferred=deferred,
        lifted=min(lifted, deferred),
    )


def _write(client: SlurmClient, journal: Journal, jobs: Sequence[SlurmJob], token: int | None, now: float) -> int:
    numbers: list[int] = []
    with suppress(JournalError):
        rows = [Change(j.job_id, j.submit_time or 0, j.site_factor, 0, "undo") for j in jobs]
        numbers = journal.intend(0, token, now, rows) if token is not None else []
    results = client.update([JobUpdate.of(j, site_factor=0) for j in jobs])
    with suppress(JournalError):
        if numbers:
            journal.settle([(n, r.status.value) for n, r in zip(numbers, results, strict=True)])
    if results and all(r.status is UpdateStatus.NOT_SENT for r in results):
        raise SlurmError("undo: slurmctld does not answer; run slurm-rl undo again when it does")
    return sum(r.applied for r in results)
