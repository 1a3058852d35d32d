"""Backfill `firstfit`: every job that fits starts, in order; no job has a reservation.

Implements N2 of docs/backfill.md.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.starting import spent, try_start
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Record
from slurm_rl.kernel.jit import kernel
from slurm_rl.place.kernels import deferred


@kernel
def firstfit_pass(
    w: Record,
    now: int,
    pool: int,
    order: np.ndarray,
    first: int,
    last: int,
    fresh: int,
    stamp: int,
    started: np.ndarray,
) -> int:
    """One pass over order[first:last]; the number of jobs written to `started` (the arguments: dispatch.py)."""
    t.pools(w).shadow[pool] = -1
    count = 0
    for i in range(first, last):
        j = order[i]
        if not deferred(w, j) and j >= fresh and try_start(w, j, now, stamp):
            started[count] = j
            count += 1
            if spent(w, pool):
                break
    return count
