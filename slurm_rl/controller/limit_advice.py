"""Advice on time limits from a user's own finished jobs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_rl.slurm.model import HistoryJob

_ENOUGH = 10  # runs that are like a job
_KEPT = 100  # of the latest runs of a kind
_MOST_KINDS = 50_000
_SHARE = 0.95
_MARGIN = 1.25  # on what so many runs took
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


def advise_limit(runs: Iterable[float], asked: int, alike: str) -> LimitAdvice | None:
    """Advice from run times, or None: too few of them, or the limit is about right."""
    known = sorted(runs)
    if len(known) < _ENOUGH or asked <= 0:
        return None
    within = known[math.ceil(_SHARE * len(known)) - 1]
    limit = limit_for(within)
    return LimitAdvice(len(known), within, limit, asked, alike) if limit <= _WORTH * asked else None


class RunsOfUsers:
    """The latest run times of each user's jobs, by name and by size; one thread learns, any may ask."""

    def __init__(self) -> None:
        self._runs: dict[tuple[object, ...], deque[float]] = {}

    def learn(self, rows: Iterable[HistoryJob]) -> None:
        for row in rows:
            if row.state not in _ENDED or not row.user:
                continue
            size = _octave(sum(row.gpus_requested.values()) or sum(row.gpus_allocated.values()), row.cpus)
            for key in ((row.user, row.name, size), (row.user, size)):
                if key not in self._runs:
                    if len(self._runs) >= _MOST_KINDS:
                        continue
                    self._runs[key] = deque(maxlen=_KEPT)
                self._runs[key].append(float(row.elapsed))

    def advise(self, user: str, name: str, gpus: int, cpus: int, limit: int) -> LimitAdvice | None:
        """What this user's finished jobs of that name and size say of a limit; else those of that size."""
        size = _octave(gpus, cpus)
        for key, alike in (((user, name, size), f"{name!r}"), ((user, size), "your jobs of this size")):
            runs = self._runs.get(key)
            if runs is not None and len(runs) >= _ENOUGH:
                return advise_limit(list(runs), limit, alike)
        return None
