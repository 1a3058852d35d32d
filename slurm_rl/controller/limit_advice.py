"""Advice on time limits from a user's own finished jobs, given only where it would have held on these jobs before."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_rl.slurm.model import HistoryJob

_ENOUGH = 10  # runs that are like a job
_KEPT = 100  # of the latest runs of a kind
_MOST_KINDS = 20_000
_SHARE = 0.95
_MARGIN = 1.25  # on what so many runs took
_LEVELS = (1, 2, 4)  # times that; the lowest one that held is advised
_HOUR_OF_TRIAL = 3600  # jobs submitted within one hour share their fate: one trial
_TRIALS = 5  # fewer say nothing
_TRIALS_KEPT = 100
_CHANGES_KEPT = 1000
_WORTH = 0.7  # a limit that is not at least so much shorter is not worth a word
_MINUTE, _HOUR = 60, 3600
_STEPS = [m * _MINUTE for m in (5, 10, 15, 20, 30, 45)] + [
    h * _HOUR for h in (1, 1.5, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 36, 48, 72, 96, 120, 168, 240, 336)
]
_ENDED = ("COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY")


@dataclass(frozen=True, slots=True)
class LimitAdvice:
    """How long runs like a job took, and the limit that would do; seconds."""

    runs: int
    within: float  # which 95% of them did not exceed
    limit: int
    asked: int
    alike: str  # what these runs share with the job

    def __str__(self) -> str:
        return (
            f"{self.runs} runs of {self.alike} ended within {duration(self.within)} in 95% of cases: "
            f"{duration(self.limit)} instead of {duration(self.asked)} would do"
        )


def duration(seconds: float) -> str:
    """A duration as people say it: 2 h 10 min."""
    minutes = max(round(seconds / _MINUTE), 1)
    hours, minutes = divmod(minutes, 60)
    if hours >= 72:
        return f"{hours / 24:.3g} days"
    return " ".join([*([f"{hours} h"] if hours else []), *([f"{minutes} min"] if minutes or not hours else [])])


def limit_for(seconds: float) -> int:
    """The next usual limit above a run time and its margin."""
    wanted = seconds * _MARGIN
    return int(next((step for step in _STEPS if step >= wanted), math.ceil(wanted / 86_400) * 86_400))


def _octave(gpus: int, cpus: int) -> tuple[bool, int]:
    return gpus > 0, int(math.log2(max(gpus if gpus > 0 else cpus, 1)))


class RunsAlike:
    """The latest runs of one kind, and how advice from them would have done so far; learned in order of their end.

    Each run is tried against the limit that was advised when its job was submitted, so no trial knows its outcome.
    """

    __slots__ = ("_since", "_trials", "_within", "latest")

    def __init__(self) -> None:
        self.latest: deque[float] = deque(maxlen=_KEPT)
        self._since: list[float] = []  # when 95% of runs began to end within …
        self._within: list[float] = []  # … so many seconds
        self._trials: dict[int, list[int]] = {}  # by hour of submission: jobs, and how many held at each level

    def learn(self, submitted: float, ended: float, elapsed: float) -> None:
        known = bisect_right(self._since, submitted) - 1
        if known >= 0:
            hour = int(submitted // _HOUR_OF_TRIAL)
            if hour not in self._trials and len(self._trials) >= _TRIALS_KEPT:
                del self._trials[next(iter(self._trials))]
            trial = self._trials.setdefault(hour, [0] * (1 + len(_LEVELS)))
            trial[0] += 1
            for i, level in enumerate(_LEVELS, 1):
                trial[i] += elapsed <= limit_for(level * self._within[known])
        self.latest.append(elapsed)
        if len(self.latest) >= _ENOUGH:
            within = sorted(self.latest)[math.ceil(_SHARE * len(self.latest)) - 1]
            if not self._within or within != self._within[-1]:
                self._since.append(ended)
                self._within.append(within)
                if len(self._since) > _CHANGES_KEPT:
                    del self._since[0], self._within[0]

    def advise(self, asked: int, alike: str) -> LimitAdvice | None:
        """The lowest limit that would have held, or None: too little is known, none held, or asked is about right."""
        if not self._within or asked <= 0:
            return None
        level = next((level for i, level in enumerate(_LEVELS, 1) if self._held(i)), None)
        if level is None:
            return None
        within = self._within[-1]
        limit = limit_for(level * within)
        return LimitAdvice(len(self.latest), within, limit, asked, alike) if limit <= _WORTH * asked else None

    def _held(self, i: int) -> bool:
        """Whether a level held for the promised share of jobs, and of trials: one large hour must not outvote many."""
        trials = self._trials.values()
        if len(trials) < _TRIALS:
            return False
        jobs, held = sum(t[0] for t in trials), sum(t[i] for t in trials)
        return held >= _SHARE * jobs and sum(t[i] / t[0] for t in trials) >= _SHARE * len(trials)


class RunsOfUsers:
    """The latest run times of each user's jobs, by name and by size; one thread learns, any may ask."""

    def __init__(self) -> None:
        self._runs: dict[tuple[object, ...], RunsAlike] = {}

    def learn(self, rows: Iterable[HistoryJob]) -> None:
        for row in sorted(rows, key=lambda row: row.end_time or 0):
            if row.state not in _ENDED or not row.user:
                continue
            size = _octave(sum(row.gpus_requested.values()) or sum(row.gpus_allocated.values()), row.cpus)
            for key in ((row.user, row.name, size), (row.user, size)):
                if key not in self._runs:
                    if len(self._runs) >= _MOST_KINDS:
                        continue
                    self._runs[key] = RunsAlike()
                ended = row.end_time or 0
                submitted = ended - row.elapsed if row.submit_time is None else row.submit_time
                self._runs[key].learn(submitted, ended, float(row.elapsed))

    def advise(self, user: str, name: str, gpus: int, cpus: int, limit: int) -> LimitAdvice | None:
        """What this user's finished jobs of that name and size say of a limit; else those of that size."""
        size = _octave(gpus, cpus)
        for key, alike in (((user, name, size), f"{name!r}"), ((user, size), "your jobs of this size")):
            runs = self._runs.get(key)
            if runs is not None and len(runs.latest) >= _ENOUGH:
                return runs.advise(limit, alike)
        return None
