"""Which of Slurm's records may carry a factor of ours: by the journal, or by the advice given at submission.

Slurm shows no factor of held, dependent, deferred and running jobs, nor of jobs whose priority was set by hand, but
keeps it and acts on it later. So a job is ours by what we wrote or advised, never by what is shown alone.
"""

from __future__ import annotations

import bisect
import pwd
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from slurm_rl.obs.journal import Key, Watched
from slurm_rl.slurm.model import SlurmJob

T = TypeVar("T")
ADVICE_AGE = 5.0  # seconds between advice and the job's submit time, at most


def by_hand(job: SlurmJob) -> bool:
    """Whether somebody set the job's priority itself: Slurm then shows every factor as 0, and still keeps ours."""
    f = job.factors
    if f is None or not job.pending or f.priority <= 1:  # Slurm lets no priority fall below 1, whatever its terms
        return False
    return not any((f.age, f.assoc, f.fairshare, f.job_size, f.partition, f.qos, f.site, f.tres, f.nice))


def shown(job: SlurmJob) -> int | None:
    """The job's SiteFactor; None where Slurm does not show it."""
    if not job.pending or job.factors is None:
        return None
    f = job.factors
    terms = (f.age, f.assoc, f.fairshare, f.job_size, f.partition, f.qos, f.site, f.tres, f.nice)
    return f.site if any(terms) else None


@dataclass(frozen=True, slots=True)
class Claim:
    """Why a record is ours, and whether that calls for a write."""

    key: Key | None  # its row in the journal; None: known by advice alone
    write: bool
    foreign: bool = False  # it has a factor that somebody else set after ours was taken back


class Ours:
    """What the journal and the advice say, ready to be asked about each record of a queue."""

    def __init__(
        self,
        touched: Mapping[Key, int],
        watched: Mapping[Key, Watched],
        advice: Sequence[tuple[float, int, int]],
    ) -> None:
        self._touched = _by_id(touched)
        self._watched = _by_id(watched)
        self._advice: dict[int, dict[int, list[float]]] = {}  # uid -> value -> when
        self._moments: dict[int, list[float]] = {}
        for when, uid, value in sorted(advice):
            self._advice.setdefault(uid, {}).setdefault(value, []).append(when)
            self._moments.setdefault(uid, []).append(when)
        self._uids: dict[str, int] = {}

    def claim(self, job: SlurmJob) -> Claim | None:
        """None: the record is not ours."""
        factor = shown(job)
        key = _row(job, self._touched)
        if key is not None:
            return Claim(key, factor != 0)
        key = _row(job, self._watched)
        if key is not None:
            row = self._watched[key[0]][key[1]]
            if factor is None:
                return Claim(key, not row.confirmed)
            still = factor == row.value if row.value else self.advised(job, factor)
            return Claim(key, bool(factor) and still, foreign=bool(factor) and not still)
        return Claim(None, True) if factor != 0 and self.advised(job, factor) else None

    def advised(self, job: SlurmJob, factor: int | None) -> bool:
        """Whether the submit plugin may have written the factor on our advice.

        A shown factor is ours if it was advised to this user at this moment. Of a factor that is not shown, user and
        moment must do: who else submitted in those seconds has none, or one that an operator set since. A requeued job
        has another submit time: there the moment is any before it.
        """
        uid = self._uid(job.user)
        if factor is not None:
            times = self._advice.get(uid, {}).get(factor, [])
        else:
            times = self._moments.get(uid, [])
        submitted = job.submit_time or 0
        first = 0 if job.restarts else bisect.bisect_left(times, submitted - ADVICE_AGE)
        return first < len(times) and times[first] <= submitted + ADVICE_AGE

    def _uid(self, user: str) -> int:
        if user not in self._uids:
            try:
                self._uids[user] = pwd.getpwnam(user).pw_uid
            except KeyError:
                self._uids[user] = int(user) if user.isdecimal() else -1
        return self._uids[user]


def advised(jobs: Iterable[SlurmJob], advice: Sequence[tuple[float, int, int]]) -> list[SlurmJob]:
    """Jobs whose shown factor the submit plugin wrote on our advice."""
    if not advice:
        return []
    given = Ours({}, {}, advice)
    return [job for job in jobs if (factor := shown(job)) and given.advised(job, factor)]


def to_clear(
    jobs: Iterable[SlurmJob], touched: Mapping[Key, int], advice: Sequence[tuple[float, int, int]]
) -> list[SlurmJob]:
    """Of jobs that must not have a factor of ours, those that may have one; a 0 that was sent once is not sent again.

    A job that Slurm shows is judged by what is shown. Of another one, the journal's last word counts.
    """
    rows, given = _by_id(touched), Ours({}, {}, advice)
    found = []
    for job in jobs:
        factor, key = shown(job), _row(job, rows)
        if key is not None:
            due = factor != 0 if factor is not None else rows[key[0]][key[1]] != 0
        else:
            due = bool(factor) and given.advised(job, factor)
        if due and not job.cron:
            found.append(job)
    return found


def given_unseen(jobs: Iterable[SlurmJob], advice: Sequence[tuple[float, int, int]]) -> list[SlurmJob]:
    """Jobs that may have a factor from our advice, of which Slurm shows none: by user and moment."""
    if not advice:
        return []
    given = Ours({}, {}, advice)
    return [job for job in jobs if shown(job) is None and given.advised(job, None)]


def at_zero(jobs: Iterable[SlurmJob], rows: Iterable[Key]) -> set[Key]:
    """The rows whose every record is shown without a factor."""
    index = _by_id(dict.fromkeys(rows, 0))
    zero: set[Key] = set()
    other: set[Key] = set()
    for job in _named(jobs, index):
        key = _row(job, index)
        if key is not None:
            (zero if shown(job) == 0 else other).add(key)
    return zero - other


def rows_of(jobs: Iterable[SlurmJob], rows: Iterable[Key]) -> set[Key]:
    """The rows that are about one of these records."""
    index = _by_id(dict.fromkeys(rows, 0))
    return {key for job in _named(jobs, index) if (key := _row(job, index)) is not None}


def keys_of(jobs: Iterable[SlurmJob], rows: Iterable[Key]) -> list[Key]:
    """What the journal calls each record: by its row, which a requeue does not change, or as it is now."""
    index = _by_id(dict.fromkeys(rows, 0))
    found = []
    for job in jobs:
        known = _row(job, index) if job.job_id in index or job.array_job_id in index else None
        found.append(known or (job.job_id, job.submit_time or 0))
    return found


def _named(jobs: Iterable[SlurmJob], rows: Mapping[int, object]) -> list[SlurmJob]:
    """The records whose id, or whose array's, has a row: in a long queue, few."""
    return [job for job in jobs if job.job_id in rows or job.array_job_id in rows]


def _by_id(rows: Mapping[Key, T]) -> dict[int, dict[int, T]]:
    found: dict[int, dict[int, T]] = {}
    for (job_id, submitted), row in rows.items():
        found.setdefault(job_id, {})[submitted] = row
    return found


def _row(job: SlurmJob, rows: Mapping[int, Mapping[int, T]]) -> Key | None:
    """The row of a record: of its id, or of the array that it was split from, and of its submit time.

    A requeue gives a job another submit time and counts as a restart. An id alone is not enough: Slurm uses ids again.
    """
    for job_id in dict.fromkeys((job.job_id, job.array_job_id)):
        known = rows.get(job_id)
        if known:
            submitted = job.submit_time or 0
            if submitted in known:
                return job_id, submitted
            if job.restarts:
                return job_id, max(known)
    return None
