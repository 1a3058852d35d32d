"""Sums over time of things that begin and end: queues, occupied GPUs, and free GPUs on partly used nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_rl.kernel.arrays import Array


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
    lasting = end > start
    moment, partial, free = _free_over_time(capacity, node[lasting], amount[lasting], start[lasting], end[lasting])
    waits = begin > submit
    turns = np.concatenate([submit[waits], begin[waits]])
    order = np.argsort(turns, kind="stable")
    queue = np.cumsum(np.repeat([1, -1], int(waits.sum()))[order])
    turns = turns[order]
    if not len(moment) or not len(turns):
        return np.full(grid.count, np.nan)
    edges = np.unique(np.concatenate([moment, turns]))
    at = np.searchsorted(moment, edges, side="right") - 1
    length = queue[np.maximum(np.searchsorted(turns, edges, side="right") - 1, 0)] * (edges >= turns[0])
    ratio = np.where(free[at] > 1e-9, partial[at] / np.maximum(free[at], 1e-9), 0.0)
    # Before the first start nothing is known of the nodes, and after the last end nobody waits.
    waiting = ((length > 0) & (edges >= moment[0]))[:-1].astype(np.float64)
    one = np.zeros(len(waiting), dtype=np.int64)
    fragmented = integrals(grid, edges[:-1], edges[1:], waiting * ratio[:-1], one, 1)[0]
    waited = integrals(grid, edges[:-1], edges[1:], waiting, one, 1)[0]
    return np.where(waited > grid.width * 1e-6, fragmented / np.maximum(waited, 1e-9), np.nan)


def _free_over_time(
    capacity: Array, node: Array, amount: Array, start: Array, end: Array
) -> tuple[Array, Array, Array]:
    """(moments, free on partly used nodes from then on, free in all)."""
    nodes, times = np.concatenate([node, node]), np.concatenate([start, end])
    change = np.concatenate([amount, -amount])
    order = np.lexsort((times, nodes))
    nodes, times, change = nodes[order], times[order], change[order]
    used = np.cumsum(change)
    first = np.append(True, nodes[1:] != nodes[:-1]) if len(nodes) else np.zeros(0, dtype=bool)
    # Every node ends empty, so the running sum over all nodes is the running sum of this one, but for rounding.
    free = np.round(capacity[nodes] - used, 6)
    partly = np.where((free > 0) & (free < capacity[nodes]), free, 0.0)
    step = partly - np.where(first, 0.0, np.append(0.0, partly[:-1])[: len(partly)])
    order = np.argsort(times, kind="stable")
    moment, partial = times[order], np.cumsum(step[order])
    everything = capacity.sum() - np.cumsum(change[order])
    final = np.append(moment[1:] != moment[:-1], True) if len(moment) else np.zeros(0, dtype=bool)
    return moment[final], np.round(partial[final], 6), np.round(everything[final], 6)
