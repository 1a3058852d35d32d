"""One scheduling pass over a pool: order the queue, start the jobs that the rule allows, skip useless passes."""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.catalogue import EASY, FIRSTFIT, NONE, SLURM
from slurm_rl.backfill.dispatch import start_jobs
from slurm_rl.backfill.starting import copy_pool, next_fitting, spent
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import ARRIVED, GIVE, NO, NOW, SCRATCH, YES, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.kernel.links import BOOL, INT, by_address
from slurm_rl.place.capacity import fits_totals
from slurm_rl.place.kernels import apply, call_place, take
from slurm_rl.policy.estimate import refresh
from slurm_rl.policy.order import call_order_queue, may_starve
from slurm_rl_sim.alike import call_start_alike
from slurm_rl_sim.best import call_start_best
from slurm_rl_sim.moves import arrive, slowest, stop_running
from slurm_rl_sim.renewed import call_renew_order
from slurm_rl_sim.state import QUEUED, queue_place

# What the last pass found: nothing that would last, a reservation of `easy` that stands, or that it has no room for
# anyone behind the head. What an agent's environment found before the pass: nothing in the queue fits. And what a pass
# found of a queue without an order: the sums leave room for nobody.
_UNKNOWN, _STANDS, _NO_ROOM, NOTHING_FITS, _MISFITS = range(5)


@inlined
def ordered(w: Record, now: int, pool: int) -> tuple[np.ndarray, int, int]:
    """The pool's queue in the policy's order: an array with its first and last position."""
    head, tail = t.pools(w).queue_first[pool], t.pools(w).queue_last[pool]
    if w.fixed_order:
        return t.queue(w), head, tail
    call_order_queue(w, float(now), t.queue(w)[head:tail], tail - head)
    return t.order(w), 0, tail - head


@inner
def schedule(w: Record, now: int, pool: int, tick: bool) -> int:
    """Schedules one pool; the number of jobs that start, which are in `t.started(w)`, or MORE_ROWS."""
    pools, queue = t.pools(w), t.queue(w)
    head, tail = pools.queue_first[pool], pools.queue_last[pool]
    queued = tail - head
    if queued == 0:
        pools.planned[pool] = _UNKNOWN
        return 0
    backfill = w.backfill
    preempt = w.preempt == 1 and not tick
    # L5, V2: with limits and reservations, the first in the queue may be held back, and not block: no shortcuts then.
    free_to_start = w.quotas_0 + w.kept_0 == 0
    only_arrivals = pools.change[pool] == ARRIVED and w.fixed_order == 1 and not preempt and free_to_start
    if w.steady == 1 and pools.learned[pool] != w.ended:
        only_arrivals = False  # what ended in another pool may change the order
    if only_arrivals and pools.fresh[pool] < queued:
        # Nothing has ended and the head is the same: whoever waited still waits, only arrivals can start.
        if backfill == NONE:
            return 0
        if backfill == SLURM and pools.planned[pool] == _STANDS:
            if now - pools.last_full[pool] >= w.main_interval:
                pools.last_full[pool] = now
            return 0
        if backfill == FIRSTFIT or (backfill == EASY and pools.planned[pool] == _STANDS):
            return _arrivals(w, now, pool)
        if backfill == EASY and pools.planned[pool] == _NO_ROOM and not _room_for_arrivals(w, pool):
            return 0
    # Estimates are renewed at every pass, be it cut short or not, so that a shortcut never shows in the results.
    if pools.learned[pool] != w.ended:
        pools.learned[pool] = w.ended
        if w.renew_order_at != 0 and w.fixed_order == 1 and w.steady == 1:
            call_renew_order(w, pool)
        else:
            refresh(w, queue[head:tail], queued)
    if pools.planned[pool] == _MISFITS and pools.change[pool] == ARRIVED and not _room_for_arrivals(w, pool):
        return 0
    w.stamp += 1
    stamp = w.stamp
    pools.stamp[pool] = stamp
    partly, grouped = False, False
    if preempt:
        while call_preempt(w, now, pool):
            pass
    elif w.books_many == 0 and w.fixed_order == 0:
        grouped = w.start_alike_at != 0
        at = head
        if pools.planned[pool] == NOTHING_FITS:
            at = tail
        elif not grouped:
            at = next_fitting(w, queue, head, tail, stamp)
        if at == tail:
            pools.planned[pool] = _MISFITS
            return 0  # whatever the order, nothing fits
        alone = pools.last_node[pool] - pools.first_node[pool] == 1
        partly = (
            alone
            and not grouped
            and w.start_best_at != 0
            and w.hint_of_0 == 0
            and w.quotas_0 + w.kept_0 == 0
            and len(t.tiers(w)) == 0
            and w.taping == 0
        )
    elif w.fixed_order == 1 and w.start_alike_at != 0:
        grouped = queued > w.long_queue
    if grouped:
        count = call_start_alike(w, now, pool, stamp)
        if count < 0:
            if w.fixed_order == 0:
                pools.planned[pool] = _MISFITS
                return 0
            count, pools.shadow[pool] = 0, -1
    elif partly:
        kept = w.steady == 1 and not may_starve(w) and w.lane_share == 0.0
        if not kept:
            w.scores_only = 1
            call_order_queue(w, float(now), queue[head:tail], queued)
            w.scores_only = 0
        count = call_start_best(w, now, pool, queue[head:tail], stamp, kept)
    else:
        order, first, last = ordered(w, now, pool)
        count = start_jobs(w, now, pool, order, first, last, 0, stamp, tick)
    if backfill == EASY:
        # The reservation stands while nothing ends; on several nodes, a start may make the placer choose others.
        alone = pools.last_node[pool] - pools.first_node[pool] == 1
        pools.planned[pool] = _UNKNOWN
        if pools.shadow[pool] < 0 or spent(w, pool):
            pools.planned[pool] = _NO_ROOM
        elif (alone or count == 0) and w.by_type == 0:  # what `greedy` and `mip` prefer changes at every pass
            pools.planned[pool] = _STANDS
    elif backfill == SLURM:
        # S1: who comes first does not fit, and its partition is the only one.
        if not tick and count < w.main_depth and pools.parts[pool] == 1:
            pools.planned[pool] = _STANDS
        elif count > 0 or not tick:
            pools.planned[pool] = _UNKNOWN
    else:
        pools.planned[pool] = _UNKNOWN
    return count


@inlined
def _room_for_arrivals(w: Record, pool: int) -> bool:
    """Whether the sums leave room for one of the jobs that have just arrived."""
    jobs, requests = t.jobs(w), t.requests(w)
    for j in range(w.fresh, w.arrived):
        s = np.int64(jobs.request[j])
        if requests.pool[s] == pool and fits_totals(w, s, NOW):
            return True
    return False


@inlined
def _arrivals(w: Record, now: int, pool: int) -> int:
    """Tests the jobs that have just arrived, in order, against what is free (and the reservation of EASY)."""
    pools, queue, requests, jobs, live = t.pools(w), t.queue(w), t.requests(w), t.jobs(w), t.live(w)
    first, last = pools.queue_first[pool], pools.queue_last[pool]
    if pools.fresh[pool] == 1:
        # The usual case: one arrival, found without a walk along the queue.
        lone = w.arrived - 1
        while requests.pool[jobs.request[lone]] != pool or live.state[lone] != QUEUED:
            lone -= 1
        first = last - 1 if queue[last - 1] == lone else queue_place(w, pool, lone)
        last = first + 1
    count = start_jobs(w, now, pool, queue, first, last, w.fresh, pools.stamp[pool], NO)
    if count > 0 and pools.last_node[pool] - pools.first_node[pool] > 1:
        pools.planned[pool] = _UNKNOWN
    return count


@kernel
def preempt(w: Record, now: int, pool: int) -> bool:
    """Makes room for the first blocked job by taking running jobs that rank below it, the lowest first."""
    order, first, last = ordered(w, now, pool)
    copy_pool(w, pool, NOW, SCRATCH)
    i = first
    while i < last:
        s = np.int64(t.jobs(w).request[order[i]])
        count = call_place(w, s, SCRATCH)
        if count == 0:
            break
        take(w, s, SCRATCH, count)
        i += 1
    if i == last:
        return False
    blocked = order[i]
    bar = _preemption_rank(w, blocked, now)
    base = t.pools(w).first_job[pool]
    candidates = t.pools(w).running[pool]
    victims = np.empty(candidates, dtype=np.int64)
    taken = np.zeros(candidates, dtype=np.bool_)
    count = 0
    fits = False
    while not fits:
        worst, worst_rank = -1, bar
        for k in range(candidates):
            if not taken[k]:
                j = t.running(w)[base + k]
                rank = _preemption_rank(w, j, now)
                # Of equals, the one that started last loses least.
                if rank < worst_rank or (
                    worst >= 0
                    and rank == worst_rank
                    and t.live(w).start[j] > t.live(w).start[t.running(w)[base + worst]]
                ):
                    worst, worst_rank = k, rank
        if worst < 0:
            return False
        taken[worst] = True
        victim = t.running(w)[base + worst]
        victims[count] = victim
        count += 1
        apply(w, np.int64(t.jobs(w).request[victim]), SCRATCH, t.live(w).held[victim], GIVE)
        fits = call_place(w, np.int64(t.jobs(w).request[blocked]), SCRATCH) > 0
    for k in range(count):
        stop_running(w, victims[k], now, YES)
        arrive(w, victims[k])
    return True


call_preempt = by_address("preempt", preempt, BOOL, INT, INT)


@inlined
def _preemption_rank(w: Record, j: int, now: int) -> float:
    """What preemption compares, higher keeps its nodes: short remaining time under srpt, else the own priority."""
    if w.by_remaining:
        ran = t.live(w).done[j]
        if t.live(w).held[j] > 0:
            ran += (now - t.live(w).start[j]) * slowest(w, j)
        return -max(t.live(w).expected[j] - ran, 1.0)
    return t.jobs(w).priority[j]
