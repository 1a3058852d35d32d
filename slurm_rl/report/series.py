"""Sums over time of things that begin and end: queues, occupied GPUs, and free GPUs on partly used nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl_sim.fragments import queue_lengths, waiting_spans, while_waiting


@dataclass(frozen=True, slots=True)
class Grid:
    """`count` equal slices of time from `first` on."""

    first: float
    width: float
    count: int

    @property
    def middles(self) -> Array:
        """The middle of each slice, in seconds after the first's beginning."""
        return (np.arange(self.count) + 0.5) * self.width


def integrals(grid: Grid, begin: Array, end: Array, weight: Array, group: Array, groups: int) -> Array:
    """[groups, slices]: weight × seconds within each slice, summed over the intervals of each group."""

    def after(moment: Array) -> Array:
        """What the intervals would add if none ever ended."""
        offset = np.clip(moment - grid.first, 0, grid.width * grid.count)
        slice_ = np.minimum((offset / grid.width).astype(np.int64), grid.count - 1)
        cell = group * grid.count + slice_
        rest = np.bincount(cell, weight * ((slice_ + 1) * grid.width - offset), groups * grid.count)
        full = np.bincount(cell, weight, groups * grid.count).reshape(groups, -1)
        return rest.reshape(groups, -1) + grid.width * (np.cumsum(full, axis=1) - full)

    return after(begin) - after(end)


def fragmentation(
    grid: Grid, capacity: Array, node: Array, amount: Array, start: Array, end: Array, submit: Array, begin: Array
) -> Array:
    """For each slice: of what stands free while somebody waits, the share on partly used nodes; NaN if nobody waits.

    `node` … `end` are the pieces of jobs on nodes, `submit` and `begin` the waits.
    """
    waiting = waiting_spans(*queue_lengths(submit, begin))
    waited, _, fragmented = while_waiting(
        capacity, node, amount, start, end, waiting, (grid.first, grid.width, grid.count)
    )
    return np.where(waited > grid.width * 1e-6, fragmented / np.maximum(waited, 1e-9), np.nan)
