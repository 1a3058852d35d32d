"""Which SiteFactors bring a queue into a wanted order with the fewest writes."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence

_FEW = 40  # of so many jobs, one may move without the others making room
_STEP = 64  # a job that stands so many places down may be off by a place more
_MANY = 10  # of so many jobs, if more than one is far off, there is no near enough
_EXACT = 32  # jobs at the head that stand as decided, at least
_TOLERATED = 0.0035  # of all pairs may stand the other way round: Kendall's tau is 1 minus twice that


def tolerated(stands: Sequence[int], exact: int) -> list[int]:
    """The decided order (0, 1, …) bent towards the one that jobs have: by a little, where it makes no difference.

    `stands[i]` is the place at which the i-th job stands. The first `exact` jobs, which may start soon, go as decided.
    Farther down, scores that change with every second of waiting swap neighbours for ever, while the jobs start at
    much the same time: a job that stands near enough stays. Where too many pairs are the wrong way round then, those
    that are farthest off go to their places. A queue of which many jobs are far off is brought into order as decided.
    """
    count, exact = len(stands), max(exact, _EXACT)
    most = 1 + count // _STEP
    while most:
        near = [
            s if i >= exact and s >= exact and abs(s - i) <= min(1 + i // _STEP, most) else i
            for i, s in enumerate(stands)
        ]
        if sum(near[i] == i != s for i, s in enumerate(stands)) > count // _MANY:
            break
        order = sorted(range(count), key=lambda i: (near[i], i))
        if _out_of_order(order) <= _TOLERATED * count * (count - 1) / 2:
            return order
        most = most * 7 // 8
    return list(range(count))


def _out_of_order(order: Sequence[int]) -> int:
    seen: list[int] = []
    wrong = 0
    for i in order:
        wrong += len(seen) - bisect.bisect_left(seen, i)
        bisect.insort(seen, i)
    return wrong


def assign(
    base: Sequence[int],
    site: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    writes: int | None = None,
) -> list[int]:
    """SiteFactors for jobs given in their wanted order, so that base + factor falls from job to job.

    `base` is Slurm's own priority without the factor, `site` the present factor, `low` and `high` bound the new one.
    As many jobs as possible keep the factor they have (the dead band); the others are spread evenly between their
    neighbours. Bounds rule over the order: where they leave no room, jobs tie, or stay out of order.

    If that takes more than `writes` changes, some are made that bring the queue nearer to it: no two jobs go the wrong
    way round that were right, or fewer pairs are wrong than before.
    """
    count = len(base)
    if count == 0:
        return []
    now = [b + f for b, f in zip(base, site, strict=True)]
    within = all(a <= f <= b for a, f, b in zip(low, site, high, strict=True))
    if within and all(a > b for a, b in itertools.pairwise(now)):
        return list(site)
    # A few jobs go between their neighbours as closely as need be; only many are worth making room for all.
    tight = _spread(base, site, low, high, count, gap=1)
    if _changed(tight, site) <= min(count // _FEW, count if writes is None else writes) and not _inversions(
        base, tight
    ):
        return tight
    whole = _spread(base, site, low, high, count)
    if writes is None or _changed(whole, site) <= writes:
        return whole
    found = _limited(base, site, low, high, whole, writes)
    if _inversions(base, whole):  # bounds leave no room
        return found
    # Often a few jobs stand far off in a queue that is crowded: they go between their neighbours, even where that
    # makes them tie, and what is left of the writes makes room.
    moved = _spread(base, site, low, high, count, gap=0)
    left = writes - _changed(moved, site)
    if not 0 < left < writes:
        return found
    roomier = _limited(base, moved, low, high, _spread(base, moved, low, high, count), left)
    if _changed(roomier, site) > writes:
        return found
    return min((found, roomier), key=lambda factors: _inversions(base, factors))


def _limited(
    base: Sequence[int], site: Sequence[int], low: Sequence[int], high: Sequence[int], whole: Sequence[int], writes: int
) -> list[int]:
    """Some changes on the way to the whole: such that put no pair wrong, those of the jobs that stand farthest off, or
    such that bring the head of the queue alone into order, above all others; whichever leave the least wrong.
    """
    count = len(base)
    now = [b + f for b, f in zip(base, site, strict=True)]
    stands = {i: place for place, i in enumerate(sorted(range(count), key=lambda i: -now[i]))}
    far = sorted(range(count), key=lambda i: -abs(stands[i] - i))
    choices = [_made(whole, site, order, writes) for order in (steadily(whole, site), far)]
    # The longest head that can be had, if there is room; the shortest one has as many jobs as there are writes.
    short, long = writes, 0 if _inversions(base, whole) else count - 1
    while short <= long:
        middle = (short + long) // 2
        tried = _head(base, site, low, high, middle)
        if tried is None or _changed(tried, site) > writes:
            long = middle - 1
        else:
            choices.append(tried)
            short = middle + 1
    return min(choices, key=lambda factors: _inversions(base, factors))


def steadily(factors: Sequence[int], site: Sequence[int]) -> list[int]:
    """Jobs in an order of change in which, at any time, no two are the wrong way round that neither were so before nor
    are to be: who rises, from the head on, then who falls, from the end on.
    """
    rise = [i for i in range(len(site)) if factors[i] >= site[i]]
    fall = [i for i in range(len(site)) if factors[i] < site[i]]
    return rise + fall[::-1]


def _head(
    base: Sequence[int], site: Sequence[int], low: Sequence[int], high: Sequence[int], length: int
) -> list[int] | None:
    """The first jobs in order, above those behind them, which stay where they are; with room left for these.

    None if somebody behind stands where not all of the first can get above.
    """
    ceiling = max(b + f for b, f in zip(base[length:], site[length:], strict=True))
    if any(b + f <= ceiling for b, f in zip(base[:length], high, strict=False)):
        return None
    above = [max(f, ceiling + 1 - b) for f, b in zip(low[:length], base, strict=False)]
    # It is built up tick by tick, and keeps whatever stands right, however closely.
    found = _spread(base[:length], site[:length], above, high[:length], len(base), ceiling, gap=1)
    places = [*(b + f for b, f in zip(base, found, strict=False)), ceiling]
    return found + list(site[length:]) if all(a > b for a, b in itertools.pairwise(places)) else None


def _made(factors: Sequence[int], site: Sequence[int], jobs: Iterable[int], writes: int) -> list[int]:
    """The present factors with so many changes made, of these jobs in turn."""
    found = list(site)
    for i in [i for i in jobs if factors[i] != site[i]][:writes]:
        found[i] = factors[i]
    return found


def _inversions(base: Sequence[int], factors: Sequence[int]) -> int:
    """How many pairs of jobs stand the wrong way round, ties included."""
    seen: list[int] = []
    wrong = 0
    for b, f in zip(base, factors, strict=True):
        wrong += bisect.bisect_right(seen, b + f)  # those before that stand no higher
        bisect.insort(seen, b + f)
    return wrong


def _changed(factors: Sequence[int], site: Sequence[int]) -> int:
    return sum(a != b for a, b in zip(factors, site, strict=True))


def _spread(
    base: Sequence[int],
    site: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    last: int,
    bottom: int | None = None,
    gap: int | None = None,
) -> list[int]:
    """Keeps what can be kept and spreads the rest, leaving room above `bottom` for jobs up to position `last`.

    Neighbours keep the gap, or else a quarter of what an even spread would give, so that small changes of Slurm's own
    priorities force no rewriting; or less, where there is no room for it. With a gap of 0 they may tie.
    """
    lowest = [b + f for b, f in zip(base, low, strict=True)]
    highest = [b + f for b, f in zip(base, high, strict=True)]
    now = [b + f for b, f in zip(base, site, strict=True)]
    if gap is None:
        gap = max((max(highest) - min(lowest)) // max(4 * (len(base) - 1), 1), 1)
    gap, floor, roof = _possible_gap(lowest, highest, gap)
    kept = _keep(now, floor, roof, gap)
    # The spread's ends: the best place that the first job can have, and the last place that the last one can have.
    end = floor[-1] - gap if bottom is None else bottom
    anchors = [(-1, roof[0] + gap), *((i, now[i]) for i in kept), (last, end)]
    value = list(now)
    for (a, top), (b, below) in itertools.pairwise(anchors):
        for i in range(a + 1, min(b, len(base))):
            even = top + (below - top) * (i - a) // (b - a)
            even = max(even, floor[i], below + gap * (b - i))
            value[i] = min(even, roof[i], top - gap * (i - a))
    return [min(max(v, lo), hi) - b for v, lo, hi, b in zip(value, lowest, highest, base, strict=True)]


def _possible_gap(lowest: Sequence[int], highest: Sequence[int], gap: int) -> tuple[int, list[int], list[int]]:
    """The distance to keep between neighbours, halved until it is possible, and the bounds that it puts on each job."""
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
