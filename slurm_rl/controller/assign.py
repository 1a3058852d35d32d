"""Which SiteFactors bring a queue into a wanted order with the fewest writes."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence


def assign(base: Sequence[int], site: Sequence[int], low: Sequence[int], high: Sequence[int]) -> list[int]:
    """SiteFactors for jobs given in their wanted order, so that base + factor falls from job to job.

    `base` is Slurm's own priority without the factor, `site` the present factor, `low` and `high` bound the new one.
    As many jobs as possible keep the factor they have (the dead band); the others are spread evenly between their
    neighbours. Bounds rule over the order: where they leave no room, jobs tie, or stay out of order.
    """
    count = len(base)
    if count == 0:
        return []
    lowest = [b + f for b, f in zip(base, low, strict=True)]
    highest = [b + f for b, f in zip(base, high, strict=True)]
    now = [b + f for b, f in zip(base, site, strict=True)]
    gap, floor, roof = _widest_gap(lowest, highest)
    kept = _keep(now, floor, roof, gap)
    # The spread's ends: the best place that the first job can have, and the last place that the last one can have.
    anchors = [(-1, roof[0] + gap), *((i, now[i]) for i in kept), (count, floor[-1] - gap)]
    value = list(now)
    for (a, top), (b, bottom) in itertools.pairwise(anchors):
        for i in range(a + 1, b):
            even = top + (bottom - top) * (i - a) // (b - a)
            even = max(even, floor[i], bottom + gap * (b - i))
            value[i] = min(even, roof[i], top - gap * (i - a))
    return [min(max(v, lo), hi) - b for v, lo, hi, b in zip(value, lowest, highest, base, strict=True)]


def _widest_gap(lowest: Sequence[int], highest: Sequence[int]) -> tuple[int, list[int], list[int]]:
    """The distance to keep between neighbours, and the lowest and highest places each job can have with it.

    A quarter of what an even spread would give, so that small changes of Slurm's own priorities force no rewriting.
    """
    gap = max((max(highest) - min(lowest)) // max(4 * (len(lowest) - 1), 1), 1)
    while True:
        floor, roof = list(lowest), list(highest)
        for i in range(len(floor) - 2, -1, -1):
            floor[i] = max(floor[i], floor[i + 1] + gap)
        for i in range(1, len(roof)):
            roof[i] = min(roof[i], roof[i - 1] - gap)
        if all(a <= b for a, b in zip(floor, roof, strict=True)):
            return gap, floor, roof
        if gap == 0:
            return 0, [min(a, b) for a, b in zip(floor, roof, strict=True)], roof
        gap //= 2


def _keep(now: Sequence[int], floor: Sequence[int], roof: Sequence[int], gap: int) -> list[int]:
    """The longest run of jobs, by position, whose present places are possible and leave the gap to each between."""
    tails: list[int] = []  # negated now + gap·position of the best chain of each length: never decreasing
    ends: list[int] = []
    before: dict[int, int] = {}
    for i, v in enumerate(now):
        if not floor[i] <= v <= roof[i]:
            continue
        key = -(v + gap * i)
        at = bisect.bisect_right(tails, key)
        if at == len(tails):
            tails.append(key)
            ends.append(i)
        else:
            tails[at] = key
            ends[at] = i
        before[i] = ends[at - 1] if at else -1
    kept: list[int] = []
    i = ends[-1] if ends else -1
    while i >= 0:
        kept.append(i)
        i = before[i]
    return kept[::-1]
