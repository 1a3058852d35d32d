"""Errors of run-time estimates: learned from finished jobs, and run times drawn from them.

A residual is (log run time − log estimate) / spread of a job as it was estimated before it ended. Their recent values
take the place of a normal distribution: real run times have heavier ends, on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slurm_rl.kernel.arrays import Array

_KEPT = 4000  # of the latest finished jobs
_ENOUGH = 100  # below, a normal distribution stands in for those that are lacking
_EACH = 10  # points of that distribution for each
_TAIL = 25  # residuals above a bound below which the tail is an exponential
_LEAST_SPREAD = 0.1


class Residuals:
    """The latest residuals; `note` adds, `draw` draws."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._values = np.array(list(values), dtype=float)[-_KEPT:]
        self._sorted: Array | None = None

    def __len__(self) -> int:
        return len(self._values)

    def copy(self) -> Residuals:
        """As it is now."""
        other = Residuals()
        other._values, other._sorted = self._values, self._sorted
        return other

    def note(self, log_median: Array, spread: Array, run: Array) -> None:
        """Learns from jobs that have ended: what was expected, and how long they ran."""
        found = (np.log(np.maximum(run, 1.0)) - log_median) / np.maximum(spread, _LEAST_SPREAD)
        self._values = np.concatenate([self._values, np.clip(found, -20.0, 20.0)])[-_KEPT:]
        self._sorted = None

    def draw(self, luck: Array, log_median: Array, spread: Array, ran: Array, limit: Array) -> Array:
        """A run time of each job by its luck (0 shortest … 1 longest), longer than it ran by now, within its limit."""
        wide = np.maximum(spread, _LEAST_SPREAD)
        low = np.where(ran > 0, (np.log(np.maximum(ran, 1.0)) - log_median) / wide, -np.inf)
        drawn = np.exp(np.minimum(log_median + wide * self._above(luck, low), 40.0))
        return np.clip(drawn, np.minimum(ran + 1.0, limit), limit)

    def _above(self, luck: Array, low: Array) -> Array:
        """The residual at each one's luck, among those above its bound."""
        known = self._known()
        first = np.searchsorted(known, low, side="right")
        left = len(known) - first
        at = np.minimum(first + (luck * left).astype(np.int64), len(known) - 1)
        scale = float(np.mean(known[-_TAIL:] - known[-_TAIL]))
        tail = low + scale * -np.log(np.maximum(1.0 - luck, 1e-12))
        found: Array = np.where(left >= _TAIL, known[at], np.where(np.isfinite(low), tail, known[at]))
        return found

    def _known(self) -> Array:
        if self._sorted is None:
            lacking = _ENOUGH - len(self._values)
            if lacking > 0:
                normal = np.random.default_rng(0).normal(size=_EACH * lacking)
                self._sorted = np.sort(np.concatenate([normal, np.repeat(self._values, _EACH)]))
            else:
                self._sorted = np.sort(self._values)
        return self._sorted
