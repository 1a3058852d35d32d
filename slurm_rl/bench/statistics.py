"""Paired comparisons with bootstrap intervals: workloads are the unit of pairing and of resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_rl.domain.bootstrap import middle95
from slurm_rl.kernel.arrays import Array

_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95% interval."""

    value: float
    low: float
    high: float

    def without(self, point: float) -> bool:
        """Whether a point lies outside: a difference beyond chance."""
        return self.low > point or self.high < point

    def as_list(self) -> list[float]:
        return [round(v, 4) for v in (self.value, self.low, self.high)]


def mean(values: Sequence[float] | Array, clusters: Sequence[object] | None = None) -> Interval:
    """Mean of values; whole clusters (regimes, say) are drawn, not values, where these belong together."""
    each = np.asarray(values, dtype=float)
    if not len(each):
        return Interval(math.nan, math.nan, math.nan)
    if clusters is not None:
        names = list(dict.fromkeys(clusters))
        index = {name: i for i, name in enumerate(names)}
        of = np.array([index[c] for c in clusters])
        count = np.bincount(of)
        sums = np.bincount(of, weights=each)
    else:
        sums, count = each, np.ones(len(each), dtype=int)
    dice = np.random.default_rng(17)
    drawn = dice.integers(len(sums), size=(_DRAWS, len(sums)))
    means = sums[drawn].sum(axis=1) / count[drawn].sum(axis=1)
    return Interval(float(each.mean()), *middle95(means))


def ratio(mine: Sequence[float], theirs: Sequence[float], clusters: Sequence[object] | None = None) -> Interval:
    """Geometric mean of pairwise ratios."""
    pairs = [math.log(max(a, 1e-9) / max(b, 1e-9)) for a, b in zip(mine, theirs, strict=True)]
    found = mean(pairs, clusters)
    return Interval(*(math.exp(v) for v in (found.value, found.low, found.high)))


def difference(mine: Sequence[float], theirs: Sequence[float], clusters: Sequence[object] | None = None) -> Interval:
    """Mean of pairwise differences."""
    return mean([a - b for a, b in zip(mine, theirs, strict=True)], clusters)
