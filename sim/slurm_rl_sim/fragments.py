"""While jobs wait: the allocated share, and the share of free resources on partly used nodes.

The one definition of fragmentation: the metric is one slice of time, the report's chart many.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.jit import kernel


def queue_lengths(submit: Array, start: Array) -> tuple[Array, Array]:
    """(moments, jobs that wait from then on), of jobs that were submitted and started then."""
    waits = start > submit
    time = np.concatenate([submit[waits], start[waits]])
    change = np.concatenate([np.ones(int(waits.sum())), -np.ones(int(waits.sum()))])
    order = np.lexsort((change, time))
    time, length = time[order], np.cumsum(change[order])
    # Instants count once, after all their changes.
    final = np.append(time[1:] != time[:-1], True) if len(time) else np.zeros(0, dtype=bool)
    return time[final], length[final]


def waiting_spans(time: Array, length: Array) -> Array:
    """[spans, 2]: from when to when somebody waits."""
    if not len(time):
        return np.zeros((0, 2), dtype=np.int64)
    busy = np.concatenate([[0], (length > 0).astype(np.int8), [0]])
    turns = np.flatnonzero(np.diff(busy))
    return np.append(time, time[-1])[turns].reshape(-1, 2).astype(np.int64)


def while_waiting(
    capacity: Array,
    node: Array,
    amount: Array,
    start: Array,
    end: Array,
    waiting: Array,
    slices: tuple[float, float, int],
) -> Array:
    """[3, slices]: in each slice the seconds in which somebody waits, and these times the share allocated and the
    share of what is free that lies on partly used nodes.

    `node` … `end` are the pieces of jobs on nodes; slices are (first moment, width, count). Before the first start
    nothing is known of the nodes, and after the last end nobody waits.
    """
    first, width, count = slices
    if not len(waiting) or not len(node) or capacity.sum() == 0:
        return np.zeros((3, count))
    found: Array = _sweep(
        capacity.astype(np.float64),
        node.astype(np.int64),
        amount.astype(np.float64),
        start,
        end,
        np.argsort(start, kind="stable"),
        np.argsort(end, kind="stable"),
        waiting,
        float(first),
        float(width),
        count,
    )
    return found


@kernel
def _sweep(
    capacity: Array,
    node: Array,
    amount: Array,
    start: Array,
    end: Array,
    by_start: Array,
    by_end: Array,
    waiting: Array,
    first: float,
    width: float,
    slices: int,
) -> Array:
    found = np.zeros((3, slices))
    free = capacity.copy()
    total = 0.0
    for n in range(len(capacity)):
        total += capacity[n]
    all_free, partial = total, 0.0
    i, k, p = 0, 0, 0
    now = start[by_start[0]]
    while k < len(end):
        later = end[by_end[k]]
        if i < len(start):
            later = min(later, start[by_start[i]])
        # The part of now … later in which somebody waits.
        while p < len(waiting) and waiting[p, 1] <= now:
            p += 1
        q = p
        allocated = (total - all_free) / total
        fragmented = partial / all_free if all_free > 1e-9 else 0.0
        while q < len(waiting) and waiting[q, 0] < later:
            begin, last = float(max(now, waiting[q, 0])), float(min(later, waiting[q, 1]))
            s = max(int((begin - first) / width), 0)
            while s < slices and first + s * width < last:
                span = min(last, first + (s + 1) * width) - max(begin, first + s * width)
                if span > 0.0:
                    found[0, s] += span
                    found[1, s] += span * allocated
                    found[2, s] += span * fragmented
                s += 1
            q += 1
        now = later
        while True:
            if k < len(end) and end[by_end[k]] == now:
                e, sign = by_end[k], 1.0
                if start[e] == end[e]:
                    k += 1  # an instant's job takes nothing for any time
                    continue
                k += 1
            elif i < len(start) and start[by_start[i]] == now:
                e, sign = by_start[i], -1.0
                i += 1
                if start[e] == end[e]:
                    continue
            else:
                break
            n = node[e]
            if 1e-9 < free[n] < capacity[n] - 1e-9:
                partial -= free[n]
            free[n] += sign * amount[e]
            all_free += sign * amount[e]
            if 1e-9 < free[n] < capacity[n] - 1e-9:
                partial += free[n]
    return found
