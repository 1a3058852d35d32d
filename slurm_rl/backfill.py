"""Which jobs of an ordered queue start now: `none`, `firstfit` and `easy`; what they share with `profile.py`.

The rules, to the letter, are in docs/backfill.md. `decide` and the replay engine call the same functions.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.domain import tables as t
from slurm_rl.domain.arrays import BOTH, EXTRA, GIVE, NEVER, NOW, Record
from slurm_rl.jit import kernel
from slurm_rl.place.kernels import ROUND_ROBIN, apply, place, record, take
from slurm_rl.place.room import fits_totals

NONE, FIRSTFIT, EASY, CONSERVATIVE, SLURM = np.arange(5)
BACKFILLS = {"none": NONE, "firstfit": FIRSTFIT, "easy": EASY, "conservative": CONSERVATIVE, "slurm": SLURM}


@kernel
def begin(w: Record, j: int, now: int, count: int) -> None:
    """Gives job `j` the placement in `t.spot(w)` and enters it among the running."""
    s = np.int64(t.jobs(w).request[j])
    take(w, s, NOW, count)
    t.live(w).held[j] = record(w, count)
    pool = t.shapes(w).pool[s]
    if w.placer == ROUND_ROBIN:
        t.pools(w).cursor[pool] = t.spot(w).node[count - 1] + 1
        if t.pools(w).cursor[pool] >= t.pools(w).last_node[pool]:
            t.pools(w).cursor[pool] = t.pools(w).first_node[pool]
    enter_running(w, pool, j, now + t.jobs(w).limit[j])


@kernel
def _running_place(w: Record, pool: int, j: int) -> int:
    """Where a job stands, or belongs, in the pool's running list: by (expected end, index)."""
    end = t.live(w).expected_end[j]
    low = t.pools(w).first_job[pool]
    high = low + t.pools(w).running[pool]
    while low < high:
        middle = (low + high) >> 1
        k = t.running(w)[middle]
        if t.live(w).expected_end[k] < end or (t.live(w).expected_end[k] == end and k < j):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def enter_running(w: Record, pool: int, j: int, expected_end: int) -> None:
    """Puts a job on the pool's running list."""
    t.live(w).expected_end[j] = expected_end
    at = _running_place(w, pool, j)
    for i in range(t.pools(w).first_job[pool] + t.pools(w).running[pool], at, -1):
        t.running(w)[i] = t.running(w)[i - 1]
    t.running(w)[at] = j
    t.pools(w).running[pool] += 1


@kernel
def leave_running(w: Record, pool: int, j: int) -> None:
    """Takes a job off the pool's running list."""
    t.pools(w).running[pool] -= 1
    for i in range(_running_place(w, pool, j), t.pools(w).first_job[pool] + t.pools(w).running[pool]):
        t.running(w)[i] = t.running(w)[i + 1]


@kernel
def copy_pool(w: Record, pool: int, source: int, target: int) -> None:
    """Copies a pool's part of one view into another."""
    for n in range(t.pools(w).first_node[pool], t.pools(w).last_node[pool]):
        t.free(w).cpu[target, n] = t.free(w).cpu[source, n]
        t.free(w).mem[target, n] = t.free(w).mem[source, n]
        t.free(w).gpu[target, n] = t.free(w).gpu[source, n]
        for k in range(t.used(w).shape[2]):
            t.used(w)[target, n, k] = t.used(w)[source, n, k]
    for c in range(3):
        t.total(w)[target, pool, c] = t.total(w)[source, pool, c]


@kernel
def meet_node(w: Record, a: int, b: int, target: int, n: int) -> None:
    """On one node, what is free in both views; keeps the target's sums right."""
    pool = t.nodes(w).pool[n]
    cpu = min(t.free(w).cpu[a, n], t.free(w).cpu[b, n])
    mem = min(t.free(w).mem[a, n], t.free(w).mem[b, n])
    slots = t.used(w).shape[2]
    if slots == 0:
        gpu = min(t.free(w).gpu[a, n], t.free(w).gpu[b, n])
    else:
        gpu = 0
        for k in range(slots):
            used = max(t.used(w)[a, n, k], t.used(w)[b, n, k])
            t.used(w)[target, n, k] = used
            gpu += used == 0
    t.total(w)[target, pool, 0] += cpu - t.free(w).cpu[target, n]
    t.total(w)[target, pool, 1] += mem - t.free(w).mem[target, n]
    t.total(w)[target, pool, 2] += gpu - t.free(w).gpu[target, n]
    t.free(w).cpu[target, n] = cpu
    t.free(w).mem[target, n] = mem
    t.free(w).gpu[target, n] = gpu


@kernel
def meet(w: Record, pool: int, a: int, b: int, target: int) -> None:
    """On a whole pool, what is free in both views; `target` may be one of them."""
    for n in range(t.pools(w).first_node[pool], t.pools(w).last_node[pool]):
        meet_node(w, a, b, target, n)


@kernel
def try_start(w: Record, j: int, now: int, stamp: int) -> bool:
    """Starts a job if it fits what is free; remembers shapes that did not, since a pass only uses resources up."""
    s = np.int64(t.jobs(w).request[j])
    if t.shapes(w).misfit[s] == stamp:
        return False
    count = place(w, s, NOW)
    if count == 0:
        t.shapes(w).misfit[s] = stamp
        return False
    begin(w, j, now, count)
    return True


@kernel
def reserve_head(w: Record, pool: int, head: int) -> None:
    """EASY's reservation: when the head fits if running jobs use up their limits, and what is left beside it then."""
    copy_pool(w, pool, NOW, EXTRA)
    s = np.int64(t.jobs(w).request[head])
    i = t.pools(w).first_job[pool]
    last = i + t.pools(w).running[pool]
    t.pools(w).shadow[pool] = NEVER  # a head that fits on no empty cluster (nodes are down) holds nobody up
    while i < last:
        instant = t.live(w).expected_end[t.running(w)[i]]
        while i < last and t.live(w).expected_end[t.running(w)[i]] == instant:
            j = t.running(w)[i]
            apply(w, np.int64(t.jobs(w).request[j]), EXTRA, t.live(w).held[j], GIVE)
            i += 1
        if fits_totals(w, s, EXTRA):
            count = place(w, s, EXTRA)
            if count > 0:
                take(w, s, EXTRA, count)
                t.pools(w).shadow[pool] = instant
                break
    meet(w, pool, NOW, EXTRA, BOTH)


@kernel
def try_backfill(w: Record, pool: int, j: int, now: int, stamp: int) -> bool:
    """Starts a job behind the reserved head if it ends by the shadow time or stays within the extra."""
    s = np.int64(t.jobs(w).request[j])
    if t.shapes(w).misfit[s] == stamp:
        return False
    if now + t.jobs(w).limit[j] <= t.pools(w).shadow[pool]:
        count = place(w, s, NOW)
        if count == 0:
            t.shapes(w).misfit[s] = stamp
            return False
    else:
        if t.shapes(w).misfit_both[s] == stamp:
            return False
        count = place(w, s, BOTH)
        if count == 0:
            t.shapes(w).misfit_both[s] = stamp
            return False
        take(w, s, EXTRA, count)
    begin(w, j, now, count)
    for i in range(count):
        meet_node(w, NOW, EXTRA, BOTH, t.spot(w).node[i])
    return True


@kernel
def easy_pass(
    w: Record,
    backfill: int,
    now: int,
    pool: int,
    order: np.ndarray,
    first: int,
    last: int,
    stamp: int,
    started: np.ndarray,
) -> int:
    """One pass of `none`, `firstfit` or `easy` over order[first:last]; the number of jobs written to `started`."""
    count = 0
    i = first
    while i < last:
        j = order[i]
        if try_start(w, j, now, stamp):
            started[count] = j
            count += 1
        elif backfill != FIRSTFIT:
            break
        i += 1
    t.pools(w).shadow[pool] = -1
    # Without room for anyone behind the head, its reservation need not be planned.
    if backfill != EASY or i >= last or not any_fits(w, order, i + 1, last, stamp):
        return count
    reserve_head(w, pool, order[i])
    for k in range(i + 1, last):
        if try_backfill(w, pool, order[k], now, stamp):
            started[count] = order[k]
            count += 1
    return count


@kernel
def any_fits(w: Record, order: np.ndarray, first: int, last: int, stamp: int) -> bool:
    """Whether the sums over the pool leave room for at least one of these jobs."""
    for i in range(first, last):
        s = np.int64(t.jobs(w).request[order[i]])
        if t.shapes(w).misfit[s] != stamp:
            if fits_totals(w, s, NOW):
                return True
            t.shapes(w).misfit[s] = stamp
    return False
