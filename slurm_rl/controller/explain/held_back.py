"""How long each cause has held a job back: Slurm's reason at each tick, added up until the job leaves the queue."""

from __future__ import annotations

import math

from slurm_rl.obs.forecast_store import ForecastStore
from slurm_rl.slurm.model import SlurmJob, SlurmState

Key = tuple[int, int]  # job id, submit time

_LONGEST = 300.0  # seconds between two looks that count: nobody knows what lies in a longer gap
_SAVE_EVERY = 300.0  # seconds in which each waiting job is written once, in case we are killed
_MOST = 1_000_000  # jobs that are followed; later ones have no causes until others leave


class _Held:
    """One job: what holds it now and since when, and what held it before."""

    __slots__ = ("before", "reason", "since", "user")

    def __init__(self, user: str, reason: str, since: float, before: dict[str, float] | None) -> None:
        self.user, self.reason, self.since, self.before = user, reason, since, before

    def causes(self, clock: float) -> dict[str, float]:
        found = dict(self.before or {})
        found[self.reason] = found.get(self.reason, 0.0) + clock - self.since
        return found


class HeldBack:
    """Causes of the jobs that wait; written when a job leaves, and now and then in case we are killed.

    A job whose reason has not changed costs a look, no sum: time is counted once for all, by a clock of observed time.
    """

    def __init__(self, store: ForecastStore) -> None:
        self.store = store
        self._jobs: dict[Key, _Held] = {}
        self._seen: dict[int, SlurmJob] = {}  # by identity: who waited at the last look
        self._full = False  # somebody is not followed
        self._last = 0.0
        self._clock = 0.0  # seconds that were observed
        self._due: list[Key] = []  # still to be written in this round

    def see(self, state: SlurmState) -> None:
        now = state.taken
        first = not self._last
        elapsed = 0.0 if first else min(max(now - self._last, 0.0), _LONGEST)
        self._last = now
        self._clock += elapsed
        waiting = [j for j in state.jobs if j.state == "PENDING"]
        here = dict(zip(map(id, waiting), waiting, strict=True))
        # A record that is the very object of the last look has neither come nor changed.
        changed = [job for i, job in here.items() if i not in self._seen]
        absent = [job for i, job in self._seen.items() if i not in here]
        self._seen = here
        # What was recorded before a restart of ours.
        before = self.store.causes({(j.job_id, j.submit_time or 0) for j in waiting}) if first else {}
        jobs, clock = self._jobs, self._clock
        gone = {key: jobs[key] for job in absent if (key := (job.job_id, job.submit_time or 0)) in jobs}
        full, self._full = self._full, False
        for job in waiting if full else changed:  # there may be room by now for those that were not followed
            submitted = job.submit_time or 0
            key = (job.job_id, submitted)
            gone.pop(key, None)
            held = jobs.get(key)
            if held is None:
                if len(jobs) >= _MOST:
                    self._full = True
                    continue
                seen = min(elapsed, max(now - (submitted or now), 0.0))
                jobs[key] = _Held(job.user, _cause(job.reason), clock - seen, before.get(key))
            elif held.reason != job.reason and held.reason != (reason := _cause(job.reason)):
                held.before = held.causes(clock - elapsed)
                held.reason, held.since = reason, clock - elapsed
        left = []
        for key, held in gone.items():
            del jobs[key]
            left.append((key, held.user, held.causes(clock - elapsed)))
        self._save(left, elapsed, now)

    def _save(self, left: list[tuple[Key, str, dict[str, float]]], elapsed: float, now: float) -> None:
        """Writes jobs that left, and some that wait: all at once would hold up a tick."""
        if not self._due:
            self._due = list(self._jobs)
        count = math.ceil(len(self._jobs) * elapsed / _SAVE_EVERY)
        portion, self._due = self._due[:count], self._due[count:]
        waiting = [(key, held.user, held.causes(self._clock)) for key in portion if (held := self._jobs.get(key))]
        if left or waiting:
            self.store.hold_back([*left, *waiting], now)

    def of(self, job_id: int, submit_time: int) -> dict[str, float]:
        """Seconds by reason of a job that waits, the weightiest first."""
        held = self._jobs.get((job_id, submit_time))
        return dict(sorted(held.causes(self._clock).items(), key=lambda c: -c[1])) if held is not None else {}


def _cause(reason: str) -> str:
    return reason.partition(",")[0].strip("()") or "None"
