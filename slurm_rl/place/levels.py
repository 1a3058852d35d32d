"""Many nodes by levels: sets of nodes with so many GPUs free, or so many CPUs, and cost follows the nodes with room.

Implements P1 and P2 of docs/backfill.md, exactly as kernels.py does node by node (counting.py says when). The table
`levels` has, for each of the views NOW, EXTRA and BOTH, a row of bits for each number of free GPUs from 0 on, and then
for each number of free CPUs; behind the bits of a row's nodes stand those of its words that are not 0. Of nodes with
very many CPUs, the first of these rows has all with `cpu_base` CPUs or fewer. Views are not copied: the nodes in which
they may differ are noted in the table `changed`, and only these are looked at.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import BOTH, CPU, EXTRA, GPU, MEM, NOW, Record
from slurm_rl.kernel.bits import lowest_bit
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.place.capacity import fits_totals, node_room, sort_keys
from slurm_rl.place.catalogue import FIRST_FIT, SPREAD

_BIT = np.int64(1)
_NODE, _NOTED = range(2)  # columns of the table `changed`: a list for each pool, and whether a node is on it
_SINCE_COPY, _SINCE_MEET = np.arange(2)  # its views: nodes changed since NOW was copied to EXTRA, since BOTH was made
_MANY = 16  # rows of one request from which on they are not put together to find the first node


@inlined
def _move(w: Record, view: int, n: int, before: int, after: int) -> None:
    """Takes a node out of one row and puts it into another."""
    levels = t.levels(w)
    word, bit = n >> 6, _BIT << (n & 63)
    behind, mark = ((len(t.nodes(w)) + 63) >> 6) + (word >> 6), _BIT << (word & 63)
    levels[view, before, word] &= ~bit
    if levels[view, before, word] == 0:
        levels[view, before, behind] &= ~mark
    levels[view, after, word] |= bit
    levels[view, after, behind] |= mark


@inner
def _set(w: Record, view: int, n: int, cpu: int, mem: int, gpu: int) -> None:
    """Writes what is free on a node."""
    free, gpus = t.free(w), w.gpu_levels
    before = np.int64(free[view, n, GPU])
    if gpu != before:
        free[view, n, GPU] = gpu
        if gpus > 0:
            _move(w, view, n, before, gpu)
    before = np.int64(free[view, n, CPU])
    if cpu != before:
        free[view, n, CPU] = cpu
        old, new = max(before - w.cpu_base, 0), max(cpu - w.cpu_base, 0)
        if w.cpu_levels > 0 and old != new:
            _move(w, view, n, gpus + old, gpus + new)
    free[view, n, MEM] = mem


@inlined
def _note(w: Record, which: int, pool: int, n: int) -> None:
    changed, count = t.changed(w), t.changed_count(w)
    if changed[which, n, _NOTED] == 0:
        changed[which, n, _NOTED] = 1
        changed[which, t.pools(w).first_node[pool] + count[which, pool], _NODE] = n
        count[which, pool] += 1


@inner
def add(w: Record, view: int, pool: int, n: int, cpu: int, mem: int, gpu: int) -> None:
    """Adds to what is free on a node."""
    free = t.free(w)
    _set(w, view, n, free[view, n, CPU] + cpu, free[view, n, MEM] + mem, free[view, n, GPU] + gpu)
    _note(w, _SINCE_COPY, pool, n)
    _note(w, _SINCE_MEET, pool, n)


@kernel
def shift_level(w: Record, s: int, view: int, n: int, units: int, count: int) -> None:
    """Adds `units` of a request (less than 0: takes them) to each of `count` neighbouring nodes of a view."""
    requests = t.requests(w)
    pool = np.int64(requests.pool[s])
    for i in range(n, n + count):
        add(w, view, pool, i, units * requests.cpu[s], units * requests.mem[s], units * requests.gpu[s])


@kernel
def change_level(w: Record, n: int, sign: int) -> None:
    """Adds a whole node to what is free now, or takes it."""
    nodes = t.nodes(w)
    add(w, NOW, np.int64(nodes.pool[n]), n, sign * nodes.cpu[n], sign * nodes.mem[n], sign * nodes.gpu[n])


@kernel
def copy_levels(w: Record, pool: int, source: int, target: int) -> None:
    """Makes EXTRA what is free now; no other views are copied where nodes have levels."""
    free, total, changed, count = t.free(w), t.total(w), t.changed(w), t.changed_count(w)
    first = t.pools(w).first_node[pool]
    for k in range(first, first + count[_SINCE_COPY, pool]):
        n = changed[_SINCE_COPY, k, _NODE]
        changed[_SINCE_COPY, n, _NOTED] = 0
        _set(w, EXTRA, n, np.int64(free[NOW, n, CPU]), np.int64(free[NOW, n, MEM]), np.int64(free[NOW, n, GPU]))
        _note(w, _SINCE_MEET, pool, n)
    count[_SINCE_COPY, pool] = 0
    for c in range(3):
        total[EXTRA, pool, c] = total[NOW, pool, c]


@kernel
def meet_levels(w: Record, pool: int, a: int, b: int, target: int) -> None:
    """Makes BOTH what is free now and in EXTRA, with its sums."""
    free, total, changed, count = t.free(w), t.total(w), t.changed(w), t.changed_count(w)
    first = t.pools(w).first_node[pool]
    for k in range(first, first + count[_SINCE_MEET, pool]):
        n = changed[_SINCE_MEET, k, _NODE]
        changed[_SINCE_MEET, n, _NOTED] = 0
        cpu = np.int64(min(free[NOW, n, CPU], free[EXTRA, n, CPU]))
        mem = np.int64(min(free[NOW, n, MEM], free[EXTRA, n, MEM]))
        gpu = np.int64(min(free[NOW, n, GPU], free[EXTRA, n, GPU]))
        total[BOTH, pool, CPU] += cpu - free[BOTH, n, CPU]
        total[BOTH, pool, MEM] += mem - free[BOTH, n, MEM]
        total[BOTH, pool, GPU] += gpu - free[BOTH, n, GPU]
        _set(w, BOTH, n, cpu, mem, gpu)
    count[_SINCE_MEET, pool] = 0


@kernel
def place_levels(w: Record, s: int, view: int) -> int:
    """Chooses nodes for a request, as `place` does; the number of entries written to `t.spot(w)`."""
    if not fits_totals(w, s, view):
        return 0
    if w.placer == FIRST_FIT:
        return _first(w, s, view)
    return _fewest(w, s, view, w.placer == SPREAD)


@inlined
def _put(w: Record, at: int, n: int, units: int) -> None:
    spot = t.spot(w)
    spot.node[at], spot.units[at], spot.gpus[at], spot.more[at] = n, units, 0, 0


@inlined
def _rows(w: Record, s: int, units: int) -> tuple[int, int]:
    """The rows of nodes that may have room for so many units of a request: the first, and behind the last."""
    requests = t.requests(w)
    if requests.gpu[s] > 0:
        return units * requests.gpu[s], w.gpu_levels
    return w.gpu_levels + max(units * requests.cpu[s] - w.cpu_base, 0), w.gpu_levels + w.cpu_levels


@inner
def _first(w: Record, s: int, view: int) -> int:
    """P1: nodes as they come."""
    requests, levels, kinds, free = t.requests(w), t.levels(w), t.kind_bits(w), t.free(w)
    cpu, mem, gpu, kind = requests.cpu[s], requests.mem[s], requests.gpu[s], requests.kind[s]
    left, most, entries = requests.units[s], requests.per_node[s], np.int64(0)
    low, high = _rows(w, s, np.int64(1))
    many = high - low > _MANY
    pool, words = requests.pool[s], (len(t.nodes(w)) + 63) >> 6
    first, last = t.pools(w).first_node[pool] >> 6, ((t.pools(w).last_node[pool] - 1) >> 6) + 1
    for group in range(first >> 6, ((last - 1) >> 6) + 1):
        marks = np.int64(-1) if many else np.int64(0)
        if not many:
            for row in range(low, high):
                marks |= levels[view, row, words + group]
        while marks != 0:
            word = (group << 6) + lowest_bit(marks)
            marks &= marks - 1
            if word < first:
                continue
            if word >= last:
                break
            bits = kinds[kind, word]
            if many:
                if w.cpu_base == 0:
                    bits &= ~levels[view, w.gpu_levels, word]  # … with no CPU free
            else:
                any_of = np.int64(0)
                for row in range(low, high):
                    any_of |= levels[view, row, word]
                bits &= any_of
            while bits != 0:
                n = (word << 6) + lowest_bit(bits)
                bits &= bits - 1
                units = np.int64(node_room(free, view, n, cpu, mem, gpu, min(left, most)))
                if units > 0:
                    _put(w, entries, n, units)
                    entries += 1
                    left -= units
                    if left == 0:
                        return int(entries)
    return 0


@inner
def find(w: Record, s: int, view: int, units: int, limit: int, emptiest: bool) -> int:
    """Writes nodes with room for so many units into `t.fitting(w)`, at most `limit`; how many.

    The fullest (or emptiest) first, then by number; nodes that are marked in `t.room(w)` are left out.
    """
    requests, levels, kinds, free, taken = t.requests(w), t.levels(w), t.kind_bits(w), t.free(w), t.room(w)
    found, kind, pool = t.fitting(w), requests.kind[s], requests.pool[s]
    cpu, mem, gpu = units * requests.cpu[s], units * requests.mem[s], units * requests.gpu[s]
    words, count = (len(t.nodes(w)) + 63) >> 6, np.int64(0)
    first, last = t.pools(w).first_node[pool] >> 12, ((t.pools(w).last_node[pool] - 1) >> 12) + 1
    low, high = _rows(w, s, units)
    mingled = w.gpu_levels if requests.gpu[s] == 0 and w.cpu_base > 0 else -1  # the row of several amounts
    for k in range(high - low):
        row = high - 1 - k if emptiest else low + k
        before, enough = count, limit if row != mingled else len(found) + 1  # all of it, to be sorted
        for group in range(first, last):
            marks = levels[view, row, words + group]
            while marks != 0:
                word = (group << 6) + lowest_bit(marks)
                marks &= marks - 1
                bits = levels[view, row, word] & kinds[kind, word]
                while bits != 0:
                    n = (word << 6) + lowest_bit(bits)
                    bits &= bits - 1
                    if free[view, n, CPU] < cpu or free[view, n, MEM] < mem or free[view, n, GPU] < gpu:
                        continue
                    if taken[n] == 0:
                        found[count] = n
                        count += 1
                        if count == enough:
                            return int(count)
        if row == mingled:
            _sort(w, view, before, count, emptiest)
            if count >= limit:
                return limit
    return int(count)


@inlined
def _sort(w: Record, view: int, first: int, last: int, emptiest: bool) -> None:
    """Sorts nodes that were found by what is free of their CPUs, then by number."""
    free, found = t.free(w), t.fitting(w)
    keys = np.empty(last - first, dtype=np.int64)
    for i in range(first, last):
        amount = np.int64(free[view, found[i], CPU])
        keys[i - first] = ((-amount if emptiest else amount) << 32) + found[i]
    sort_keys(keys)
    for i in range(first, last):
        found[i] = keys[i - first] & np.int64(0xFFFFFFFF)


@inner
def _fewest(w: Record, s: int, view: int, emptiest: bool) -> int:
    """P2: one node that holds all that is left, else those that hold most; then the fullest (or emptiest)."""
    requests, found, taken, spot = t.requests(w), t.fitting(w), t.room(w), t.spot(w)
    left, one = np.int64(requests.units[s]), np.int64(1)
    if requests.gpu[s] > 0:
        largest = (w.gpu_levels - 1) // requests.gpu[s]
    else:
        largest = (w.cpu_base + w.cpu_levels - 1) // requests.cpu[s]
    most = min(left, requests.per_node[s], largest)
    entries = np.int64(0)
    if most == 0:
        return 0
    if most < left:
        # As many of those that hold most as are sure to be taken: mostly the others need no look.
        entries = np.int64(find(w, s, view, most, (left - 1) // most, emptiest))
        for i in range(entries):
            taken[found[i]] = 1
            _put(w, i, found[i], most)
        left -= entries * most
    marked = entries
    if left <= most and find(w, s, view, left, one, emptiest) > 0:
        _put(w, entries, found[0], left)
        entries += 1
    else:
        # Where a node holds one unit at most, no others are left that hold any.
        entries = _fill_up(w, s, view, entries, left, most, emptiest) if most > 1 and left > 1 else np.int64(0)
    for i in range(max(entries, marked)):
        taken[spot.node[i]] = 0
    return int(entries)


@inner
def _fill_up(w: Record, s: int, view: int, entries: int, left: int, most: int, emptiest: bool) -> int:
    """Adds nodes to a placement by room, none of which holds all that is left; 0 if they hold too little."""
    found, taken = t.fitting(w), t.room(w)
    count = find(w, s, view, np.int64(1), np.int64(len(found)), emptiest)
    begin = np.zeros(most + 2, dtype=np.int64)  # by room, the most first
    room = np.int64(0)
    for i in range(count):
        units = room_on(w, s, view, found[i], most)
        begin[most - units + 1] += 1
        room += units
    if room < left:
        return 0
    for k in range(most):
        begin[k + 1] += begin[k]
    order = np.empty(count, dtype=np.int64)
    for i in range(count):
        k = most - room_on(w, s, view, found[i], most)
        order[begin[k]] = found[i]
        begin[k] += 1
    for i in range(count):
        units = room_on(w, s, view, order[i], left)
        if units == left:
            # The last node: of all the rest that hold what is left, the fullest (or emptiest).
            find(w, s, view, left, np.int64(1), emptiest)
            _put(w, entries, found[0], left)
            return entries + 1
        taken[order[i]] = 1
        _put(w, entries, order[i], units)
        entries += 1
        left -= units
    return 0


@inlined
def room_on(w: Record, s: int, view: int, n: int, wanted: int) -> int:
    """Units of a request that a node has room for, at most `wanted`."""
    requests = t.requests(w)
    most = min(wanted, requests.per_node[s])
    return int(np.int64(node_room(t.free(w), view, n, requests.cpu[s], requests.mem[s], requests.gpu[s], most)))
