"""A stable sort by descending score."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.jit import inner


@inner
def sort_by_score(scores: np.ndarray, count: int, order: np.ndarray, scratch: np.ndarray) -> None:
    """Positions 0 … count-1 by descending score; equal scores keep their order (merge sort on short sorted runs)."""
    run = 16
    for low in range(0, count, run):
        high = min(low + run, count)
        for i in range(low, high):
            k = i
            while k > low and scores[order[k - 1]] < scores[i]:
                order[k] = order[k - 1]
                k -= 1
            order[k] = i
    while run < count:
        for low in range(0, count, 2 * run):
            middle, high = min(low + run, count), min(low + 2 * run, count)
            a, b = low, middle
            for at in range(low, high):
                if a < middle and (b >= high or scores[order[a]] >= scores[order[b]]):
                    scratch[at] = order[a]
                    a += 1
                else:
                    scratch[at] = order[b]
                    b += 1
        for i in range(count):
            order[i] = scratch[i]
        run *= 2
