"""Which jobs of an ordered queue start now: `none`, `firstfit` and `easy`; what they share with `profile.py`.

The rules, to the letter, are in docs/backfill.md. `decide` and the replay engine call the same functions.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.domain import tables as t
from slurm_rl.domain.arrays import BOTH, CPU, EXTRA, GIVE, GPU, MEM, NEVER, NOW, Array, Record
from slurm_rl.domain.links import INT, LIST, by_address
from slurm_rl.jit import inlined, inner, kernel
from slurm_rl.place.kernels import GREEDY, ROUND_ROBIN, apply, call_place, place_job, put_off, record, take
from slurm_rl.place.room import fits_totals

NONE, FIRSTFIT, EASY, CONSERVATIVE, SLURM = np.arange(5)
BACKFILLS = {"none": NONE, "firstfit": FIRSTFIT, "easy": EASY, "conservative": CONSERVATIVE, "slurm": SLURM}


@inner
def begin(w: Record, j: int, now: int, count: int) -> None:
    """Gives job `j` the placement in `t.spot(w)` and enters it among the running."""
    pools = t.pools(w)
    s = np.int64(t.jobs(w).request[j])
    take(w, s, NOW, count)
    t.live(w).held[j] = record(w, count)
    pool = t.shapes(w).pool[s]
    if w.placer == ROUND_ROBIN:
        pools.cursor[pool] = t.spot(w).node[count - 1] + 1
        if pools.cursor[pool] >= pools.last_node[pool]:
            pools.cursor[pool] = pools.first_node[pool]
    enter_running(w, pool, j, now + t.jobs(w).limit[j])


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
    for i in range(pools.first_job[pool] + pools.running[pool], at, -1):
        running[i] = running[i - 1]
    running[at] = j
    pools.running[pool] += 1


@inlined
def leave_running(w: Record, pool: int, j: int) -> None:
    """Takes a job off the pool's running list."""
    pools, running = t.pools(w), t.running(w)
    at = _running_place(w, pool, j)
    pools.running[pool] -= 1
    for i in range(at, pools.first_job[pool] + pools.running[pool]):
        running[i] = running[i + 1]


@inner
def copy_pool(w: Record, pool: int, source: int, target: int) -> None:
    """Copies a pool's part of one view into another."""
    free, used, total = t.free(w), t.used(w), t.total(w)
    for n in range(t.pools(w).first_node[pool], t.pools(w).last_node[pool]):
        for c in range(3):
            free[target, n, c] = free[source, n, c]
        for k in range(used.shape[2]):
            used[target, n, k] = used[source, n, k]
    for c in range(3):
        total[target, pool, c] = total[source, pool, c]


@inner
def meet(w: Record, pool: int, a: int, b: int, target: int) -> None:
    """On a pool's nodes, what is free in both views, with its sums; `target` may be one of them."""
    free, used, total = t.free(w), t.used(w), t.total(w)
    slots = used.shape[2]
    cpu, mem, gpu = np.int64(0), np.int64(0), np.int64(0)
    for n in range(t.pools(w).first_node[pool], t.pools(w).last_node[pool]):
        x = min(free[a, n, CPU], free[b, n, CPU])
        y = min(free[a, n, MEM], free[b, n, MEM])
        z = min(free[a, n, GPU], free[b, n, GPU])
        if slots > 0:
            z = _meet_slots(used, a, b, target, n)
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
def _meet_slots(used: Array, a: int, b: int, target: int, n: int) -> int:
    """Likewise of a node's GPUs that are told apart; how many of them are whole."""
    whole = 0
    for k in range(used.shape[2]):
        most = max(used[a, n, k], used[b, n, k])
        used[target, n, k] = most
        whole += most == 0
    return whole


@inlined
def _meet_again(w: Record, pool: int, a: int, b: int, target: int, count: int) -> None:
    """Likewise of the nodes in `t.spot(w)` alone, the others being as they were."""
    free, used, total, spot = t.free(w), t.used(w), t.total(w), t.spot(w)
    for i in range(count):
        n = spot.node[i]
        for c in range(3):
            least = min(free[a, n, c], free[b, n, c])
            if c == GPU and used.shape[2] > 0:
                least = _meet_slots(used, a, b, target, n)
            total[target, pool, c] += least - free[target, n, c]
            free[target, n, c] = least


@inlined
def try_start(w: Record, j: int, now: int, stamp: int) -> bool:
    """Starts a job if it fits what is free; remembers shapes that did not, since a pass only uses resources up."""
    s = np.int64(t.jobs(w).request[j])
    if t.shapes(w).misfit[s] == stamp:
        return False
    count = place_job(w, j, s, NOW)
    if count == 0:
        t.shapes(w).misfit[s] = stamp
        return False
    begin(w, j, now, count)
    return True


@inlined
def foresee(w: Record, pool: int, head: int) -> None:
    """The earliest that the head could fit by the pool's sums alone: a bound on the shadow time, cheap to have.

    A job that ends by this bound may start whatever the reservation turns out to be; nodes are planned only when
    another one asks. Jobs started before that end by the shadow time, so that planning late plans the same.
    """
    pools, jobs, shapes, total, live = t.pools(w), t.jobs(w), t.shapes(w), t.total(w), t.live(w)
    running = t.running(w)
    pools.head[pool] = head
    pools.extra_known[pool] = 0
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
            total[EXTRA, pool, CPU] += shapes.units[k] * shapes.cpu[k]
            total[EXTRA, pool, MEM] += shapes.units[k] * shapes.mem[k]
            total[EXTRA, pool, GPU] += shapes.units[k] * shapes.gpu[k]
            i += 1
        if fits_totals(w, s, EXTRA):
            pools.shadow[pool] = instant
            break
    total[EXTRA, pool, CPU] -= shapes.units[s] * shapes.cpu[s]
    total[EXTRA, pool, MEM] -= shapes.units[s] * shapes.mem[s]
    total[EXTRA, pool, GPU] -= shapes.units[s] * shapes.gpu[s]


@inlined
def reserve_head(w: Record, pool: int) -> None:
    """EASY's reservation: when the head fits if running jobs use up their limits, and what is left beside it then."""
    copy_pool(w, pool, NOW, EXTRA)
    pools, jobs, live, running = t.pools(w), t.jobs(w), t.live(w), t.running(w)
    s = np.int64(jobs.request[pools.head[pool]])
    i = pools.first_job[pool]
    last = i + pools.running[pool]
    earliest = pools.shadow[pool]  # by the sums: no need to look before
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


@inlined
def try_backfill(w: Record, pool: int, j: int, now: int, stamp: int) -> bool:
    """Starts a job behind the reserved head if it ends by the shadow time or stays within the extra."""
    pools, shapes = t.pools(w), t.shapes(w)
    s = np.int64(t.jobs(w).request[j])
    if shapes.misfit[s] == stamp:
        return False
    if not fits_totals(w, s, NOW):
        shapes.misfit[s] = stamp
        return False
    end = now + t.jobs(w).limit[j]
    if end > pools.shadow[pool] and shapes.misfit_both[s] == stamp:
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
        shapes.misfit_both[s] = stamp
        return False
    if end <= pools.shadow[pool]:
        count = place_job(w, j, s, NOW)
        if count == 0:
            shapes.misfit[s] = stamp
            return False
    else:
        if not pools.both_known[pool]:
            meet(w, pool, NOW, EXTRA, BOTH)
            pools.both_known[pool] = 1
        count = place_job(w, j, s, BOTH)
        if count == 0:
            shapes.misfit_both[s] = stamp
            return False
        take(w, s, EXTRA, count)
    begin(w, j, now, count)
    if pools.extra_known[pool] and pools.both_known[pool]:
        _meet_again(w, pool, NOW, EXTRA, BOTH, count)
    return True


@inlined
def _divisible(w: Record, s: int) -> bool:
    """Whether a shape fits exactly when the sums leave room: single CPUs, or single GPUs, wherever they are."""
    shapes = t.shapes(w)
    alone = shapes.cpu[s] + shapes.mem[s] + shapes.gpu[s] == 1 and shapes.share[s] == 0
    kind = shapes.kind[s]
    pool = shapes.pool[s]
    everywhere = (
        t.kind_ptr(w)[kind + 1] - t.kind_ptr(w)[kind] == t.pools(w).last_node[pool] - t.pools(w).first_node[pool]
    )
    return alone and everywhere and w.placer < GREEDY and shapes.per_node[s] >= shapes.units[s]


@inlined
def spent(w: Record, pool: int) -> bool:
    """Whether nothing is left for anyone: every job takes a CPU or a GPU (or, where slots are told apart, a share)."""
    total = t.total(w)
    return total[NOW, pool, CPU] == 0 and total[NOW, pool, GPU] == 0 and t.used(w).shape[2] == 0


@kernel
def easy_pass(
    w: Record,
    backfill: int,
    now: int,
    pool: int,
    order: np.ndarray,
    first: int,
    last: int,
    fresh: int,
    stamp: int,
    started: np.ndarray,
) -> int:
    """One pass of `none`, `firstfit` or `easy` over order[first:last]; the number of jobs written to `started`.

    If nothing has changed since a pass with that stamp but for arrivals, `fresh` is the first of them: only they are
    tested, by `easy` against the reservation that was planned then. Otherwise it is 0.
    """
    pools, jobs, shapes = t.pools(w), t.jobs(w), t.shapes(w)
    count = 0
    i = first
    if backfill != EASY or fresh == 0:
        pools.shadow[pool] = -1
        while i < last:
            j = order[i]
            if put_off(w, j):
                i += 1
                continue
            if j >= fresh and try_start(w, j, now, stamp):
                started[count] = j
                count += 1
                if backfill == FIRSTFIT and spent(w, pool):
                    break
            elif backfill != FIRSTFIT:
                break
            i += 1
        if backfill != EASY:
            return count
        # Without room for anyone behind the head, its reservation need not be planned.
        head = i
        i = next_fitting(w, order, i + 1, last, stamp)
        if i >= last:
            return count
        foresee(w, pool, order[head])
    while i < last:
        j = order[i]
        i += 1
        s = np.int64(jobs.request[j])
        # Long queues are walked at every pass: what is known of a shape is asked before anything is called.
        hopeless = shapes.misfit[s] == stamp or (
            shapes.misfit_both[s] == stamp and now + jobs.limit[j] > pools.shadow[pool]
        )
        if not hopeless and j >= fresh and not put_off(w, j) and try_backfill(w, pool, j, now, stamp):
            started[count] = j
            count += 1
            if spent(w, pool):
                break
    return count


call_easy_pass = by_address("easy_pass", easy_pass, INT, INT, INT, INT, LIST, INT, INT, INT, INT, LIST)


@inlined
def next_fitting(w: Record, order: np.ndarray, first: int, last: int, stamp: int) -> int:
    """The first position of a job for which the sums over the pool leave room; `last`, or beyond, if there is none."""
    jobs, shapes = t.jobs(w), t.shapes(w)
    at = first
    while at < last:
        s = np.int64(jobs.request[order[at]])
        if shapes.misfit[s] != stamp:
            if fits_totals(w, s, NOW):
                break
            shapes.misfit[s] = stamp
        at += 1
    return at
