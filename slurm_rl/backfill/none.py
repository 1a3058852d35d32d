"""Backfill `none`: strict order; a job that does not fit holds up all behind it.

Implements N1 and V4 of docs/backfill.md.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.starting import close_reservation, is_closed, try_start
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Record
from slurm_rl.kernel.jit import kernel
from slurm_rl.place.kernels import deferred


@kernel
def none_pass(
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
        if deferred(w, j) or is_closed(w, j, stamp):
            continue
        if j < fresh or not try_start(w, j, now, stamp):
            if close_reservation(w, j, stamp):
                continue
            break
        started[count] = j
        count += 1
    return count
