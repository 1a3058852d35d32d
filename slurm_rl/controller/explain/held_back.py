"""How long each cause has held a job back: Slurm's reason at each tick, added up until the job leaves the queue."""

from __future__ import annotations

from slurm_rl.obs.foresight import ForecastStore
from slurm_rl.slurm.model import SlurmState

Key = tuple[int, int]  # job id, submit time

_LONGEST = 300.0  # seconds between two looks that count: nobody knows what lies in a longer gap
_SAVE_EVERY = 300.0
_MOST = 100_000  # jobs


class HeldBack:
    """Causes of the jobs that wait; written when a job leaves, and now and then in case we are killed."""

    def __init__(self, store: ForecastStore) -> None:
        self.store = store
        self._jobs: dict[Key, tuple[str, dict[str, float]]] = {}
        self._last = 0.0
        self._saved = 0.0

    def see(self, state: SlurmState) -> None:
        now = state.taken
        first = not self._last
        elapsed = 0.0 if first else min(max(now - self._last, 0.0), _LONGEST)
        self._last = now
        self._saved = self._saved or now
        there: set[Key] = set()
        for job in state.jobs:
            if not job.pending or len(self._jobs) >= _MOST:
                continue
            key = (job.job_id, job.submit_time or 0)
            there.add(key)
            if key not in self._jobs:
                before = self.store.causes(key) if first else {}  # what was recorded before a restart of ours
                self._jobs[key] = (job.user, before)
            causes = self._jobs[key][1]
            reason = job.reason.split(",")[0].strip("()") or "None"
            causes[reason] = causes.get(reason, 0.0) + min(elapsed, max(now - (job.submit_time or now), 0.0))
        left = [(key, *self._jobs.pop(key)) for key in [k for k in self._jobs if k not in there]]
        if now - self._saved > _SAVE_EVERY:
            self._saved = now
            left += [(key, user, dict(causes)) for key, (user, causes) in self._jobs.items()]
        if left:
            self.store.hold_back(left, now)

    def of(self, job_id: int, submit_time: int) -> dict[str, float]:
        """Seconds by reason of a job that waits, the weightiest first."""
        causes = self._jobs.get((job_id, submit_time), ("", {}))[1]
        return dict(sorted(causes.items(), key=lambda c: -c[1]))
