"""Tetris' alignment: a job goes to the node with the largest product of requested and free amounts.

Implements P0 of docs/backfill.md, after Grandl et al., "Multi-resource packing for cluster schedulers" (SIGCOMM 2014).
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, GPU_MILLI, MEM, Record
from slurm_rl.kernel.jit import kernel
from slurm_rl.place.capacity import capacity


@kernel
def place_dot_product(w: Record, s: int, view: int, first: int, last: int) -> int:
    """Node by node, the largest product of request and free amounts, each as shares of the largest node's."""
    requests, free, nodes = t.requests(w), t.free(w), t.nodes(w)
    cpus, mem, gpus = 1, 1, 1
    for at in range(first, last):
        n = t.kind_node(w)[at]
        cpus, mem, gpus = max(cpus, nodes.cpu[n]), max(mem, nodes.mem[n]), max(gpus, nodes.gpu[n])
    by_cpu = requests.cpu[s] / cpus / cpus
    by_mem = requests.mem[s] / mem / mem
    by_gpu = (requests.gpu[s] + requests.share[s] / GPU_MILLI) / gpus / gpus
    left, count = requests.units[s], 0
    worth = np.full(last - first, -1.0)
    for at in range(first, last):
        n = t.kind_node(w)[at]
        if capacity(w, s, view, n, left) > 0:
            idle = float(free[view, n, GPU])
            for k in range(t.used(w).shape[2]):
                part = t.used(w)[view, n, k]
                if 0 < part < GPU_MILLI:
                    idle += 1.0 - part / GPU_MILLI
            worth[at - first] = by_cpu * free[view, n, CPU] + by_mem * free[view, n, MEM] + by_gpu * idle
    while left > 0:
        best = np.argmax(worth)
        if worth[best] < 0.0:
            return 0
        worth[best] = -1.0
        n = t.kind_node(w)[first + best]
        room = capacity(w, s, view, n, left)
        if room > 0:
            t.spot(w).node[count], t.spot(w).units[count], t.spot(w).gpus[count] = n, room, 0
            count += 1
            left -= room
    return count
