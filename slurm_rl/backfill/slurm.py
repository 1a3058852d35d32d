"""Backfill `slurm`: sched/backfill's shape, with reservations as amounts per class of nodes.

Implements S1 to S5 of docs/backfill.md. Every interval, the first jobs in order are tested. One that can start without
touching what earlier ones were promised starts, on concrete nodes; another is promised amounts (CPUs, MB, GPUs) of
node classes from the earliest time at which they are free until its limit. Promises are made anew in every cycle, as
Slurm does. Planning amounts instead of nodes keeps a cycle over a thousand nodes and hundreds of jobs within a
fraction of a millisecond.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.none import none_pass
from slurm_rl.backfill.rows import MORE_ROWS, row_at
from slurm_rl.backfill.starting import begin
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, GPU_MILLI, MEM, NOW, PARTS, Array, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.place.kernels import call_place, place_job

# sched/backfill's shape, with Slurm's defaults: bf_max_job_test, bf_window, bf_resolution, and the main scheduler's
# default_queue_depth; bf_interval is in the catalogue.
DEPTH, WINDOW, RESOLUTION, MAIN_DEPTH = np.array([500, 86400, 60, 100])


@inlined
def _need(w: Record, s: int, resource: int) -> int:
    """What one unit of a request takes: CPUs, MB, thousandths of GPUs."""
    requests = t.requests(w)
    if resource == CPU:
        return requests.cpu[s]
    if resource == MEM:
        return requests.mem[s]
    return requests.gpu[s] * GPU_MILLI + requests.share[s]


@inner
def _build(w: Record, pool: int, now: int, horizon: int) -> int:
    """Rows from what is free now and from the expected ends of running jobs up to the horizon; their number."""
    rows, amount, free, used = t.rows(w), t.amount(w), t.free(w), t.used(w)
    classes = amount.shape[1]
    rows.time[0] = now
    for c in range(classes):
        for r in range(3):
            amount[0, c, r] = 0
    for n in range(t.pools(w).first_node[pool], t.pools(w).last_node[pool]):
        c = t.nodes(w).klass[n]
        amount[0, c, CPU] += free[NOW, n, CPU]
        amount[0, c, MEM] += free[NOW, n, MEM]
        if used.shape[2] == 0:
            amount[0, c, GPU] += free[NOW, n, GPU] * GPU_MILLI
        else:
            for k in range(used.shape[2]):
                parts = t.devices(w)[c, k, PARTS]
                if parts > 0:
                    amount[0, c, GPU] += GPU_MILLI - used[NOW, n, k] * GPU_MILLI // parts
    count = 1
    first = t.pools(w).first_job[pool]
    for i in range(first, first + t.pools(w).running[pool]):
        j = t.running(w)[i]
        instant = -(-t.live(w).expected_end[j] // RESOLUTION) * RESOLUTION
        if instant > horizon:
            break
        if instant != rows.time[count - 1]:
            rows.time[count] = instant
            for c in range(classes):
                for r in range(3):
                    amount[count, c, r] = amount[count - 1, c, r]
            count += 1
        _add(w, count - 1, count, np.int64(t.jobs(w).request[j]), t.live(w).held[j], 1)
    return count


@inlined
def _add(w: Record, first: int, last: int, s: int, chain: int, sign: int) -> None:
    """Adds what a chain of entries holds to the rows first … last, or takes it away."""
    while chain > 0:
        c = t.nodes(w).klass[t.entries(w).node[chain]]
        units = t.entries(w).units[chain] * sign
        for row in range(first, last):
            for r in range(3):
                t.amount(w)[row, c, r] += units * _need(w, s, r)
        chain = t.entries(w).next[chain]


@inner
def _split(w: Record, count: int, instant: int) -> int:
    """Makes sure that a row begins at `instant`, which is later than the first; the new number of rows."""
    rows, amount = t.rows(w), t.amount(w)
    at = row_at(w, count, instant)
    if at < count and rows.time[at] == instant:
        return count
    for i in range(count, at - 1, -1):  # the new row is a copy of the one before it
        rows.time[i] = rows.time[i - 1]
        for c in range(amount.shape[1]):
            for r in range(3):
                amount[i, c, r] = amount[i - 1, c, r]
    rows.time[at] = instant
    return count + 1


@inner
def _earliest(w: Record, count: int, s: int, limit: int, start: int, horizon: int) -> int:
    """The first row, from `start` on, at which amounts suffice until the limit; -1 if none up to the horizon.

    Leaves in the last row of the table what each class has throughout.
    """
    rows, amount, units = t.rows(w), t.amount(w), t.requests(w).units[s]
    least = amount.shape[0] - 1
    kind = t.requests(w).kind[s]
    first, last = t.class_ptr(w)[kind], t.class_ptr(w)[kind + 1]
    i = start
    while i < count and rows.time[i] <= horizon:
        end = rows.time[i] + limit
        blocked = -1
        k = i
        while k < count and rows.time[k] < end and blocked < 0:
            room = 0
            for x in range(first, last):
                c = t.class_list(w)[x]
                here = units
                for r in range(3):
                    have = amount[k, c, r]
                    if k > i:
                        have = min(have, amount[least, c, r])
                    amount[least, c, r] = have
                    per = _need(w, s, r)
                    if per > 0 and have < per * here:
                        here = max(have, 0) // per
                room += here
            if room < units:
                blocked = k
            k += 1
        if blocked < 0:
            return i
        # One class: no start up to the blocked row can do better. Several: another start may combine them otherwise.
        i = blocked + 1 if last - first == 1 else i + 1
    return -1


@inlined
def _promise(w: Record, first: int, last: int, s: int) -> None:
    """Takes the request's units out of the rows first … last, class by class as far as each has them throughout."""
    amount = t.amount(w)
    least = amount.shape[0] - 1
    left = t.requests(w).units[s]
    kind = t.requests(w).kind[s]
    for x in range(t.class_ptr(w)[kind], t.class_ptr(w)[kind + 1]):
        c = t.class_list(w)[x]
        here = left
        for r in range(3):
            per = _need(w, s, r)
            if per > 0:
                here = min(here, max(amount[least, c, r], 0) // per)
        left -= here
        for row in range(first, last):
            for r in range(3):
                amount[row, c, r] -= here * _need(w, s, r)


@kernel
def main_pass(
    w: Record, now: int, pool: int, order: Array, first: int, last: int, fresh: int, stamp: int, started: Array
) -> int:
    """S1, the main scheduler at an event: the first jobs in strict order."""
    return none_pass(w, now, pool, order, first, min(last, first + MAIN_DEPTH), fresh, stamp, started)


@kernel
def slurm_cycle(
    w: Record, now: int, pool: int, order: Array, first: int, last: int, fresh: int, stamp: int, started: Array
) -> int:
    """One cycle of sched/backfill over order[first:last] (S3 to S5); the number of started jobs, or MORE_ROWS."""
    requests = t.requests(w)
    last = min(last, first + DEPTH)
    # Promises matter only to a later job that could start now: without one, the cycle would change nothing.
    final = -1
    for i in range(first, last):
        s = np.int64(t.jobs(w).request[order[i]])
        if requests.misfit[s] != stamp and requests.fitted[s] != stamp:
            if call_place(w, s, NOW) > 0:
                requests.fitted[s] = stamp
            else:
                requests.misfit[s] = stamp
        if requests.misfit[s] != stamp:
            final = i
    if final < 0:
        return 0
    if 4 + t.pools(w).running[pool] + 2 * (final - first + 1) > len(t.rows(w)):
        return MORE_ROWS
    horizon = now + WINDOW
    count = _build(w, pool, now, horizon)
    starts = 0
    for i in range(first, final + 1):
        j = order[i]
        s = np.int64(t.jobs(w).request[j])
        limit = t.jobs(w).limit[j]
        # A cycle only uses resources up: a job like an earlier one, and no shorter, cannot begin before it.
        at = 0
        if requests.plan_stamp[s] == stamp and limit >= requests.plan_limit[s]:
            at = row_at(w, count, requests.plan_time[s])
        at = _earliest(w, count, s, limit, at, horizon)
        entries = 0
        if at == 0:
            entries = 0 if requests.misfit[s] == stamp else place_job(w, j, s, NOW)
            if entries == 0:
                requests.misfit[s] = stamp
                at = _earliest(w, count, s, limit, np.int64(1), horizon)  # enough in sum, but not on nodes
        requests.plan_stamp[s] = stamp
        requests.plan_limit[s] = limit
        requests.plan_time[s] = t.rows(w).time[at] if at >= 0 else horizon + 1
        if at < 0:
            continue
        start = t.rows(w).time[at]
        count = _split(w, count, start + limit)
        stop = row_at(w, count, start + limit)
        if entries > 0:
            begin(w, j, now, entries)
            _add(w, at, stop, s, t.live(w).held[j], -1)
            started[starts] = j
            starts += 1
        else:
            _promise(w, at, stop, s)
    return starts
