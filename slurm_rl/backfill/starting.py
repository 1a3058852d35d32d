"""Shared by the rules: starting a job, the running list, views of a pool, and requests known not to fit.

Implements V1 and V4 of docs/backfill.md for all of them.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GIVE, GPU, MEM, NOW, OTHER, PARTS, SCRATCH, Array, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.kernel.links import INT, by_address
from slurm_rl.kernel.quotas import count_run
from slurm_rl.kernel.reserved import CLOSED, call_leave_open, own_reservation
from slurm_rl.place.capacity import fits_totals
from slurm_rl.place.catalogue import ROUND_ROBIN
from slurm_rl.place.kernels import place_job, record, take
from slurm_rl.place.runs import call_copy_runs, call_meet_runs


@inner
def begin(w: Record, j: int, now: int, count: int) -> None:
    """Gives job `j` the placement in `t.spot(w)` and enters it among the running."""
    pools = t.pools(w)
    s = np.int64(t.jobs(w).request[j])
    take(w, s, NOW, count)
    t.live(w).held[j] = record(w, count)
    pool = t.requests(w).pool[s]
    if w.placer == ROUND_ROBIN:
        pools.cursor[pool] = t.spot(w).node[count - 1] + 1
        if pools.cursor[pool] >= pools.last_node[pool]:
            pools.cursor[pool] = pools.first_node[pool]
    enter_running(w, pool, j, now + t.jobs(w).limit[j])
    if w.quotas_0 > 0:
        count_run(w, j, GIVE)


@inlined
def _running_place(w: Record, pool: int, j: int) -> int:
    """Where a job stands, or belongs, in the pool's running list: by (expected end, index)."""
    pools, live, running = t.pools(w), t.live(w), t.running(w)
    end = live.expected_end[j]
    low = pools.first_job[pool]
    high = low + pools.running[pool]
    while low < high:
        middle = (low + high) >> 1
        k = running[middle]
        if live.expected_end[k] < end or (live.expected_end[k] == end and k < j):
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def enter_running(w: Record, pool: int, j: int, expected_end: int) -> None:
    """Puts a job on the pool's running list."""
    pools, running = t.pools(w), t.running(w)
    t.live(w).expected_end[j] = expected_end
    at = _running_place(w, pool, j)
    t.move_running(w, at, at + 1, pools.first_job[pool] + pools.running[pool] - at)
    running[at] = j
    pools.running[pool] += 1


@inlined
def leave_running(w: Record, pool: int, j: int) -> None:
    """Takes a job off the pool's running list."""
    pools = t.pools(w)
    at = _running_place(w, pool, j)
    pools.running[pool] -= 1
    t.move_running(w, at + 1, at, pools.first_job[pool] + pools.running[pool] - at)


@inner
def copy_pool(w: Record, pool: int, source: int, target: int) -> None:
    """Copies a pool's part of one view into another."""
    if w.indexed:
        call_copy_runs(w, pool, source, target)
        return
    first, last, total = t.pools(w).first_node[pool], t.pools(w).last_node[pool], t.total(w)
    t.copy_free(w, source, target, first, last)
    t.copy_used(w, source, target, first, last)
    for c in range(3):
        total[target, pool, c] = total[source, pool, c]


@inner
def meet(w: Record, pool: int, a: int, b: int, target: int) -> None:
    """On a pool's nodes, what is free in both views, with its sums; `target` may be one of them."""
    if w.indexed:
        call_meet_runs(w, pool, a, b, target)
        return
    free, used, total = t.free(w), t.used(w), t.total(w)
    slots = used.shape[2]
    cpu, mem, gpu = np.int64(0), np.int64(0), np.int64(0)
    for n in range(t.pools(w).first_node[pool], t.pools(w).last_node[pool]):
        x = min(free[a, n, CPU], free[b, n, CPU])
        y = min(free[a, n, MEM], free[b, n, MEM])
        z = min(free[a, n, GPU], free[b, n, GPU])
        if slots > 0:
            z = meet_slots(w, a, b, target, n)
            for c in range(OTHER, free.shape[2]):
                free[target, n, c] = min(free[a, n, c], free[b, n, c])
        free[target, n, CPU] = x
        free[target, n, MEM] = y
        free[target, n, GPU] = z
        cpu += x
        mem += y
        gpu += z
    total[target, pool, CPU] = cpu
    total[target, pool, MEM] = mem
    total[target, pool, GPU] = gpu


@inlined
def meet_slots(w: Record, a: int, b: int, target: int, n: int) -> int:
    """Likewise of a node's GPUs that are told apart; how many of them are whole."""
    used = t.used(w)
    whole = 0
    for k in range(used.shape[2]):
        most = max(used[a, n, k], used[b, n, k])
        if used[a, n, k] != used[b, n, k] and min(used[a, n, k], used[b, n, k]) > 0:
            # Given out whole in one view, serving MPS in the other (P7): it serves, and has nothing left.
            most = min(most, t.devices(w)[t.nodes(w).klass[n], k, PARTS])
        used[target, n, k] = most
        whole += most == 0
    return whole


@inlined
def try_start(w: Record, j: int, now: int, stamp: int) -> bool:
    """Starts a job if it fits what is free; remembers requests that did not, since a pass only uses resources up."""
    s = np.int64(t.jobs(w).request[j])
    if t.requests(w).misfit[s] == stamp:
        return False
    beside = w.kept_0 > 0 and call_leave_open(w, j, now)
    count = call_place_beside(w, j, s, NOW) if beside else place_job(w, j, s, NOW)
    if count == 0:
        if not beside:
            t.requests(w).misfit[s] = stamp
        return False
    begin(w, j, now, count)
    return True


@inlined
def close_reservation(w: Record, j: int, stamp: int) -> bool:
    """V4: whether a job that found no room holds up only those of its own reservation; they are closed to this pass."""
    own = own_reservation(w, j)
    if own < 0:
        return False
    t.kept(w)[own, CLOSED] = stamp
    return True


@inlined
def is_closed(w: Record, j: int, stamp: int) -> bool:
    """V4: whether a job of the same reservation found no room in this pass."""
    own = own_reservation(w, j)
    return bool(own >= 0 and t.kept(w)[own, CLOSED] == stamp)


@inlined
def mask_view(w: Record, pool: int, source: int, target: int, bits: Array, row: int) -> None:
    """Copies a view of a pool, with nothing on the nodes outside of a set."""
    if source != target:
        copy_pool(w, pool, source, target)
    free, used = t.free(w), t.used(w)
    for n in range(t.pools(w).first_node[pool], t.pools(w).last_node[pool]):
        if (bits[row, n >> 6] >> (n & 63)) & 1 == 0:
            for c in range(free.shape[2]):
                free[target, n, c] = 0
            for k in range(used.shape[2]):
                used[target, n, k] = max(used[target, n, k], t.devices(w)[t.nodes(w).klass[n], k, PARTS])


@inner
def open_view(w: Record, pool: int, source: int) -> None:
    """A view as SCRATCH, with nothing on the nodes that `leave_open` did not leave."""
    mask_view(w, pool, source, SCRATCH, t.open_bits(w), 0)


@kernel
def place_beside(w: Record, j: int, s: int, view: int) -> int:
    """Places a job on the nodes that `leave_open` left to it."""
    open_view(w, t.requests(w).pool[s], view)
    return int(place_job(w, j, s, SCRATCH))


call_place_beside = by_address("place_beside", place_beside, INT, INT, INT, INT)


@inlined
def spent(w: Record, pool: int) -> bool:
    """Whether nothing is left for anyone: every job takes a CPU or a GPU (or, where slots are told apart, a share)."""
    total = t.total(w)
    return total[NOW, pool, CPU] == 0 and total[NOW, pool, GPU] == 0 and t.used(w).shape[2] == 0


@inlined
def next_fitting(w: Record, order: np.ndarray, first: int, last: int, stamp: int) -> int:
    """The first position of a job for which the sums over the pool leave room; `last`, or beyond, if there is none."""
    jobs, requests = t.jobs(w), t.requests(w)
    at = first
    while at < last:
        s = np.int64(jobs.request[order[at]])
        if requests.misfit[s] != stamp:
            if fits_totals(w, s, NOW):
                break
            requests.misfit[s] = stamp
        at += 1
    return at
