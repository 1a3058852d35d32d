"""When a job fits, where nodes have levels: its room is counted as running jobs end, not looked for at each end anew.

Implements E2 of docs/backfill.md as `reserve_head` of backfill/easy.py does. The simple placements find nodes for a
request exactly if its nodes have room for all its units in sum.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, EXTRA, GPU, MEM, NEVER, NOW, Record
from slurm_rl.kernel.jit import inlined, kernel
from slurm_rl.kernel.links import INT, NOTHING, by_address
from slurm_rl.place.kernels import call_place, take
from slurm_rl.place.levels import add, find, room_on
from slurm_rl.place.runs import call_copy_runs


@inlined
def _of_kind(w: Record, s: int, n: int) -> bool:
    return (t.kind_bits(w)[t.requests(w).kind[s], n >> 6] >> (n & 63)) & 1 != 0


@kernel
def reserve_by_level(w: Record, pool: int, earliest: int) -> None:
    """Plans the reservation of a pool's head, which fits nowhere now and not before `earliest`."""
    pools, jobs, requests, live = t.pools(w), t.jobs(w), t.requests(w), t.live(w)
    running, entries, total, found = t.running(w), t.entries(w), t.total(w), t.fitting(w)
    call_copy_runs(w, pool, NOW, EXTRA)
    s = np.int64(jobs.request[pools.head[pool]])
    units = np.int64(requests.units[s])
    room = np.int64(0)
    for i in range(find(w, s, EXTRA, np.int64(1), np.int64(len(found)), False)):
        room += room_on(w, s, EXTRA, found[i], units)
    i = pools.first_job[pool]
    last = i + pools.running[pool]
    pools.shadow[pool] = NEVER
    while i < last:
        instant = live.expected_end[running[i]]
        while i < last and live.expected_end[running[i]] == instant:
            k = np.int64(jobs.request[running[i]])
            cpu, mem, gpu = requests.cpu[k], requests.mem[k], requests.gpu[k]
            e = live.held[running[i]]
            while e > 0:
                n, held = entries.node[e], entries.units[e]
                mine = _of_kind(w, s, n)
                if mine:
                    room -= room_on(w, s, EXTRA, n, units)
                add(w, EXTRA, pool, n, held * cpu, held * mem, held * gpu)
                if mine:
                    room += room_on(w, s, EXTRA, n, units)
                e = entries.next[e]
            total[EXTRA, pool, CPU] += requests.units[k] * cpu
            total[EXTRA, pool, MEM] += requests.units[k] * mem
            total[EXTRA, pool, GPU] += requests.units[k] * gpu
            i += 1
        if instant >= earliest and room >= units:
            take(w, s, EXTRA, call_place(w, s, EXTRA))
            pools.shadow[pool] = instant
            return


call_reserve_by_level = by_address("reserve_by_level", reserve_by_level, NOTHING, INT, INT)
