"""Arrival times to order: a rate over time with cycles and bursts, and draws from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_rl.errors import unknown_name
from slurm_rl.traces.trace import Floats

HOUR, DAY, WEEK = 3600, 86_400, 604_800
# Submissions by hour of the day at a site whose users work by day: quiet at night, a dip at lunch, a late second wind.
_BY_HOUR = np.array(
    "0.55 0.45 0.38 0.33 0.30 0.32 0.42 0.62 0.95 1.35 1.60 1.62 "
    "1.38 1.50 1.70 1.75 1.68 1.50 1.25 1.10 1.05 1.00 0.88 0.72".split(),
    dtype=np.float64,
)
_BY_WEEKDAY = np.array([1.15, 1.2, 1.2, 1.15, 1.1, 0.65, 0.55])  # the clock starts on a Monday at midnight
SHAPES = ("base", "bursty", "diurnal", "shifted", "work")


@dataclass(frozen=True, slots=True)
class Rate:
    """A relative arrival rate, constant over steps of `step` seconds, repeated over its length."""

    step: int
    values: Floats

    def times(self, count: int, span: float, generator: np.random.Generator) -> Floats:
        """`count` arrival times in [0, span), sorted: a Poisson process with this rate, given its number of points."""
        return self.place(np.sort(generator.random(count)), span)

    def place(self, shares: Floats, span: float) -> Floats:
        """Times at which these shares (0 to 1, sorted) of all arrivals have come."""
        edges, total = self._cumulated(span)
        return np.asarray(np.interp(shares * total[-1], total, edges))

    def shares(self, times: Floats, span: float) -> Floats:
        """The inverse of `place`."""
        edges, total = self._cumulated(span)
        return np.asarray(np.interp(times, edges, total) / total[-1])

    def _cumulated(self, span: float) -> tuple[Floats, Floats]:
        steps = int(np.ceil(span / self.step))
        edges = np.minimum(np.arange(steps + 1, dtype=np.float64) * self.step, span)
        rate = np.resize(self.values, steps)
        return edges, np.concatenate(([0.0], np.cumsum(rate * np.diff(edges))))


def rate_of(shape: str, *, burst: float = 3.0) -> Rate:
    """The rate of a named shape.

    `base` is constant; `bursty` alternates between 3 and 0.3 times every 300 s; `diurnal` swings between 0.5 and 1.5
    over a day, `shifted` does so a quarter of a day earlier; `work` has working hours and weekends.
    """
    if shape == "base":
        return Rate(DAY, np.ones(1))
    if shape == "bursty":
        return Rate(300, np.array([burst, 0.1 * burst]))
    if shape in ("diurnal", "shifted"):
        phase = np.pi / 2 if shape == "shifted" else 0.0
        middle = np.arange(0.5, 288) * 300
        return Rate(300, 1.0 + 0.5 * np.sin(2 * np.pi * middle / DAY + phase))
    if shape == "work":
        return Rate(HOUR, (_BY_WEEKDAY[:, None] * _BY_HOUR[None, :]).ravel())
    raise unknown_name("arrival shape", shape, SHAPES)


def fitted_rate(submit: Floats, span: float) -> Rate:
    """The cycle of a trace: by hour of the week, or of the day when it is shorter than two weeks; smoothed."""
    period = WEEK if span >= 2 * WEEK else DAY
    if span < DAY:
        return Rate(DAY, np.ones(1))
    bins = period // HOUR
    hours = np.arange(int(np.ceil(span / HOUR)))
    exposure = np.bincount(hours % bins, minlength=bins).astype(np.float64)
    counts = np.bincount((submit // HOUR).astype(np.int64) % bins, minlength=bins).astype(np.float64)
    rate = counts / np.maximum(exposure, 1.0)
    smooth = (np.roll(rate, 1) + 2 * rate + np.roll(rate, -1)) / 4
    # A single burst must not become a weekly event, nor an empty hour a wall.
    middle = max(float(np.median(smooth[smooth > 0])) if (smooth > 0).any() else 1.0, 1e-12)
    return Rate(HOUR, np.clip(smooth, 0.1 * middle, 10 * middle))
