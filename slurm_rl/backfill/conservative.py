"""Backfill `conservative`: a reservation for every job, on a profile of free resources over time.

Implements C1 to C4 of docs/backfill.md. A profile is a list of rows in time order; row i is a view of what is
free from its time until the next row's.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.rows import MORE_ROWS, row_at
from slurm_rl.backfill.starting import begin, copy_pool, meet, open_view
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import FIRST_ROW, GIVE, NOW, RELEASED, SCRATCH, TAKE, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.kernel.quotas import held_back
from slurm_rl.kernel.reserved import ENDS, call_leave_open
from slurm_rl.place.capacity import fits_totals
from slurm_rl.place.kernels import apply, call_place, forget, place_job, record


@inlined
def _split(w: Record, count: int, pool: int, instant: int) -> int:
    """Makes sure that a row begins at `instant` (not before the first row); the new number of rows."""
    at = row_at(w, count, instant)
    if at < count and t.rows(w).time[at] == instant:
        return count
    for i in range(count, at, -1):
        t.rows(w).time[i] = t.rows(w).time[i - 1]
        t.rows(w).row[i] = t.rows(w).row[i - 1]
    t.rows(w).time[at] = instant
    t.rows(w).row[at] = FIRST_ROW + count
    copy_pool(w, pool, t.rows(w).row[at - 1], t.rows(w).row[at])
    return count + 1


@inner
def _build(w: Record, pool: int, now: int) -> int:
    """Rows from what is free now and from the expected ends of running jobs; their number."""
    t.rows(w).time[0] = now
    t.rows(w).row[0] = FIRST_ROW
    copy_pool(w, pool, NOW, FIRST_ROW)
    count = 1
    first = t.pools(w).first_job[pool]
    for i in range(first, first + t.pools(w).running[pool]):
        j = t.running(w)[i]
        instant = t.live(w).expected_end[j]
        if instant != t.rows(w).time[count - 1]:
            t.rows(w).time[count] = instant
            t.rows(w).row[count] = FIRST_ROW + count
            copy_pool(w, pool, FIRST_ROW + count - 1, FIRST_ROW + count)
            count += 1
        apply(w, np.int64(t.jobs(w).request[j]), FIRST_ROW + count - 1, t.live(w).held[j], GIVE)
    return count


@inner
def _earliest(w: Record, count: int, pool: int, j: int) -> int:
    """The first row from which the job fits until its limit, with its placement in `t.spot(w)`; -1 if none."""
    s = np.int64(t.jobs(w).request[j])
    limit = t.jobs(w).limit[j]
    i = 0
    while i < count:
        end = t.rows(w).time[i] + limit
        k = i
        blocked = -1
        while k < count and t.rows(w).time[k] < end:
            if not fits_totals(w, s, t.rows(w).row[k]):
                blocked = k
                break
            k += 1
        if blocked >= 0:
            i = blocked + 1
            continue
        view = t.rows(w).row[i]
        beside = w.kept_0 > 0 and call_leave_open(w, j, t.rows(w).time[i])
        if beside:
            open_view(w, pool, view)
            view = SCRATCH
        # A quick no on the first row alone saves meeting all the others.
        if (place_job(w, j, s, view) if i == 0 else call_place(w, s, view)) > 0:
            if k == i + 1:
                return i
            if not beside:
                copy_pool(w, pool, view, SCRATCH)
            for r in range(i + 1, k):
                meet(w, pool, SCRATCH, t.rows(w).row[r], SCRATCH)
            if (place_job(w, j, s, SCRATCH) if i == 0 else call_place(w, s, SCRATCH)) > 0:
                return i
        i += 1
    return -1


@inlined
def _entries(w: Record, s: int) -> int:
    """How many entries the placement in `t.spot(w)` has: they hold all the units of the request."""
    left = t.requests(w).units[s]
    count = 0
    while left > 0:
        left -= t.spot(w).units[count]
        count += 1
    return count


@inner
def _occupy(w: Record, count: int, pool: int, j: int, start: int, chain: int, sign: int) -> int:
    """Takes (TAKE) a chain out of the rows from `start` to the job's limit, or gives it back; the number of rows."""
    end = start + t.jobs(w).limit[j]
    count = _split(w, count, pool, start)
    count = _split(w, count, pool, end)
    i = row_at(w, count, start)
    while i < count and t.rows(w).time[i] < end:
        apply(w, np.int64(t.jobs(w).request[j]), t.rows(w).row[i], chain, sign)
        i += 1
    return count


@kernel
def conservative_pass(
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
    """Books every job (C1, C3); after a release, moves bookings forward in order (C2).

    The number of started jobs, or MORE_ROWS.
    """
    released = t.pools(w).change[pool] == RELEASED
    queued = last - first
    if 4 + t.pools(w).running[pool] + 4 * queued + 2 * w.kept_0 > len(t.rows(w)):
        return MORE_ROWS
    count = _build(w, pool, now)
    for r in range(w.kept_0):
        if t.kept(w)[r, ENDS] > now:
            count = _split(w, count, pool, t.kept(w)[r, ENDS])
    if w.quotas_0 + w.kept_0 > 0:
        released |= _unbook_held(w, order, first, last)
    for i in range(first, last):
        j = order[i]
        if t.live(w).booked_start[j] >= 0:
            count = _occupy(w, count, pool, j, t.live(w).booked_start[j], t.live(w).booked[j], TAKE)
    starts = 0
    for i in range(first, last):
        j = order[i]
        if t.live(w).booked_start[j] >= 0:
            if not released:
                continue
            count = _occupy(w, count, pool, j, t.live(w).booked_start[j], t.live(w).booked[j], GIVE)
            unbook(w, j)
        if held_back(w, j) > 0:
            continue
        at = _earliest(w, count, pool, j)
        if at < 0:
            continue  # fits on no empty cluster while nodes are down: booked again when they return
        entries = _entries(w, np.int64(t.jobs(w).request[j]))
        start = t.rows(w).time[at]
        if at == 0:
            begin(w, j, now, entries)
            count = _occupy(w, count, pool, j, start, t.live(w).held[j], TAKE)
            started[starts] = j
            starts += 1
        else:
            t.live(w).booked[j] = record(w, entries)
            t.live(w).booked_start[j] = start
            count = _occupy(w, count, pool, j, start, t.live(w).booked[j], TAKE)
    return starts


@inner
def _unbook_held(w: Record, order: np.ndarray, first: int, last: int) -> bool:
    """L3, V2: drops the bookings of jobs that are held back; whether there were any."""
    any_dropped = False
    for i in range(first, last):
        if t.live(w).booked_start[order[i]] >= 0 and held_back(w, order[i]) > 0:
            unbook(w, order[i])
            any_dropped = True
    return any_dropped


@inlined
def unbook(w: Record, j: int) -> None:
    """Drops a job's booking: C2, and C4 when nodes go down or come back."""
    forget(w, t.live(w).booked[j])
    t.live(w).booked[j] = 0
    t.live(w).booked_start[j] = -1
