"""Fragmentation gradient descent: a job goes where it makes the fewest free GPUs useless to jobs like the recent ones.

Implements P0 of docs/backfill.md, after Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent" (ATC 2023); docs/placement.md has its figures.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import GPU, GPU_MILLI, Record
from slurm_rl.kernel.jit import inner, kernel
from slurm_rl.place.by_gpu_type import blocked, may_use
from slurm_rl.place.capacity import capacity

_EQUAL = 1e-9  # of a GPU


@kernel
def place_fgd(w: Record, s: int, view: int, first: int, last: int) -> int:
    """Node by node, the one on which a unit adds least to the GPUs that the mix cannot use; ties: the fullest."""
    _look_back(w)
    requests, free, used, nodes = t.requests(w), t.free(w), t.used(w), t.nodes(w)
    left, count = requests.units[s], 0
    slots = used.shape[2]
    taken = np.zeros(last - first, dtype=np.bool_)
    while left > 0:
        pick, pick_room, pick_free, pick_grown = -1, 0, 0, 0.0
        seen = -1
        for at in range(first, last):
            n = t.kind_node(w)[at]
            if taken[at - first]:
                continue
            if seen >= 0 and nodes.klass[n] == nodes.klass[seen]:
                # Equal to the node before it: what was found for that one holds, and ties go to the lower number.
                same = True
                for k in range(3):
                    same = same and free[view, n, k] == free[view, seen, k]
                for k in range(slots):
                    same = same and used[view, n, k] == used[view, seen, k]
                if same:
                    continue
            seen = n
            room = capacity(w, s, view, n, left)
            if room == 0:
                continue
            grown = fragments_added(w, s, view, n, room) / room
            less = grown < pick_grown - _EQUAL or (grown <= pick_grown + _EQUAL and free[view, n, GPU] < pick_free)
            if pick < 0 or less:
                pick, pick_room, pick_free, pick_grown = at, room, free[view, n, GPU], grown
        if pick < 0:
            return 0
        taken[pick - first] = True
        t.spot(w).node[count], t.spot(w).units[count], t.spot(w).gpus[count] = t.kind_node(w)[pick], pick_room, 0
        count += 1
        left -= pick_room
    return count


@inner
def _look_back(w: Record) -> None:
    """Makes the mix of the jobs that came last, unless one is given: nobody knows those to come."""
    mix = t.mix(w)
    if w.weighs != 1:
        return
    known = w.arrived if w.arrived > 0 else len(t.jobs(w))
    rows = min(known, len(mix))
    for i in range(len(mix)):
        mix.portion[i], mix.request[i] = 0.0, 0
        if i < rows:
            m = t.jobs(w).request[known - 1 - i]
            mix.request[i] = m
            # Jobs without GPUs can use no free GPU wherever it is: they would add the same everywhere.
            if t.requests(w).gpu[m] + t.requests(w).share[m] > 0:
                mix.portion[i] = 1.0 / rows


@inner
def fragments_added(w: Record, s: int, view: int, n: int, units: int) -> float:
    """Growth of the free GPUs on a node that jobs of the mix cannot use, by their shares of it.

    As published, free GPUs count in full for a job that may not use the node, whatever is free there.
    """
    requests, mix = t.requests(w), t.mix(w)
    amount = units * (requests.gpu[s] + requests.share[s] / GPU_MILLI)
    strangers = 0.0
    for i in range(len(mix)):
        if mix.portion[i] > 0.0 and not may_use(w, requests.kind[mix.request[i]], n):
            strangers += mix.portion[i]
    return blocked(w, s, view, n, units) - blocked(w, s, view, n, 0) - strangers * amount
