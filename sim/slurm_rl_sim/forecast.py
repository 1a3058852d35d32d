"""A start time as a median and a range that holds four starts of five, calibrated by earlier forecasts.

The futures of `forward.py` know nothing of what they leave out: nodes that fail, users who cancel, limits of accounts.
A Calibration learns from forecasts whose outcome is known by now how far to move each end and the median (conformal
prediction on the logarithm of the wait), in replay and live alike, from the past alone. Which share of the outcomes an
end leaves out follows the outcomes, too (adaptive conformal inference): a bad day among the learned ones would make
ranges too wide for as long as it is remembered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_rl.kernel.arrays import Array

LOW, HIGH = 0.1, 0.9  # what the range leaves out on either side
FLOOR = 60.0  # seconds: waits below are as good as none, so logarithms are of wait + FLOOR
_KEPT = 600  # of the latest forecasts
_ENOUGH = 30  # outcomes below which nothing is put right
_STEP = 0.03  # how far one outcome moves the level of an end; chosen on windows that docs/forecasts.md does not report
_LEVELS = ((0.005, 0.4), (0.6, 0.995))  # bounds of the levels of the low and of the high end


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds from the moment it was made; inf: beyond what was simulated."""

    median: float
    low: float
    high: float

    def holds(self, wait: float) -> bool:
        return self.low <= wait <= self.high


def log_wait(seconds: Any) -> Any:
    """The scale on which forecasts are compared and put right."""
    return np.log(np.asarray(seconds, dtype=float) + FLOOR)


def from_log(value: Any) -> Any:
    return np.maximum(np.exp(np.minimum(value, 40.0)) - FLOOR, 0.0)


def summarise(starts: Array, low: float = LOW, high: float = HIGH) -> list[Forecast]:
    """A forecast for each column of [draws, jobs]."""
    ordered = np.sort(starts, axis=0)
    draws = len(ordered)
    at = [min(int(q * draws), draws - 1) for q in (0.5, low, high)]
    return [Forecast(*(float(ordered[k, j]) for k in at)) for j in range(ordered.shape[1])]


@dataclass(slots=True)
class Made:
    """A forecast as it came out of the futures, when it was made, and what became of it."""

    time: float
    raw: Forecast
    wait: float = -1.0  # until the start; -1: not known
    told: Forecast | None = None  # as it was corrected then
    counted: bool = False  # whether its outcome has moved the levels


class Calibration:
    """The latest forecasts with their outcomes; `corrected` puts a new one right by them."""

    def __init__(self) -> None:
        self._made: deque[Made] = deque(maxlen=_KEPT)
        self._shift: tuple[float, float, float] = (0.0, 0.0, 0.0)
        self._levels = [LOW, HIGH]
        self.outcomes = 0

    def note(self, made: Made) -> None:
        """Adds a forecast; its outcome may be written to it later, followed by `learn`."""
        self._made.append(made)

    def drop(self, made: Made) -> None:
        """Forgets a forecast that can have no outcome."""
        self._made = deque((m for m in self._made if m is not made), maxlen=_KEPT)

    def learn(self, now: float) -> None:
        """Takes over what is known by now."""
        self._move_levels(now)
        logs, waits = [], []
        for made in self._made:
            wait = made.wait
            if wait < 0 or made.time + wait > now:  # not started by now
                wait = now - made.time
                if wait <= made.raw.high:
                    continue
            if np.isfinite(made.raw.high) and made.time < now:
                logs.append((made.raw.median, made.raw.low, made.raw.high))
                waits.append(wait)
        self.outcomes = len(waits)
        if len(waits) < _ENOUGH:
            self._shift = (0.0, 0.0, 0.0)
            return
        found, told = log_wait(waits), log_wait(logs)
        off = found[:, None] - told
        self._shift = (
            float(np.quantile(off[:, 0], 0.5)),
            float(np.quantile(off[:, 1], self._levels[0])),
            float(np.quantile(off[:, 2], self._levels[1])),
        )

    def _move_levels(self, now: float) -> None:
        """An end that outcomes have crossed too rarely moves inwards, one that they have crossed too often outwards."""
        known = [
            (m.time + m.wait, k, m, m.told)
            for k, m in enumerate(self._made)
            if not m.counted and m.wait >= 0 and m.told is not None and m.time < now and m.time + m.wait <= now
        ]
        for _, _, made, told in sorted(known, key=lambda row: row[:2]):
            made.counted = True
            steps = (LOW - (made.wait < told.low), (made.wait > told.high) - (1.0 - HIGH))
            for end, (step, (least, most)) in enumerate(zip(steps, _LEVELS, strict=True)):
                self._levels[end] = min(max(self._levels[end] + _STEP * step, least), most)

    def corrected(self, raw: Forecast) -> Forecast:
        """The forecast with its median and ends moved as far as earlier ones should have been."""
        median, low, high = (
            float(from_log(log_wait(value) + shift)) if shift and np.isfinite(value) else value
            for value, shift in zip((raw.median, raw.low, raw.high), self._shift, strict=True)
        )
        low, high = min(low, high), max(low, high)
        return Forecast(min(max(median, low), high), low, high)
