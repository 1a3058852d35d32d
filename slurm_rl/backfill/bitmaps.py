"""Sets of nodes over time, as sched/backfill keeps them: which nodes no pending job has reserved, from when to when.

The bits are those of pieces (pieces.py): of nodes, unless the World has runs.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.rows import row_at
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Record
from slurm_rl.kernel.jit import inlined, inner

ALLOWED, CHOSEN, LEAVING, FIRST_SET = np.arange(4)  # rows of the table `bitmaps`: scratch, and then the sets over time


@inlined
def has(bits: np.ndarray, row: int, n: int) -> bool:
    """Whether a set has a node."""
    return (bits[row, n >> 6] >> (n & 63)) & 1 != 0


@inlined
def all_free(w: Record, begin: int) -> int:
    """One set of all nodes from `begin` on; the number of sets."""
    bits = t.bitmaps(w)
    t.rows(w).time[0] = begin
    t.rows(w).row[0] = FIRST_SET
    for k in range(w.first_word, w.last_word):
        bits[FIRST_SET, k] = -1
    return 1


@inner
def free_between(w: Record, count: int, base: int, begin: int, end: int, horizon: int, bound: int) -> int:
    """Leaves in ALLOWED the nodes of a row of `usable` that are free from `begin` to `end`; when to look again, or 0.

    S7: that is when the first set begins that has a node which those before it, from `begin` on, lack. If `bound` is
    later than that, nobody asks for ALLOWED, and it is not finished.
    """
    bits, usable, rows = t.bitmaps(w), t.usable(w), t.rows(w)
    low, high = w.first_word, w.last_word
    for k in range(low, high):
        bits[ALLOWED, k] = usable[base, k]
    if begin >= horizon:
        return 0
    i = row_at(w, count, begin + 1) - 1
    later = 0
    while i < count:
        inside = rows.time[i] <= end
        if not inside and later > 0:
            break
        here = rows.row[i]
        if later == 0 and i + 1 < count:
            following = rows.row[i + 1]
            for k in range(low, high):
                if usable[base, k] & bits[following, k] & ~(bits[ALLOWED, k] & bits[here, k]):
                    later = rows.time[i + 1]
                    break
            if later > 0 and bound > later:
                break
        if not inside:
            break
        for k in range(low, high):
            bits[ALLOWED, k] &= bits[here, k]
        i += 1
    return later


@inner
def overlaps(w: Record, count: int, begin: int, end: int, horizon: int) -> bool:
    """Whether a node of CHOSEN is reserved at some time from `begin` to `end`."""
    bits, rows = t.bitmaps(w), t.rows(w)
    i = max(row_at(w, count, begin + 1) - 1, 0)
    if begin >= horizon:
        return False
    while i < count and rows.time[i] < end:
        for k in range(w.first_word, w.last_word):
            if bits[CHOSEN, k] & ~bits[rows.row[i], k]:
                return True
        i += 1
    return False


@inlined
def _split(w: Record, count: int, instant: int) -> int:
    """Makes sure that a set begins at `instant`; the new number of sets."""
    rows, bits = t.rows(w), t.bitmaps(w)
    at = row_at(w, count, instant)
    if at < count and rows.time[at] == instant:
        return count
    for i in range(count, at, -1):
        rows.time[i] = rows.time[i - 1]
        rows.row[i] = rows.row[i - 1]
    rows.time[at] = instant
    rows.row[at] = FIRST_SET + count
    for k in range(w.first_word, w.last_word):
        bits[FIRST_SET + count, k] = bits[rows.row[at - 1], k]
    return count + 1


@inner
def reserve(w: Record, count: int, begin: int, end: int, horizon: int) -> int:
    """S5: takes the nodes of CHOSEN, whole, out of the sets from `begin` to `end`; the new number of sets."""
    rows, bits = t.rows(w), t.bitmaps(w)
    if begin >= horizon:
        return count
    count = _split(w, count, begin)
    if end < horizon:
        count = _split(w, count, end)
    i = row_at(w, count, begin)
    while i < count and rows.time[i] < end:
        for k in range(w.first_word, w.last_word):
            bits[rows.row[i], k] &= ~bits[CHOSEN, k]
        i += 1
    return count
