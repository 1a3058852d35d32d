"""Backfill `slurm`: the main scheduler's passes and the cycles of sched/backfill, on named nodes.

Implements S1 to S3 and S5 to S8 of docs/backfill.md. Every reservation takes whole nodes (bitmaps.py). When a
job could run is asked of running.py. Three shortcuts are exact, since a cycle only uses nodes up: it ends when no later
job could start now, a job like one that found no place is not planned again until another plan was made, and a job is
not tried at a time at which all nodes together have no room for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.backfill.bitmaps import ALLOWED, CHOSEN, all_free, free_between, overlaps, reserve
from slurm_rl.backfill.pieces import begin_cycle, mark_chosen
from slurm_rl.backfill.running import by_room, masked, may_run, not_before, note_started, room_now, usable_row, will_run
from slurm_rl.backfill.slurm_reserved import look_at_reservations, main_pass_beside
from slurm_rl.backfill.starting import begin, try_start
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import EXTRA, NOW, Array, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.kernel.quotas import AMOUNTS, JOBS, LICENSES, RESERVED, held_back
from slurm_rl.kernel.reserved import own_reservation
from slurm_rl.place.capacity import fits_totals
from slurm_rl.place.kernels import call_place, deferred

_NOTHING, _STARTED, _RESERVED = range(3)  # what a cycle did for a job


@kernel
def main_pass(
    w: Record, now: int, pool: int, order: Array, first: int, last: int, fresh: int, stamp: int, started: Array
) -> int:
    """S1, the main scheduler: jobs in order; one that does not fit closes its partition, and its nodes to others."""
    end = last
    if now - t.pools(w).last_full[pool] < w.main_interval:
        end = min(last, first + w.main_depth)
    else:
        t.pools(w).last_full[pool] = now
    if w.kept_0 > 0:
        return main_pass_beside(w, now, pool, order, first, last, end - first, stamp, started)
    alone = t.pools(w).parts[pool] == 1
    reach, bits = t.reach(w), t.bitmaps(w)
    words = bits.shape[1]
    blocked = False
    for k in range(words):
        bits[CHOSEN, k] = 0  # nodes of partitions with a job that does not fit
    count = 0
    for i in range(first, end):
        j = order[i]
        if deferred(w, j):
            continue
        s = np.int64(t.jobs(w).request[j])
        if not blocked:
            if try_start(w, j, now, stamp):
                started[count] = j
                count += 1
                continue
        else:
            mine, taken = False, True
            for k in range(words):
                mine |= reach[s, k] & bits[CHOSEN, k] != 0
                taken &= reach[s, k] & ~bits[CHOSEN, k] == 0
            if taken:
                continue
            if not mine:
                if try_start(w, j, now, stamp):
                    started[count] = j
                    count += 1
                    continue
            elif t.requests(w).misfit[s] != stamp:
                for k in range(words):
                    bits[ALLOWED, k] = reach[s, k] & ~bits[CHOSEN, k]
                if w.by_runs:
                    w.within = 1
                    entries = call_place(w, s, NOW)
                    w.within = 0
                else:
                    masked(w, pool, NOW, EXTRA)
                    entries = call_place(w, s, EXTRA)
                if entries > 0:
                    begin(w, j, now, entries)
                    started[count] = j
                    count += 1
                    continue
        if alone:
            return count
        blocked = True
        for k in range(words):
            bits[CHOSEN, k] |= reach[s, k]
    return count


@kernel
def slurm_cycle(
    w: Record, now: int, pool: int, order: Array, first: int, last: int, fresh: int, stamp: int, started: Array
) -> int:
    """One cycle of sched/backfill over order[first:last] (S3 to S8); the number of started jobs."""
    jobs, requests = t.jobs(w), t.requests(w)
    if w.quotas_0 + w.kept_0 == 0:
        last = min(last, first + w.bf_depth)
    begin_cycle(w, pool)
    # Reservations matter only to a later job that could start now: without one, the cycle would change nothing.
    final = -1
    for i in range(first, last):
        s = np.int64(jobs.request[order[i]])
        if requests.misfit[s] != stamp and requests.fitted[s] != stamp:
            if _fits_now(w, s, stamp):
                requests.fitted[s] = stamp
            else:
                requests.misfit[s] = stamp
        if requests.misfit[s] != stamp:
            final = i
    if final < 0:
        return 0
    horizon = (now + w.bf_window) // w.bf_resolution * w.bf_resolution
    count = all_free(w, now // w.bf_resolution * w.bf_resolution)
    if w.bf_user > 0 or w.bf_part > 0:
        t.tally(w)[:] = 0
    starts, plans, tested = 0, 0, 0
    unsure = False  # whether the last job that could start has to be asked again
    i = first
    while i <= final:
        j = order[i]
        i += 1
        held = held_back(w, j)
        if held in (JOBS, RESERVED):
            continue
        if _over_limits(w, j):
            tested += 1
            continue
        if held == LICENSES:
            continue
        # L3: only what select/cons_tres was asked about counts towards bf_max_job_test.
        tested += 1
        if tested > w.bf_depth:
            break
        if held == AMOUNTS:
            continue
        s = np.int64(jobs.request[j])
        limit = jobs.limit[j]
        plain = own_reservation(w, j) < 0
        vain = requests.vain_stamp[s] == stamp and requests.vain_limit[s] == limit and requests.vain_plan[s] == plans
        if vain and plain:
            continue
        done, count = _plan(w, now, pool, j, s, count, horizon, stamp)
        if done == _STARTED:
            plans += 1
            started[starts] = j
            starts += 1
            unsure = True
            if w.bf_starts > 0 and starts >= w.bf_starts:
                break
            continue
        if plain:
            _note_late(w, s, limit, stamp)
        if done == _NOTHING:
            if plain:
                requests.vain_stamp[s], requests.vain_limit[s], requests.vain_plan[s] = stamp, limit, plans
            continue
        plans += 1
        if unsure or final < i or _touches_room(w, np.int64(jobs.request[order[final]]), stamp):
            while final >= i and not _could_start(w, now, pool, order[final], count, horizon, stamp):
                final -= 1
            unsure = False
    return starts


@inner
def _fits_now(w: Record, s: int, stamp: int) -> bool:
    """Whether a request fits as things are."""
    if not by_room(w):
        return call_place(w, s, NOW) > 0
    if not fits_totals(w, s, NOW):
        return False
    return t.in_sum(w)[room_now(w, s, stamp)] >= t.requests(w).units[s]


@inlined
def _touches_room(w: Record, s: int, stamp: int) -> bool:
    """Whether the nodes that were just reserved, CHOSEN, have room for a request as things are."""
    if not by_room(w):
        return True
    bits, roomy, slot = t.bitmaps(w), t.roomy(w), room_now(w, s, stamp)
    touches = False
    for k in range(w.first_word, w.last_word):
        touches |= bits[CHOSEN, k] & roomy[slot, k] != 0
    return touches


@inlined
def _over_limits(w: Record, j: int) -> bool:
    """S3: whether as many jobs of the user, or of the partition, were tested as may be; counts this one if not."""
    if w.bf_user == 0 and w.bf_part == 0:
        return False
    tally = t.tally(w)
    user, part = np.int64(t.jobs(w).user[j]), len(t.users(w)) + np.int64(t.jobs(w).partition[j])
    if (w.bf_user > 0 and tally[user] >= w.bf_user) or (w.bf_part > 0 and tally[part] >= w.bf_part):
        return True
    tally[user] += 1
    tally[part] += 1
    return False


@inlined
def _note_late(w: Record, s: int, limit: int, stamp: int) -> None:
    """Remembers that no job of a request with such a limit, or a longer one, can start in this cycle."""
    requests = t.requests(w)
    if requests.late_stamp[s] != stamp or requests.late_limit[s] > limit:
        requests.late_stamp[s], requests.late_limit[s] = stamp, limit


@inlined
def _could_start(w: Record, now: int, pool: int, j: int, count: int, horizon: int, stamp: int) -> bool:
    """Whether a job could still start now beside the reservations made so far; there will only be more of them."""
    requests = t.requests(w)
    s = np.int64(t.jobs(w).request[j])
    limit = t.jobs(w).limit[j]
    plain = own_reservation(w, j) < 0
    late = requests.late_stamp[s] == stamp and limit >= requests.late_limit[s]
    if requests.misfit[s] == stamp or (late and plain):
        return False
    base = usable_row(w, s, stamp)
    if w.kept_0 > 0:
        at, _ = look_at_reservations(w, j, s, now, horizon)
        if at != now:
            return False
        base = t.usable(w).shape[0] - 1
    free_between(w, count, base, now, now + limit, horizon, now)
    if may_run(w, s, pool, stamp):
        return True
    if plain:
        _note_late(w, s, limit, stamp)
    return False


@inner
def _plan(w: Record, now: int, pool: int, j: int, s: int, count: int, horizon: int, stamp: int) -> tuple[int, int]:
    """Starts a job, or reserves nodes for it (S7): which of them, and the number of sets over time."""
    limit, resolution = t.jobs(w).limit[j], w.bf_resolution
    later = now
    base: Any = usable_row(w, s, stamp)
    again: Any = np.int64(0)
    bound = not_before(w, now, pool, s, stamp)
    while True:
        begins = later
        if w.kept_0 > 0:
            begins, again = look_at_reservations(w, j, s, begins, horizon)
            if begins < 0:
                return _NOTHING, count
            base = t.usable(w).shape[0] - 1
        later = free_between(w, count, base, begins, begins + limit, horizon, bound)
        if again > 0 and (later == 0 or again < later):
            later = again
        if later > 0 and bound > later:
            continue
        if bound > now + w.bf_window:
            return _NOTHING, count
        found, entries = will_run(w, now, pool, j, s, later, stamp)
        if entries == 0:
            if later == 0:
                return _NOTHING, count
            continue
        start = max(found, begins)
        if start <= now:
            if w.by_runs:
                mark_chosen(w, entries, count)
            begin(w, j, now, entries)
            note_started(w, j)
            return _STARTED, count
        if later > 0 and start > later:
            continue
        if start > now + w.bf_window:
            return _NOTHING, count
        mark_chosen(w, entries, count)
        lower = start // resolution * resolution
        upper = (start + limit) // resolution * resolution
        if overlaps(w, count, lower, upper, horizon):
            later = start
            continue
        lower = max(lower, t.rows(w).time[0])
        return _RESERVED, reserve(w, count, lower, max(upper, lower + resolution), horizon)
