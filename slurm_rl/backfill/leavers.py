"""Running jobs in the order of their expected ends, as a cycle of sched/backfill looks at them again and again.

A row of `leavers` is a job and a piece that it holds, and `left` says what is free there when it has left, with all
that leave before. Rows are added as far as somebody looks. `gain` keeps for how many more units of a shape that is
room. `sums` are what is free in all, which tells cheaply when a request cannot fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.backfill.bitmaps import has
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, MEM, NEVER, NOW, Record
from slurm_rl.kernel.jit import inlined, inner

_MARK = np.int64(3)  # column of the table `then`, behind what is free
_DUE = np.int64(3)  # column of the table `sums`, behind what is free


@inner
def list_next(w: Record, pool: int) -> bool:
    """Adds the next running job to `leavers`; whether there was one."""
    if w.leaving == t.pools(w).running[pool]:
        return False
    entries, requests, free, then = t.entries(w), t.requests(w), t.free(w), t.then(w)
    leavers, rows = t.leavers(w), t.left(w)
    j = t.running(w)[t.pools(w).first_job[pool] + w.leaving]
    w.leaving += 1
    k = np.int64(t.jobs(w).request[j])
    due = t.live(w).expected_end[j]
    at: Any = np.int64(w.leaver_count)
    e = t.live(w).held[j]
    while e > 0:
        units = entries.units[e]
        n: Any = np.int64(entries.node[e])
        end = n + 1
        if w.by_runs:
            end += entries.more[e]
        while n < end:
            p: Any = np.int64(n)
            count: Any = np.int64(1)
            if w.by_runs:
                p = t.piece_of(w)[n]
                count = t.pieces(w).count[p]
            if then[p, _MARK] != w.mark:
                then[p, CPU], then[p, MEM], then[p, GPU] = free[NOW, n, CPU], free[NOW, n, MEM], free[NOW, n, GPU]
                then[p, _MARK] = w.mark
            then[p, CPU] += units * requests.cpu[k]
            then[p, MEM] += units * requests.mem[k]
            then[p, GPU] += units * requests.gpu[k]
            leavers.due[at], leavers.piece[at] = due, p
            rows.count[at], rows.request[at], rows.units[at] = count, k, units
            rows.cpu[at], rows.mem[at], rows.gpu[at] = then[p, CPU], then[p, MEM], then[p, GPU]
            at += 1
            n += count
        e = entries.next[e]
    w.leaver_count = at
    return True


@inlined
def room_of(cpu: int, mem: int, gpu: int, each_cpu: int, each_mem: int, each_gpu: int, most: int) -> int:
    """Units of so much each for which so much has room, at most so many."""
    room = most
    if each_cpu > 0 and cpu < room * each_cpu:
        room = max(cpu, 0) // each_cpu
    if each_mem > 0 and mem < room * each_mem:
        room = max(mem, 0) // each_mem
    if each_gpu > 0 and gpu < room * each_gpu:
        room = max(gpu, 0) // each_gpu
    return room


@inner
def gain_of(w: Record, slot: int, i: int) -> int:
    """For how many more units of a shape each node of a row of `leavers` has room when its job has left."""
    rows, shapes, requests = t.left(w), t.shapes(w), t.requests(w)
    f = t.slot_shape(w)[slot]
    found: Any = np.int64(0)
    if has(t.able(w), slot, t.leavers(w).piece[i]):
        cpu, mem, gpu, most = shapes.cpu[f], shapes.mem[f], shapes.gpu[f], shapes.most[f]
        k, units = rows.request[i], rows.units[i]
        found = room_of(rows.cpu[i], rows.mem[i], rows.gpu[i], cpu, mem, gpu, most)
        found -= room_of(
            rows.cpu[i] - units * requests.cpu[k],
            rows.mem[i] - units * requests.mem[k],
            rows.gpu[i] - units * requests.gpu[k],
            cpu,
            mem,
            gpu,
            most,
        )
    return found


@inlined
def known_gain(w: Record, slot: int, i: int) -> int:
    """The same, remembered where `gain` has a row for the slot; `begin_gains` must have been there."""
    if slot >= t.gain(w).shape[0]:
        return gain_of(w, slot, i)
    if t.gain(w)[slot, i] < 0:
        t.gain(w)[slot, i] = gain_of(w, slot, i)
    return t.gain(w)[slot, i]


@inlined
def begin_gains(w: Record, slot: int) -> None:
    """Makes a slot's row of `gain` as long as `leavers`, and new if what is free has changed."""
    if slot >= t.gain(w).shape[0]:
        return
    known, gain = t.gains_known(w), t.gain(w)
    if known[slot, 0] != w.mark:
        known[slot, 0], known[slot, 1] = w.mark, 0
    for i in range(known[slot, 1], w.leaver_count):
        gain[slot, i] = -1
    known[slot, 1] = w.leaver_count


@inner
def earliest(w: Record, pool: int, s: int) -> int:
    """A time before which a request does not fit: by what is free in sum, now (0) and as running jobs leave."""
    sums, requests = t.sums(w), t.requests(w)
    if w.sum_count < 0:
        _make_sums(w, pool)
    units = requests.units[s]
    cpu, mem, gpu = units * requests.cpu[s], units * requests.mem[s], units * requests.gpu[s]
    low, high = np.int64(0), np.int64(w.sum_count)
    while low < high:
        middle = (low + high) >> 1
        if sums[middle, CPU] >= cpu and sums[middle, MEM] >= mem and sums[middle, GPU] >= gpu:
            high = middle
        else:
            low = middle + 1
    return int(sums[low, _DUE] if low < w.sum_count else NEVER)


@inlined
def _held_units(w: Record, j: int) -> int:
    """Units that a running job holds."""
    entries = t.entries(w)
    units: Any = np.int64(0)
    e = t.live(w).held[j]
    while e > 0:
        units += entries.units[e] * (entries.more[e] + 1) if w.by_runs else entries.units[e]
        e = entries.next[e]
    return units


@inlined
def _make_sums(w: Record, pool: int) -> None:
    """Once a cycle: a job that starts in it only takes away until its own end, so that the bound stands."""
    sums, requests, total = t.sums(w), t.requests(w), t.total(w)
    cpu, mem, gpu = total[NOW, pool, CPU], total[NOW, pool, MEM], total[NOW, pool, GPU]
    sums[0, CPU], sums[0, MEM], sums[0, GPU], sums[0, _DUE] = cpu, mem, gpu, 0
    base = t.pools(w).first_job[pool]
    w.sum_count = t.pools(w).running[pool] + 1
    for i in range(1, w.sum_count):
        j = t.running(w)[base + i - 1]
        k = np.int64(t.jobs(w).request[j])
        units = max(requests.units[k], _held_units(w, j))  # a live site's records may disagree
        cpu += units * requests.cpu[k]
        mem += units * requests.mem[k]
        gpu += units * requests.gpu[k]
        sums[i, CPU], sums[i, MEM], sums[i, GPU], sums[i, _DUE] = cpu, mem, gpu, t.live(w).expected_end[j]
