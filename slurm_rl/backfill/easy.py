"""Backfill `easy`: the head has a reservation, and jobs behind it start if they do not delay it.

Implements E1 to E6, V4 and V6 of docs/backfill.md. A reservation is planned on nodes only when a job asks for it.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.starting import (
    begin,
    call_place_beside,
    close_reservation,
    copy_pool,
    is_closed,
    meet,
    meet_slots,
    next_fitting,
    open_view,
    spent,
    try_start,
)
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import BOTH, CPU, EXTRA, GIVE, GPU, MEM, NEVER, NOW, OTHER, SCRATCH, Record
from slurm_rl.kernel.jit import inlined, kernel
from slurm_rl.kernel.links import INT, NOTHING, by_address
from slurm_rl.kernel.reserved import ENDS, call_leave_open
from slurm_rl.place.capacity import fits_totals
from slurm_rl.place.catalogue import ROUND_ROBIN
from slurm_rl.place.kernels import apply, call_place, deferred, place_job, take
from slurm_rl.place.levels_ahead import call_reserve_by_level


@kernel
def easy_pass(
    w: Record,
    now: int,
    pool: int,
    order: np.ndarray,
    first: int,
    last: int,
    fresh: int,
    stamp: int,
    started: np.ndarray,
) -> int:
    """One pass over order[first:last] (E1, E3); the number of jobs written to `started` (arguments: dispatch.py)."""
    pools, jobs, requests = t.pools(w), t.jobs(w), t.requests(w)
    count = 0
    i = first
    if fresh == 0:
        pools.shadow[pool] = -1
        while i < last:
            j = order[i]
            if not deferred(w, j) and not is_closed(w, j, stamp):
                if try_start(w, j, now, stamp):
                    started[count] = j
                    count += 1
                elif not close_reservation(w, j, stamp):
                    break
            i += 1
        # Without room for anyone behind the head, its reservation need not be planned.
        head = i
        i = next_fitting(w, order, i + 1, last, stamp)
        if i >= last:
            return count
        bound_shadow(w, pool, order[head])
    while i < last:
        j = order[i]
        i += 1
        s = np.int64(jobs.request[j])
        # Long queues are walked at every pass: what is known of a request is asked before anything is called.
        hopeless = requests.misfit[s] == stamp or (
            requests.misfit_both[s] == stamp and now + jobs.limit[j] > pools.shadow[pool]
        )
        if not hopeless and j >= fresh and not deferred(w, j) and try_backfill(w, pool, j, now, stamp):
            started[count] = j
            count += 1
            if spent(w, pool):
                break
    return count


@inlined
def _meet_again(w: Record, pool: int, a: int, b: int, target: int, count: int) -> None:
    """Likewise of the nodes in `t.spot(w)` alone, the others being as they were."""
    if w.indexed:
        meet(w, pool, a, b, target)
        return
    free, used, total, spot = t.free(w), t.used(w), t.total(w), t.spot(w)
    for i in range(count):
        n = spot.node[i]
        for c in range(3):
            least = min(free[a, n, c], free[b, n, c])
            if c == GPU and used.shape[2] > 0:
                least = meet_slots(w, a, b, target, n)
            total[target, pool, c] += least - free[target, n, c]
            free[target, n, c] = least
        for c in range(OTHER, free.shape[2]):
            free[target, n, c] = min(free[a, n, c], free[b, n, c])


@inlined
def bound_shadow(w: Record, pool: int, head: int) -> None:
    """The earliest that the head could fit by the pool's sums alone: a bound on the shadow time (E2), cheap to have.

    A job that ends by this bound may start whatever the reservation turns out to be; nodes are planned only when
    another one asks. Jobs started before that end by the shadow time, so that planning late plans the same.
    """
    pools, jobs, requests, total, live = t.pools(w), t.jobs(w), t.requests(w), t.total(w), t.live(w)
    running = t.running(w)
    pools.head[pool] = head
    pools.extra_known[pool] = 0
    if w.kept_0 > 0:
        call_reserve_head_beside(w, pool)
        return
    for c in range(3):
        total[EXTRA, pool, c] = total[NOW, pool, c]
    s = np.int64(jobs.request[head])
    i = pools.first_job[pool]
    last = i + pools.running[pool]
    pools.shadow[pool] = NEVER
    while i < last:
        instant = live.expected_end[running[i]]
        while i < last and live.expected_end[running[i]] == instant:
            k = jobs.request[running[i]]
            total[EXTRA, pool, CPU] += requests.units[k] * requests.cpu[k]
            total[EXTRA, pool, MEM] += requests.units[k] * requests.mem[k]
            total[EXTRA, pool, GPU] += requests.units[k] * requests.gpu[k]
            i += 1
        if fits_totals(w, s, EXTRA):
            pools.shadow[pool] = instant
            break
    total[EXTRA, pool, CPU] -= requests.units[s] * requests.cpu[s]
    total[EXTRA, pool, MEM] -= requests.units[s] * requests.mem[s]
    total[EXTRA, pool, GPU] -= requests.units[s] * requests.gpu[s]


@inlined
def reserve_head(w: Record, pool: int) -> None:
    """E2, E5: when the head fits if running jobs use up their limits, and what is left beside it then."""
    pools, jobs, live, running = t.pools(w), t.jobs(w), t.live(w), t.running(w)
    earliest = pools.shadow[pool]  # by the sums: no need to look before
    if w.reserve_by_level_at != 0:
        call_reserve_by_level(w, pool, earliest)
        pools.extra_known[pool] = 1
        pools.both_known[pool] = 0
        return
    copy_pool(w, pool, NOW, EXTRA)
    s = np.int64(jobs.request[pools.head[pool]])
    i = pools.first_job[pool]
    last = i + pools.running[pool]
    pools.shadow[pool] = NEVER  # a head that fits on no empty cluster (nodes are down) holds nobody up
    pools.extra_known[pool] = 1
    pools.both_known[pool] = 0
    while i < last:
        instant = live.expected_end[running[i]]
        while i < last and live.expected_end[running[i]] == instant:
            j = running[i]
            apply(w, np.int64(jobs.request[j]), EXTRA, live.held[j], GIVE)
            i += 1
        if instant >= earliest:
            count = call_place(w, s, EXTRA)
            if count > 0:
                take(w, s, EXTRA, count)
                pools.shadow[pool] = instant
                break


@kernel
def reserve_head_beside(w: Record, pool: int) -> None:
    """V6: likewise beside reservations, of which one may also have to end before the head fits."""
    copy_pool(w, pool, NOW, EXTRA)
    pools, jobs, live, running, kept = t.pools(w), t.jobs(w), t.live(w), t.running(w), t.kept(w)
    head = pools.head[pool]
    s = np.int64(jobs.request[head])
    i = pools.first_job[pool]
    last = i + pools.running[pool]
    pools.shadow[pool] = NEVER
    pools.extra_known[pool] = 1
    pools.both_known[pool] = 0
    instant = w.clock
    while True:
        following = live.expected_end[running[i]] if i < last else NEVER
        for r in range(len(kept)):
            if instant < kept[r, ENDS] < following:
                following = kept[r, ENDS]
        if following == NEVER:
            return
        instant = following
        while i < last and live.expected_end[running[i]] <= instant:
            j = running[i]
            apply(w, np.int64(jobs.request[j]), EXTRA, live.held[j], GIVE)
            i += 1
        call_leave_open(w, head, instant)
        open_view(w, pool, EXTRA)
        count = call_place(w, s, SCRATCH)
        if count > 0:
            take(w, s, EXTRA, count)
            pools.shadow[pool] = instant
            return


call_reserve_head_beside = by_address("reserve_head_beside", reserve_head_beside, NOTHING, INT)


@inlined
def try_backfill(w: Record, pool: int, j: int, now: int, stamp: int) -> bool:
    """E3: starts a job behind the reserved head if it ends by the shadow time or stays within the extra."""
    pools, requests = t.pools(w), t.requests(w)
    s = np.int64(t.jobs(w).request[j])
    if requests.misfit[s] == stamp:
        return False
    if not fits_totals(w, s, NOW):
        requests.misfit[s] = stamp
        return False
    end = now + t.jobs(w).limit[j]
    if end > pools.shadow[pool] and requests.misfit_both[s] == stamp:
        return False
    if pools.extra_known[pool] == 0:
        # Round-robin's choice depends on what starts before, and sums do not tell when shared GPUs become whole.
        plan = w.placer == ROUND_ROBIN or t.used(w).shape[2] > 0
        if plan:
            pools.shadow[pool] = now
        elif end > pools.shadow[pool]:
            plan = fits_totals(w, s, EXTRA) or not _divisible(w, t.jobs(w).request[pools.head[pool]])
        if plan:
            reserve_head(w, pool)
    # The sums of the extra are right here, planned on nodes or not, and only shrink until the next pass.
    if end > pools.shadow[pool] and not fits_totals(w, s, EXTRA):
        requests.misfit_both[s] = stamp
        return False
    beside = w.kept_0 > 0 and call_leave_open(w, j, now)
    if end <= pools.shadow[pool]:
        count = call_place_beside(w, j, s, NOW) if beside else place_job(w, j, s, NOW)
        if count == 0:
            if not beside:
                requests.misfit[s] = stamp
            return False
    else:
        if not pools.both_known[pool]:
            meet(w, pool, NOW, EXTRA, BOTH)
            pools.both_known[pool] = 1
        count = call_place_beside(w, j, s, BOTH) if beside else place_job(w, j, s, BOTH)
        if count == 0:
            if not beside:
                requests.misfit_both[s] = stamp
            return False
        take(w, s, EXTRA, count)
    begin(w, j, now, count)
    if pools.extra_known[pool] and pools.both_known[pool]:
        _meet_again(w, pool, NOW, EXTRA, BOTH, count)
    return True


@inlined
def _divisible(w: Record, s: int) -> bool:
    """Whether a request fits exactly when the sums leave room: single CPUs, or single GPUs, wherever they are."""
    requests = t.requests(w)
    alone = requests.cpu[s] + requests.mem[s] + requests.gpu[s] == 1 and requests.share[s] == 0
    kind = requests.kind[s]
    pool = requests.pool[s]
    everywhere = (
        t.kind_ptr(w)[kind + 1] - t.kind_ptr(w)[kind] == t.pools(w).last_node[pool] - t.pools(w).first_node[pool]
    )
    return alone and everywhere and w.by_type == 0 and requests.per_node[s] >= requests.units[s]
