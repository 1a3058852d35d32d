"""Compiled placement: the simple placements, and taking and giving back resources.

Implements P1 to P3, P6 and P8 of docs/backfill.md. Every placement works on a *view*: the free resources now, or what a
reservation leaves of them. A request either gets all its units (a gang) or nothing. Nodes are looked at in ascending
order, and ties go to the lower number.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, MEM, TAKE, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.kernel.links import INT, by_address, slot
from slurm_rl.kernel.quotas import held_back
from slurm_rl.place.capacity import NOT_MINE, capacity, capacity_of_type, fits_totals, node_room, sort_keys
from slurm_rl.place.catalogue import FIRST_FIT, ROUND_ROBIN, SPREAD
from slurm_rl.place.on_devices import call_pick_devices, call_shift_devices
from slurm_rl.place.runs import call_shift_run

_FREE_MASK = np.int64((1 << 20) - 1)
_NODE_MASK = np.int64((1 << 20) - 1)


# A placement's own kernel: (request, view, first and last place in `kind_node`) -> entries in `t.spot(w)`, 0 if the
# request does not fit, NOT_MINE if it is to go best-fit.
call_place_special = slot("place_special", INT, INT, INT, INT, INT)


# Likewise for gangs that must keep to blocks or switches, or should (blocks.py).
call_place_in_blocks = slot("place_in_blocks", INT, INT, INT, INT, INT)


@kernel
def place(w: Record, s: int, view: int) -> int:
    """Chooses nodes for a request; the number of entries written to `t.spot(w)`, 0 if it does not fit."""
    if not fits_totals(w, s, view):
        return 0
    how, requests = w.placer, t.requests(w)
    kind, at, count = requests.kind[s], requests.chain[s], 0
    while count == 0:
        if at >= 0:
            kind, at = t.node_sets(w)[at, 0], t.node_sets(w)[at, 1]
        first, last = t.kind_ptr(w)[kind], t.kind_ptr(w)[kind + 1]
        if requests.switches[s] + requests.segment[s] > 0 or (w.by_block and w.blocks > 1 and requests.wide[s]):
            count = call_place_in_blocks(w, s, view, first, last)
        # Of one node there is nothing to choose, unless its GPUs differ and the placement cares.
        elif (last - first == 1 and w.by_type * w.mixed == 0) or how in (FIRST_FIT, ROUND_ROBIN):
            start = first
            if how == ROUND_ROBIN:
                while start < last and t.kind_node(w)[start] < t.pools(w).cursor[t.requests(w).pool[s]]:
                    start += 1
                if start == last:
                    start = first
            count = _fill(w, s, view, first, last, start)
        else:
            count = NOT_MINE
            if w.place_special_at != 0:
                count = call_place_special(w, s, view, first, last)
            if count == NOT_MINE:
                count = _fewest(w, s, view, first, last, how == SPREAD)
        if at < 0:
            break
    if count and t.used(w).shape[2] > 0:
        count = call_pick_devices(w, s, view, count)
    return count


call_place = by_address("place", place, INT, INT, INT)


@kernel
def follow_hint(w: Record, j: int, s: int, view: int) -> int:
    """P6: places a job where the plan wants it; 0 if the nodes no longer have room."""
    left, count = t.requests(w).units[s], 0
    at = t.hint_of(w)[j] - 1
    several = w.mixed > 0 and t.requests(w).careful[s] > 0
    while left > 0:
        n, units = np.int64(t.hint(w).node[at]), np.int64(t.hint(w).units[at])
        kind = np.int64(t.hint(w).gpu_type[at])
        if (capacity_of_type(w, s, view, n, units, kind) if several else capacity(w, s, view, n, units)) < units:
            return 0
        only = np.int64(1) << kind if several else np.int64(0)
        t.spot(w).node[count], t.spot(w).units[count], t.spot(w).gpus[count] = n, units, only
        count += 1
        at += 1
        left -= units
    return call_pick_devices(w, s, view, count) if t.used(w).shape[2] > 0 else count


call_follow_hint = by_address("follow_hint", follow_hint, INT, INT, INT, INT)


@inlined
def place_job(w: Record, j: int, s: int, view: int) -> int:
    """Places a job where the plan wants it, if the nodes still have room, else as the placer would."""
    count = 0
    if w.planned and t.hint_of(w)[j] > 0:
        count = call_follow_hint(w, j, s, view)
    if count == 0:
        count = call_place(w, s, view)
    return count


@inlined
def deferred(w: Record, j: int) -> bool:
    """Whether the plan, or an agent, defers a job although it may fit, or something holds it back (L1, V2)."""
    return (w.hint_of_0 > 0 and t.hint_of(w)[j] < 0) or held_back(w, j) > 0


@inlined
def _fill(w: Record, s: int, view: int, first: int, last: int, start: int) -> int:
    """P1, P3: takes nodes as they come, from `start` and around, as many units of each as fit."""
    requests, free, kind_node, spot = t.requests(w), t.free(w), t.kind_node(w), t.spot(w)
    cpu, mem, gpu, per_node = requests.cpu[s], requests.mem[s], requests.gpu[s], requests.per_node[s]
    careful = requests.careful[s] > 0
    left = requests.units[s]
    count = 0
    at = start
    for _ in range(last - first):
        n = kind_node[at]
        at += 1
        if at == last:
            at = first
        if free[view, n, CPU] < cpu:
            continue  # the usual case on a busy cluster: full
        if careful:
            units = capacity(w, s, view, n, left)
        else:
            units = node_room(free, view, n, cpu, mem, gpu, min(left, per_node))
        if units > 0:
            spot.node[count] = n
            spot.units[count] = units
            spot.gpus[count] = 0
            count += 1
            left -= units
            if left == 0:
                return count
    return 0


@inlined
def _fewest(w: Record, s: int, view: int, first: int, last: int, emptiest: bool) -> int:
    """P2: one node that holds all that is left, else the one that holds most; then the fullest (or emptiest)."""
    requests, free, kind_node, spot = t.requests(w), t.free(w), t.kind_node(w), t.spot(w)
    cpu, mem, gpu, careful = requests.cpu[s], requests.mem[s], requests.gpu[s], requests.careful[s] > 0
    on_gpus = gpu > 0 or requests.share[s] > 0
    left = requests.units[s]
    most = min(left, requests.per_node[s])
    # Most jobs fit on one node: then no sorting is needed.
    best, best_free, candidates, room = -1, 0, 0, 0
    for at in range(first, last):
        n = kind_node[at]
        units = capacity(w, s, view, n, left) if careful else node_room(free, view, n, cpu, mem, gpu, most)
        candidates += units > 0
        room += units
        if units == left:
            amount = free[view, n, GPU] if on_gpus else free[view, n, CPU]
            if best < 0 or (amount > best_free if emptiest else amount < best_free):
                best, best_free = n, amount
    if best >= 0:
        spot.node[0], spot.units[0], spot.gpus[0] = best, left, 0
        return 1
    if room < left:
        return 0
    # Sorted by room (most first), then free, then number: packed into one key each.
    keys = np.empty(candidates, dtype=np.int64)
    at_key = 0
    for at in range(first, last):
        n = kind_node[at]
        units = capacity(w, s, view, n, left) if careful else node_room(free, view, n, cpu, mem, gpu, most)
        if units > 0:
            amount = min(np.int64(free[view, n, GPU] if on_gpus else free[view, n, CPU]), _FREE_MASK)
            keys[at_key] = -(np.int64(units) << 40) + ((_FREE_MASK - amount if emptiest else amount) << 20) + n
            at_key += 1
    sort_keys(keys)
    for i in range(candidates):
        n = keys[i] & _NODE_MASK
        units = capacity(w, s, view, n, left)
        if units == left:
            # The last node: of all the rest that hold what is left, the fullest (or emptiest).
            n = _best_last(w, s, view, keys, i, candidates, left, on_gpus, emptiest)
        spot.node[i], spot.units[i], spot.gpus[i] = n, units, 0
        left -= units
        if left == 0:
            return i + 1
    return 0


@inlined
def _best_last(
    w: Record, s: int, view: int, keys: np.ndarray, start: int, end: int, left: int, on_gpus: bool, emptiest: bool
) -> int:
    free = t.free(w)
    best, best_free = -1, 0
    for i in range(start, end):
        n = keys[i] & _NODE_MASK
        if capacity(w, s, view, n, left) < left:
            break  # keys are sorted by room: no later node holds more
        amount = free[view, n, GPU] if on_gpus else free[view, n, CPU]
        if best < 0 or (amount > best_free if emptiest else amount < best_free) or (amount == best_free and n < best):
            best, best_free = n, amount
    return best


@inlined
def take(w: Record, s: int, view: int, count: int) -> None:
    """Takes the placement in `t.spot(w)` out of a view."""
    spot = t.spot(w)
    if w.indexed:
        for i in range(count):
            call_shift_run(w, s, view, spot.node[i], -spot.units[i], spot.more[i] + 1)
        _sums(w, s, view, -t.requests(w).units[s])
    elif t.used(w).shape[2] > 0:
        for i in range(count):
            call_shift_devices(w, s, view, spot.node[i], spot.units[i], spot.gpus[i], TAKE)
    else:
        requests, free = t.requests(w), t.free(w)
        cpu, mem, gpu = requests.cpu[s], requests.mem[s], requests.gpu[s]
        for i in range(count):
            n, units = spot.node[i], spot.units[i]
            free[view, n, CPU] -= units * cpu
            if mem > 0:
                free[view, n, MEM] -= units * mem
            if gpu > 0:
                free[view, n, GPU] -= units * gpu
        _sums(w, s, view, -requests.units[s])


@inlined
def _sums(w: Record, s: int, view: int, units: int) -> None:
    """Adds units of a request to the sums over its pool."""
    requests, total = t.requests(w), t.total(w)
    pool = requests.pool[s]
    total[view, pool, CPU] += units * requests.cpu[s]
    total[view, pool, MEM] += units * requests.mem[s]
    total[view, pool, GPU] += units * requests.gpu[s]


@inner
def record(w: Record, count: int) -> int:
    """Writes the placement in `t.spot(w)` into the arena; the chain that holds it."""
    entries, spot = t.entries(w), t.spot(w)
    chain = 0
    spare = entries.next[0]
    for i in range(count - 1, -1, -1):
        e = spare
        spare = entries.next[e]
        entries.node[e] = spot.node[i]
        entries.units[e] = spot.units[i]
        entries.gpus[e] = spot.gpus[i]
        entries.more[e] = spot.more[i]
        entries.next[e] = chain
        chain = e
    entries.next[0] = spare
    return chain


@inner
def apply(w: Record, s: int, view: int, chain: int, sign: int) -> None:
    """Takes (TAKE) a chain's holdings out of a view, or gives them back (GIVE)."""
    entries = t.entries(w)
    if w.indexed:
        while chain > 0:
            call_shift_run(w, s, view, entries.node[chain], sign * entries.units[chain], entries.more[chain] + 1)
            chain = entries.next[chain]
        _sums(w, s, view, sign * t.requests(w).units[s])
        return
    if t.used(w).shape[2] > 0:
        while chain > 0:
            call_shift_devices(w, s, view, entries.node[chain], entries.units[chain], entries.gpus[chain], sign)
            chain = entries.next[chain]
        return
    requests, free = t.requests(w), t.free(w)
    cpu, mem, gpu = sign * requests.cpu[s], sign * requests.mem[s], sign * requests.gpu[s]
    while chain > 0:
        n, units = entries.node[chain], entries.units[chain]
        free[view, n, CPU] += units * cpu
        if mem != 0:
            free[view, n, MEM] += units * mem
        if gpu != 0:
            free[view, n, GPU] += units * gpu
        chain = entries.next[chain]
    _sums(w, s, view, sign * requests.units[s])


@inner
def forget(w: Record, chain: int) -> None:
    """Returns a chain's entries to the arena."""
    entries = t.entries(w)
    spare = entries.next[0]
    while chain > 0:
        following = entries.next[chain]
        entries.next[chain] = spare
        spare = chain
        chain = following
    entries.next[0] = spare
