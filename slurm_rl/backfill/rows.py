"""Rows of a profile: the free amounts from each row's time until the next one's."""

from __future__ import annotations

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Record
from slurm_rl.kernel.jit import inlined

MORE_ROWS = -1  # the profile may need more rows than there are: nothing was done


@inlined
def row_at(w: Record, count: int, instant: int) -> int:
    """The first row that begins at or after `instant`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if t.rows(w).time[middle] < instant:
            low = middle + 1
        else:
            high = middle
    return low
