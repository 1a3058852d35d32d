"""When a job could run if running jobs use up their limits: select/cons_tres's test, on the nodes in ALLOWED.

Implements S4 of docs/backfill.md. Where the placement is `slurm` and GPUs are counted, each shape of requests knows how
many units each node has room for now, and running jobs leave row by row of `leavers`, as they are due; otherwise they
are given back to a view, batch by batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.backfill.bitmaps import ALLOWED, LEAVING, has
from slurm_rl.backfill.leavers import begin_gains, earliest, known_gain, list_next
from slurm_rl.backfill.pieces import allowed_nodes, forget_leavers, nodes_of
from slurm_rl.backfill.starting import copy_pool, mask_view
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import EXTRA, GIVE, NOW, SCRATCH, Record
from slurm_rl.kernel.bits import count_bits, lowest_bit
from slurm_rl.kernel.jit import inlined, inner
from slurm_rl.place.capacity import node_room
from slurm_rl.place.catalogue import SLURM
from slurm_rl.place.consecutive import choose_nodes
from slurm_rl.place.consecutive_runs import choose_runs
from slurm_rl.place.kernels import apply, call_place, place_job

FIRST_BATCH = np.int64(30)  # seconds of the first batch of ends (in Slurm's source; not to be configured)


@inlined
def by_room(w: Record) -> bool:
    """Whether a request fits if all nodes together have room for its units, and `choose_nodes` says where."""
    return w.placer == SLURM and w.least_loaded == 0 and w.counted != 0


@inner
def room_now(w: Record, s: int, stamp: int) -> int:
    """The row of `avail` and `roomy` that belongs to a request's shape in this cycle: its room as things are."""
    shapes, f = t.shapes(w), t.shape_of(w)[s]
    if shapes.stamp[f] == stamp:
        return shapes.slot[f]
    slot = w.slots
    w.slots = slot + 1
    shapes.stamp[f], shapes.slot[f], t.slot_shape(w)[slot] = stamp, slot, f
    kind, kinds = shapes.kind[f], t.kind_bits(w)
    for k in range(w.first_word, w.last_word):
        t.roomy(w)[slot, k] = 0
        t.able(w)[slot, k] = 0 if w.by_runs else kinds[kind, k]
    total: Any = np.int64(0)
    if w.by_runs:
        usable, example, mine = t.usable(w), shapes.request[f], _row_of_slot(w, slot)
        for k in range(w.first_word, w.last_word):
            usable[mine, k] = 0
        for p in range(w.piece_count):
            n = t.pieces(w).node[p]
            if has(usable, example, n):
                usable[mine, p >> 6] |= np.int64(1) << (p & 63)
            if has(kinds, kind, n):
                t.able(w)[slot, p >> 6] |= np.int64(1) << (p & 63)
                total += _note_room(w, slot, f, p, n) * t.pieces(w).count[p]
    else:
        for at in range(t.kind_ptr(w)[kind], t.kind_ptr(w)[kind + 1]):
            n = t.kind_node(w)[at]
            total += _note_room(w, slot, f, n, n)
    t.in_sum(w)[slot] = total
    return slot


@inlined
def _row_of_slot(w: Record, slot: int) -> int:
    """The row of `usable` with the pieces that a slot's shape may use; only where the World has runs."""
    return t.usable(w).shape[0] - t.able(w).shape[0] + slot


@inlined
def usable_row(w: Record, s: int, stamp: int) -> int:
    """The row of `usable` with the nodes, or pieces, that a request may use."""
    return _row_of_slot(w, room_now(w, s, stamp)) if w.by_runs else s


@inlined
def _note_room(w: Record, slot: int, f: int, p: int, n: int) -> int:
    """Writes for how many units each node of a piece has room, of which `n` is one."""
    shapes = t.shapes(w)
    room = node_room(t.free(w), NOW, n, shapes.cpu[f], shapes.mem[f], shapes.gpu[f], shapes.most[f])
    t.avail(w)[slot, p] = room
    if room > 0:
        t.roomy(w)[slot, p >> 6] |= np.int64(1) << (p & 63)
    else:
        t.roomy(w)[slot, p >> 6] &= ~(np.int64(1) << (p & 63))
    return room


@inner
def note_started(w: Record, j: int) -> None:
    """Puts right what shapes know of the nodes of a job that has just started."""
    entries, avail, roomy = t.entries(w), t.avail(w), t.roomy(w)
    forget_leavers(w)
    e = t.live(w).held[j]
    while e > 0:
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
            for slot in range(w.slots):
                if has(roomy, slot, p):
                    before = avail[slot, p]
                    t.in_sum(w)[slot] -= (before - _note_room(w, slot, t.slot_shape(w)[slot], p, n)) * count
            n += count
        e = entries.next[e]


@inlined
def _sum_now(w: Record, slot: int, enough: int) -> int:
    """Units for which the nodes in ALLOWED have room as things are; counts no further than `enough`."""
    bits, roomy, avail = t.bitmaps(w), t.roomy(w), t.avail(w)
    total: Any = np.int64(0)
    for k in range(w.first_word, w.last_word):
        word = bits[ALLOWED, k] & roomy[slot, k]
        while word != 0:
            p = (k << 6) + lowest_bit(word)
            total += avail[slot, p] * nodes_of(w, p)
            word &= word - 1
        if total >= enough:
            break
    return total


@inner
def may_run(w: Record, s: int, pool: int, stamp: int) -> bool:
    """Whether the nodes in ALLOWED have room for a request as things are; where it is counted, in sum."""
    units = t.requests(w).units[s]
    if w.counted:
        return _sum_now(w, room_now(w, s, stamp), units) >= units
    masked(w, pool, NOW, EXTRA)
    return call_place(w, s, EXTRA) > 0


@inner
def not_before(w: Record, now: int, pool: int, s: int, stamp: int) -> int:
    """A time before which a request cannot run on whatever nodes; `now` if that is not known."""
    if w.counted == 0 or t.in_sum(w)[room_now(w, s, stamp)] >= t.requests(w).units[s]:
        return now
    return max(earliest(w, pool, s), now)


@inlined
def _next_width(w: Record, width: int) -> int:
    """Batches of ends double in width, or grow by bf_window_linear."""
    return width + w.bf_window_linear if w.bf_window_linear > 0 else 2 * width


@inner
def will_run(w: Record, now: int, pool: int, j: int, s: int, later: int, stamp: int) -> tuple[int, int]:
    """S4: when a job could start on the nodes in ALLOWED, and its entries in `t.spot(w)`; no entries: never.

    An answer beyond bf_window, or beyond `later` if that is not 0, may be given as never.
    """
    if not by_room(w):
        return _will_run_on_views(w, now, pool, j, s)
    units = t.requests(w).units[s]
    slot = room_now(w, s, stamp)
    bits = t.bitmaps(w)
    when: Any = np.int64(now)
    total = _sum_now(w, slot, units)
    for k in range(w.first_word, w.last_word):
        bits[LEAVING, k] = 0
    if total < units:
        if _most_at_all(w, slot) < units:
            return 0, 0
        horizon = now + w.bf_window
        if later > 0:
            horizon = min(horizon, later)
        found = _let_leave(w, pool, units, slot, total, horizon)
        if found < 0:
            return 0, 0
        when = max(found, now + 1)
    count = _list_room(w, slot)
    return when, choose_runs(w, s, count) if w.by_runs else choose_nodes(w, s, NOW, count)


@inlined
def _most_at_all(w: Record, slot: int) -> int:
    """Units of a shape that the nodes in ALLOWED hold at most, whoever leaves."""
    bits, able = t.bitmaps(w), t.able(w)
    nodes: Any = np.int64(0)
    for k in range(w.first_word, w.last_word):
        word = bits[ALLOWED, k] & able[slot, k]
        if w.by_runs:
            while word != 0:
                nodes += t.pieces(w).count[(k << 6) + lowest_bit(word)]
                word &= word - 1
        else:
            nodes += count_bits(word)
    return nodes * t.shapes(w).most[t.slot_shape(w)[slot]]


@inner
def _let_leave(w: Record, pool: int, units: int, slot: int, total: int, horizon: int) -> int:
    """Lets running jobs leave, batch by batch, until all units have room: the last end of that batch; -1: too late.

    Leaves in LEAVING the pieces on which somebody left and there is more room, and in `room` how much.
    """
    leavers, rows = t.leavers(w), t.left(w)
    base, by = np.int64(0), np.int64(0)
    latest: Any = np.int64(0)
    width, begun = FIRST_BATCH, False
    begin_gains(w, slot)
    i = 0
    while True:
        if i == w.leaver_count:
            if not list_next(w, pool):
                break
            begin_gains(w, slot)
        due = leavers.due[i]
        if begun and due > by:  # a batch is over
            if total >= units:
                break
            while due > by:
                width = _next_width(w, width)
                by = base + width
        if due > horizon and total < units:
            return -1
        nodes = allowed_nodes(w, ALLOWED, leavers.piece[i], rows.count[i])
        if nodes > 0:
            if due > horizon:
                return -1
            total += nodes * known_gain(w, slot, i)
            if not begun:
                begun = True
                base = due // FIRST_BATCH * FIRST_BATCH + FIRST_BATCH
                by = base + width
            latest = due
        i += 1
    if total < units:
        return -1
    _note_left(w, slot, i)
    return latest


@inlined
def _note_left(w: Record, slot: int, end: int) -> None:
    """Marks in LEAVING what the first rows of `leavers` leave in ALLOWED, and adds it to what has room now."""
    bits, room, avail = t.bitmaps(w), t.room(w), t.avail(w)
    for i in range(end):
        p: Any = np.int64(t.leavers(w).piece[i])
        left: Any = np.int64(t.left(w).count[i]) if w.by_runs else np.int64(1)
        while left > 0:
            if has(bits, ALLOWED, p):
                gain = known_gain(w, slot, i)
                if gain > 0:
                    n = t.pieces(w).node[p] if w.by_runs else p
                    if not has(bits, LEAVING, p):
                        bits[LEAVING, p >> 6] |= np.int64(1) << (p & 63)
                        room[n] = avail[slot, p]
                    room[n] += gain
            left -= nodes_of(w, p)
            if left > 0:
                p = t.pieces(w).next[p]


@inlined
def _list_room(w: Record, slot: int) -> int:
    """Lists in `fitting` the nodes in ALLOWED with room now, or when those have left who leave; how many."""
    bits, roomy, avail, fitting, room = t.bitmaps(w), t.roomy(w), t.avail(w), t.fitting(w), t.room(w)
    count: Any = np.int64(0)
    if w.by_runs:
        p: Any = np.int64(0)
        while p >= 0:
            leaves = has(bits, LEAVING, p)
            if leaves or (has(bits, ALLOWED, p) and has(roomy, slot, p)):
                n = t.pieces(w).node[p]
                fitting[count], t.alike_nodes(w)[n] = n, t.pieces(w).count[p]
                if not leaves:
                    room[n] = avail[slot, p]
                count += 1
            p = t.pieces(w).next[p]
        return count
    for k in range(w.first_word, w.last_word):
        word = (bits[ALLOWED, k] & roomy[slot, k]) | bits[LEAVING, k]
        while word != 0:
            n = (k << 6) + lowest_bit(word)
            word &= word - 1
            fitting[count] = n
            if not has(bits, LEAVING, n):
                room[n] = avail[slot, n]
            count += 1
    return count


@inner
def masked(w: Record, pool: int, source: int, target: int) -> None:
    """Copies a view of a pool, with nothing on the nodes outside of ALLOWED."""
    mask_view(w, pool, source, target, t.bitmaps(w), ALLOWED)


@inlined
def _touches(w: Record, j: int) -> bool:
    """Whether a running job holds some of a node in ALLOWED."""
    bits, entries = t.bitmaps(w), t.entries(w)
    e = t.live(w).held[j]
    while e > 0:
        if has(bits, ALLOWED, entries.node[e]):
            return True
        e = entries.next[e]
    return False


@inner
def _will_run_on_views(w: Record, now: int, pool: int, j: int, s: int) -> tuple[int, int]:
    """S4 for every placement: gives running jobs back to a view in batches until the placement finds nodes."""
    masked(w, pool, NOW, EXTRA)
    entries: Any = place_job(w, j, s, EXTRA)
    if entries > 0:
        return now, entries
    copy_pool(w, pool, NOW, SCRATCH)
    running, end = t.running(w), t.live(w).expected_end
    at = t.pools(w).first_job[pool]
    tail = at + t.pools(w).running[pool]
    while at < tail and not _touches(w, running[at]):
        at += 1
    if at == tail:
        return 0, 0
    base = end[running[at]] // FIRST_BATCH * FIRST_BATCH + FIRST_BATCH
    width = FIRST_BATCH
    latest = now
    while at < tail:
        given = False
        while at < tail and end[running[at]] <= base + width:
            if _touches(w, running[at]):
                apply(w, np.int64(t.jobs(w).request[running[at]]), SCRATCH, t.live(w).held[running[at]], GIVE)
                latest, given = end[running[at]], True
            at += 1
        width = _next_width(w, width)
        if given:
            masked(w, pool, SCRATCH, EXTRA)
            entries = call_place(w, s, EXTRA)
            if entries > 0:
                return max(latest, now + 1), entries
    return 0, 0
