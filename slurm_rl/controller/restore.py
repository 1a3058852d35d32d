"""Gives jobs back what else was theirs: their own feature expression, and a start time that is not ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from slurm_rl.obs.journal import Deferred, Journal, JournalError, Key, Steered
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import JobUpdate, SlurmJob

SLACK = 5  # seconds that a plain submission, or a lift, may take to become eligible
_ROUNDS = 3


def key_of(job: SlurmJob) -> Key:
    return job.job_id, job.submit_time or 0


def still_ours(job: SlurmJob, row: Deferred) -> bool:
    """Whether a job's start time is the one that we wrote."""
    if job.eligible_time is None:
        return False
    return 0 <= job.eligible_time - row.written <= (SLACK if row.lifted else 0)


def features_update(job: SlurmJob, row: Steered) -> JobUpdate:
    """The update that writes a feature expression."""
    if row.field == "prefer":
        return JobUpdate.of(job, prefer=row.value)
    return JobUpdate.of(job, features=row.value)


def give_back(client: SlurmClient, journal: Journal) -> tuple[int, int]:
    """Returns every waiting job that was steered to its user's own expression: (found, returned)."""
    found = returned = 0
    for attempt in range(_ROUNDS):
        steered = journal.steered()
        if not steered:
            break
        state = client.snapshot()
        jobs = {key_of(j): j for j in state.jobs if j.pending}
        ours = {k: s for k, s in steered.items() if k in jobs and getattr(jobs[k], s.field) == s.value != s.own}
        with suppress(JournalError):
            journal.release_steered([k for k in steered if k not in ours])
        if attempt == 0:
            found = len(ours)
        if not ours:
            break
        results = client.update([features_update(jobs[k], replace(s, value=s.own)) for k, s in ours.items()])
        returned += sum(r.applied for r in results)
    return found, returned


def lift_all(client: SlurmClient, journal: Journal, *, clock: Callable[[], float] = time.time) -> tuple[int, int]:
    """Lets every waiting job start again that has a start time of ours: (found, lifted)."""
    found = lifted = 0
    for attempt in range(_ROUNDS):
        rows = journal.deferred()
        if not rows:
            break
        state = client.snapshot()
        jobs = {key_of(j): j for j in state.jobs if j.pending}
        now = clock()
        ours = [k for k, r in rows.items() if k in jobs and r.lasts(now) and still_ours(jobs[k], r)]
        with suppress(JournalError):
            journal.release_deferred([k for k in rows if k not in ours])
        if attempt == 0:
            found = len(ours)
        if not ours:
            break
        lifted += sum(r.applied for r in client.update([JobUpdate.of(jobs[k], start_at=0) for k in ours]))
    return found, lifted
