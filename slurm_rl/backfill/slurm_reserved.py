"""Backfill `slurm` beside reservations: the main scheduler's pass, and what sched/backfill asks of them.

Implements V4, V7 and V8 of docs/backfill.md. A World without reservations never comes here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.backfill.bitmaps import ALLOWED, CHOSEN
from slurm_rl.backfill.starting import begin, close_reservation, is_closed, mask_view
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, EXTRA, GPU, GPU_MILLI, MEM, NOW, OTHER, SCRATCH, TYPE, Array, Record
from slurm_rl.kernel.jit import inlined, inner
from slurm_rl.kernel.quotas import RESERVED, held_back
from slurm_rl.kernel.reserved import ENDS, EVERY_NODE, FLEX, MAINT, keeps_from, lasts, leave_open, own_reservation
from slurm_rl.place.kernels import call_place, deferred

_MOVES = np.int64(10)  # times that a start is moved behind maintenance (in Slurm's source; not to be configured)


@inner
def main_pass_beside(
    w: Record, now: int, pool: int, order: Array, first: int, last: int, depth: int, stamp: int, started: Array
) -> int:
    """S1 with V4 and V7: a job closes its partition only if the nodes left to it could hold it were they empty."""
    reach, bits, left = t.reach(w), t.bitmaps(w), t.open_bits(w)
    words = bits.shape[1]
    for k in range(words):
        bits[CHOSEN, k] = 0  # nodes of partitions with a job that does not fit
    count, looked = 0, 0
    for i in range(first, last):
        j = order[i]
        if held_back(w, j) == RESERVED:
            continue
        looked += 1
        if looked > depth:
            break
        if deferred(w, j) or is_closed(w, j, stamp):
            continue
        s = np.int64(t.jobs(w).request[j])
        shut = True
        for k in range(words):
            shut &= reach[s, k] & ~bits[CHOSEN, k] == 0
        if shut:
            continue
        beside = leave_open(w, j, now)
        for k in range(words):
            bits[ALLOWED, k] = reach[s, k] & ~bits[CHOSEN, k] & left[0, k]
        mask_view(w, pool, NOW, EXTRA, bits, ALLOWED)
        entries = call_place(w, s, EXTRA)
        if entries > 0:
            begin(w, j, now, entries)
            started[count] = j
            count += 1
        elif not close_reservation(w, j, stamp) and (not beside or _could_if_empty(w, s, pool)):
            for k in range(words):
                bits[CHOSEN, k] |= reach[s, k]
    return count


@inlined
def _could_if_empty(w: Record, s: int, pool: int) -> bool:
    """V7: whether the nodes in ALLOWED that are up could hold a request if nothing ran there."""
    free, used, total, nodes = t.free(w), t.used(w), t.total(w), t.nodes(w)
    for c in range(3):
        total[SCRATCH, pool, c] = 0
    for n in range(t.pools(w).first_node[pool], t.pools(w).last_node[pool]):
        up = 1 - nodes.down[n]
        free[SCRATCH, n, CPU], free[SCRATCH, n, MEM] = up * nodes.cpu[n], up * nodes.mem[n]
        free[SCRATCH, n, GPU] = up * nodes.gpu[n]
        for c in range(3):
            total[SCRATCH, pool, c] += free[SCRATCH, n, c]
        for c in range(OTHER, free.shape[2]):
            free[SCRATCH, n, c] = up * t.others(w)[nodes.klass[n], c - OTHER]
        for k in range(used.shape[2]):
            there = t.devices(w)[nodes.klass[n], k, TYPE] >= 0 and up == 1
            used[SCRATCH, n, k] = 0 if there else GPU_MILLI
    mask_view(w, pool, SCRATCH, SCRATCH, t.bitmaps(w), ALLOWED)
    return call_place(w, s, SCRATCH) > 0


@inner
def look_at_reservations(w: Record, j: int, s: int, at: int, horizon: int) -> tuple[int, int]:
    """V8: when a job that is tried at a time would be tried, -1: never; and when to look again, or 0.

    Leaves in the last row of `usable` the nodes that are large enough and left to it then.
    """
    kept, bits, reach, usable = t.kept(w), t.kept_bits(w), t.reach(w), t.usable(w)
    own, limit = own_reservation(w, j), t.jobs(w).limit[j]
    words = usable.shape[1]
    overlap, moves = False, 0
    moved = True
    while moved:
        moved = False
        for r in range(len(kept)):
            if not keeps_from(w, r, own, at, at + limit):
                continue
            touches, whole = False, True
            for k in range(words):
                mine = reach[s, k] if own < 0 else np.int64(-1) if kept[own, FLEX] != 0 else bits[own, k]
                touches |= bits[r, k] & mine != 0
                whole &= mine & ~bits[r, k] == 0
            if own < 0 and whole and kept[r, MAINT] + kept[r, EVERY_NODE] > 0:
                if moves == _MOVES:
                    return -1, 0
                at = kept[r, ENDS]
                moves += 1
                moved = True
                break
            overlap |= touches
    if not lasts(w, j, at):
        return -1, 0
    leave_open(w, j, at)
    base = usable.shape[0] - 1
    for k in range(words):
        usable[base, k] = usable[s, k] & t.open_bits(w)[0, k]
    again = _next_end(w, at) + 1 if overlap else 0
    return at, again if again < horizon else 0


@inlined
def _next_end(w: Record, at: int) -> int:
    """The first end of a reservation at a time or later, rounded up to bf_resolution; -1: there is none."""
    kept = t.kept(w)
    found: Any = np.int64(-1)
    for r in range(len(kept)):
        if kept[r, ENDS] >= at and (found < 0 or kept[r, ENDS] < found):
            found = kept[r, ENDS]
    return int(-(-found // w.bf_resolution) * w.bf_resolution if found >= 0 else found)
