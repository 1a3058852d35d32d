"""Numbers values 0, 1, 2 … in order of first appearance: a compiled hash table for columns of millions."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.jit import kernel


@kernel
def _number(values: np.ndarray) -> tuple[np.ndarray, int]:
    bits = 4
    while (1 << bits) < 2 * len(values):
        bits += 1
    mask = (1 << bits) - 1
    slots = np.full(1 << bits, -1, dtype=np.int32)
    codes = np.empty(len(values), dtype=np.int32)
    firsts = np.empty(len(values), dtype=np.int32)
    count = 0
    for i in range(len(values)):
        h = np.uint64(values[i]) * np.uint64(0x9E3779B97F4A7C15)
        at = np.int64(h >> np.uint64(64 - bits)) & mask
        while True:
            c = slots[at]
            if c < 0:
                slots[at] = count
                firsts[count] = i
                codes[i] = count
                count += 1
                break
            if values[firsts[c]] == values[i]:
                codes[i] = c
                break
            at = (at + 1) & mask
    return codes, count


def number(*columns: Array) -> tuple[Array, int]:
    """One code for each distinct row of the columns (whole numbers ≥ -1), and how many there are."""
    codes, count = _number(np.ascontiguousarray(columns[0], dtype=np.int64))
    for column in columns[1:]:
        more, size = _number(np.ascontiguousarray(column, dtype=np.int64))
        codes, count = _number(codes.astype(np.int64) * size + more)
    return codes, count
