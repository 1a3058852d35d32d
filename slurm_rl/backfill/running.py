"""When a job could run if running jobs use up their limits: select/cons_tres's test, on the nodes in ALLOWED.

Implements S4 of docs/backfill.md. Where the placement is `slurm` and GPUs are counted, each request knows how many
units each node has room for now, and running jobs are given back entry by entry, as they are due; otherwise they are
given back to a view, batch by batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.backfill.bitmaps import ALLOWED, LEAVING, has
from slurm_rl.backfill.starting import copy_pool, mask_view
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, EXTRA, GIVE, GPU, MEM, NOW, SCRATCH, Record
from slurm_rl.kernel.bits import count_bits, lowest_bit
from slurm_rl.kernel.jit import inlined, inner
from slurm_rl.place.capacity import node_room
from slurm_rl.place.catalogue import SLURM
from slurm_rl.place.consecutive import choose_nodes
from slurm_rl.place.kernels import apply, call_place, place_job

FIRST_BATCH = np.int64(30)  # seconds of the first batch of ends (in Slurm's source; not to be configured)
ROOM, MARK = np.arange(3, 5)  # columns of the table `then`, behind what is free: room for units, and whose these are


@inlined
def _most(w: Record, s: int) -> int:
    """Units of a request that one node takes at most."""
    return min(t.requests(w).units[s], t.requests(w).per_node[s])


@inner
def room_now(w: Record, s: int, stamp: int) -> int:
    """The row of `avail` and `roomy` that belongs to a request in this cycle: its room on each node as things are."""
    requests = t.requests(w)
    if requests.slot_stamp[s] != stamp:
        slot = w.slots
        w.slots = slot + 1
        requests.slot_stamp[s], requests.slot[s], t.slot_request(w)[slot] = stamp, slot, s
        avail, roomy, free = t.avail(w), t.roomy(w), t.free(w)
        for k in range(roomy.shape[1]):
            roomy[slot, k] = 0
        cpu, mem, gpu, most = requests.cpu[s], requests.mem[s], requests.gpu[s], _most(w, s)
        kind = requests.kind[s]
        for at in range(t.kind_ptr(w)[kind], t.kind_ptr(w)[kind + 1]):
            n = t.kind_node(w)[at]
            room = node_room(free, NOW, n, cpu, mem, gpu, most)
            avail[slot, n] = room
            if room > 0:
                roomy[slot, n >> 6] |= np.int64(1) << (n & 63)
    return requests.slot[s]


@inner
def note_started(w: Record, j: int) -> None:
    """Puts right what requests know of the nodes of a job that has just started."""
    entries, requests, avail, roomy, free = t.entries(w), t.requests(w), t.avail(w), t.roomy(w), t.free(w)
    e = t.live(w).held[j]
    while e > 0:
        n = entries.node[e]
        for slot in range(w.slots):
            if has(roomy, slot, n):
                s = t.slot_request(w)[slot]
                room = node_room(free, NOW, n, requests.cpu[s], requests.mem[s], requests.gpu[s], _most(w, s))
                avail[slot, n] = room
                if room == 0:
                    roomy[slot, n >> 6] &= ~(np.int64(1) << (n & 63))
        e = entries.next[e]


@inlined
def _sum_now(w: Record, slot: int, pool: int, enough: int) -> int:
    """Units for which the nodes in ALLOWED have room as things are; counts no further than `enough`."""
    bits, roomy, avail = t.bitmaps(w), t.roomy(w), t.avail(w)
    total: Any = np.int64(0)
    for k in range(t.pools(w).first_node[pool] >> 6, (t.pools(w).last_node[pool] + 63) >> 6):
        word = bits[ALLOWED, k] & roomy[slot, k]
        while word != 0:
            total += avail[slot, (k << 6) + lowest_bit(word)]
            word &= word - 1
        if total >= enough:
            break
    return total


@inner
def may_run(w: Record, s: int, pool: int, stamp: int) -> bool:
    """Whether the nodes in ALLOWED have room for a request as things are; where it is counted, in sum."""
    units = t.requests(w).units[s]
    if w.counted:
        return _sum_now(w, room_now(w, s, stamp), pool, units) >= units
    masked(w, pool, NOW, EXTRA)
    return call_place(w, s, EXTRA) > 0


@inlined
def _next_width(w: Record, width: int) -> int:
    """Batches of ends double in width, or grow by bf_window_linear."""
    return width + w.bf_window_linear if w.bf_window_linear > 0 else 2 * width


@inner
def will_run(w: Record, now: int, pool: int, j: int, s: int, later: int, stamp: int) -> tuple[int, int]:
    """S4: when a job could start on the nodes in ALLOWED, and its entries in `t.spot(w)`; no entries: never.

    An answer beyond bf_window, or beyond `later` if that is not 0, may be given as never.
    """
    if w.placer != SLURM or w.least_loaded or not w.counted:
        return _will_run_on_views(w, now, pool, j, s)
    units = t.requests(w).units[s]
    slot = room_now(w, s, stamp)
    bits, kinds = t.bitmaps(w), t.kind_bits(w)
    low, high = t.pools(w).first_node[pool] >> 6, (t.pools(w).last_node[pool] + 63) >> 6
    total = _sum_now(w, slot, pool, units)
    if total >= units:
        for k in range(low, high):
            bits[LEAVING, k] = 0
        return now, choose_nodes(w, s, NOW, _list_room(w, slot, low, high, np.int64(-1)))
    kind, nodes = t.requests(w).kind[s], 0
    for k in range(low, high):
        bits[LEAVING, k] = 0
        nodes += count_bits(bits[ALLOWED, k] & kinds[kind, k])
    if nodes * _most(w, s) < units:
        return 0, 0
    horizon = now + w.bf_window
    if later > 0:
        horizon = min(horizon, later)
    w.mark += 1
    when = _give_back(w, pool, s, slot, total, horizon)
    if when < 0:
        return 0, 0
    return max(when, now + 1), choose_nodes(w, s, NOW, _list_room(w, slot, low, high, w.mark))


@inner
def _give_back(w: Record, pool: int, s: int, slot: int, total: int, horizon: int) -> int:
    """Lets running jobs leave, batch by batch, until all units have room: the last end of that batch; -1: too late.

    Leaves in LEAVING the nodes on which somebody left and there is room, and in the table `then` how much.
    """
    running, live, entries, bits = t.running(w), t.live(w), t.entries(w), t.bitmaps(w)
    units, kind, kinds = t.requests(w).units[s], t.requests(w).kind[s], t.kind_bits(w)
    at = t.pools(w).first_job[pool]
    tail = at + t.pools(w).running[pool]
    base, by = np.int64(0), np.int64(0)
    latest: Any = np.int64(0)
    width, begun, given = FIRST_BATCH, False, False
    while at < tail:
        r = running[at]
        due = live.expected_end[r]
        if begun and due > by:  # a batch is over
            if given and total >= units:
                return latest
            given = False
            while due > by:
                width = _next_width(w, width)
                by = base + width
        if due > horizon and total < units:
            return -1
        touches = False
        e = live.held[r]
        while e > 0:
            n = entries.node[e]
            if has(bits, ALLOWED, n):
                touches = True
                if has(kinds, kind, n):
                    total += _leaves(w, s, slot, n, np.int64(t.jobs(w).request[r]), entries.units[e])
            e = entries.next[e]
        if touches:
            if due > horizon:
                return -1
            if not begun:
                begun = True
                base = due // FIRST_BATCH * FIRST_BATCH + FIRST_BATCH
                by = base + width
            latest, given = due, True
        at += 1
    return latest if total >= units else -1


@inlined
def _leaves(w: Record, s: int, slot: int, n: int, k: int, units: int) -> int:
    """Gives units of request `k` back on a node, in `then`; for how many more units of request `s` it has room."""
    requests, free, then = t.requests(w), t.free(w), t.then(w)
    if then[n, MARK] != w.mark:
        then[n, CPU], then[n, MEM], then[n, GPU] = free[NOW, n, CPU], free[NOW, n, MEM], free[NOW, n, GPU]
        then[n, ROOM], then[n, MARK] = t.avail(w)[slot, n], w.mark
    then[n, CPU] += units * requests.cpu[k]
    then[n, MEM] += units * requests.mem[k]
    then[n, GPU] += units * requests.gpu[k]
    before, most = then[n, ROOM], _most(w, s)
    if before == most:
        return 0
    room = most
    if requests.cpu[s] > 0 and then[n, CPU] < room * requests.cpu[s]:
        room = max(then[n, CPU], 0) // requests.cpu[s]
    if requests.mem[s] > 0 and then[n, MEM] < room * requests.mem[s]:
        room = max(then[n, MEM], 0) // requests.mem[s]
    if requests.gpu[s] > 0 and then[n, GPU] < room * requests.gpu[s]:
        room = max(then[n, GPU], 0) // requests.gpu[s]
    if room > 0:
        then[n, ROOM] = room
        t.bitmaps(w)[LEAVING, n >> 6] |= np.int64(1) << (n & 63)
    return room - before


@inlined
def _list_room(w: Record, slot: int, low: int, high: int, mark: int) -> int:
    """Lists in `fitting` the nodes in ALLOWED with room now, or when those have left who leave; how many."""
    bits, roomy, avail, then, fitting, room = t.bitmaps(w), t.roomy(w), t.avail(w), t.then(w), t.fitting(w), t.room(w)
    count: Any = np.int64(0)
    for k in range(low, high):
        word = (bits[ALLOWED, k] & roomy[slot, k]) | bits[LEAVING, k]
        while word != 0:
            n = (k << 6) + lowest_bit(word)
            word &= word - 1
            fitting[count] = n
            room[n] = then[n, ROOM] if then[n, MARK] == mark else avail[slot, n]
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
