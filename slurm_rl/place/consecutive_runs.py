"""Placement `slurm` on large machines: runs of consecutive nodes, of which those that are alike are one row.

Implements P10 of docs/backfill.md, exactly as consecutive.py does node by node (counting.py says when). The table
`fitting` lists the first node of each row, `alike` has the number of its nodes and `room` the units that each holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.place.capacity import fits_totals, sort_keys
from slurm_rl.place.runs import first_node, put_entry, room_of_run, run_end

_INDEX = np.int64((1 << 32) - 1)  # the lower half of a key


@kernel
def place_slurm_runs(w: Record, s: int, view: int) -> int:
    """P10: nodes for a request, written to `t.spot(w)`, if need be of those alone that `bitmaps` allows."""
    if not fits_totals(w, s, view):
        return 0
    pool = np.int64(t.requests(w).pool[s])
    base, units, fitting, room = t.pools(w).first_node[pool], t.requests(w).units[s], t.fitting(w), t.room(w)
    most = min(units, t.requests(w).per_node[s])
    total, count = np.int64(0), np.int64(0)
    for k in range(t.run_count(w)[view, pool]):
        here = room_of_run(w, s, view, base + k, most)
        n = first_node(w, view, base + k)
        if here > 0 and (w.within == 0 or (t.bitmaps(w)[0, n >> 6] >> (n & 63)) & 1 != 0):
            fitting[count], room[n], t.alike_nodes(w)[n] = n, here, run_end(w, view, pool, k) - n
            total += here * t.alike_nodes(w)[n]
            count += 1
    return choose_runs(w, s, count) if total >= units else 0


@inner
def choose_runs(w: Record, s: int, count: int) -> int:
    """Nodes for all units of a request, from the first `count` rows in `t.fitting(w)`; they suffice."""
    nodes, fitting = t.nodes(w), t.fitting(w)
    left = t.requests(w).units[s]
    begin, end, best, lightest = np.int64(-1), np.int64(-1), np.int64(0), np.int64(0)
    runs, at = 0, np.int64(0)
    while at < count:
        start, at, total = _run(w, at, count)
        runs += 1
        weight = nodes.weight[fitting[start]]
        if begin < 0 or weight < lightest:
            better = True
        elif weight > lightest:
            better = False
        elif total >= left:
            better = best < left or total < best
        else:
            better = total > best
        if better:
            begin, end, best, lightest = start, at, total, weight
    if best >= left:
        return int(_take_run(w, begin, end, left, np.int64(0)))
    return _join_runs(w, left, count, runs)


@inlined
def _run(w: Record, at: int, count: int) -> tuple[int, int, int]:
    """The run that begins at a place of `fitting`: this place, the one behind it, and its room."""
    nodes, fitting, room, alike = t.nodes(w), t.fitting(w), t.room(w), t.alike_nodes(w)
    start = at
    total: Any = np.int64(0)
    number, weight = nodes.number[fitting[at]], nodes.weight[fitting[at]]
    while at < count:
        n = fitting[at]
        if nodes.number[n] != number or nodes.weight[n] != weight:
            break
        total += room[n] * alike[n]
        number += alike[n]
        at += 1
    return start, at, total


@inlined
def _take_run(w: Record, begin: int, end: int, left: int, count: int) -> int:
    """Takes units from a run: from the single node with least room that holds all, else in order; new entries."""
    fitting, room, alike = t.fitting(w), t.room(w), t.alike_nodes(w)
    alone = -1
    for at in range(begin, end):
        n = fitting[at]
        if room[n] >= left and (alone < 0 or room[n] < room[alone]):
            alone = n
    if alone >= 0:
        return put_entry(w, count, alone, left, np.int64(1))
    for at in range(begin, end):
        n = fitting[at]
        whole = min(alike[n], left // room[n])
        if whole > 0:
            count = put_entry(w, count, n, room[n], whole)
            left -= whole * room[n]
        if left > 0 and whole < alike[n]:
            count = put_entry(w, count, n + whole, left, np.int64(1))  # fewer than the node could hold
            left = 0
        if left == 0:
            break
    return count


@inner
def _join_runs(w: Record, left: int, count: int, runs: int) -> int:
    """No run of the lightest nodes suffices: their largest runs, until one of the rest suffices; then heavier nodes."""
    fitting, nodes = t.fitting(w), t.nodes(w)
    begins, ends, totals = np.empty(runs, np.int64), np.empty(runs, np.int64), np.empty(runs, np.int64)
    at, k = np.int64(0), 0
    while at < count:
        begins[k], at, totals[k] = _run(w, at, count)
        ends[k] = at
        k += 1
    keys = np.empty(runs, np.int64)
    taken = np.int64(0)
    while left > 0:
        lightest, gone = np.int64(0), True
        for k in range(runs):
            weight = nodes.weight[fitting[begins[k]]]
            if totals[k] > 0 and (gone or weight < lightest):
                lightest, gone = weight, False
        if gone:
            return 0
        mine = 0
        for k in range(runs):
            if totals[k] > 0 and nodes.weight[fitting[begins[k]]] == lightest:
                keys[mine] = (-totals[k] << 32) + k
                mine += 1
        sort_keys(keys[:mine])
        i = 0
        while i < mine and left > 0:
            k = keys[i] & _INDEX
            if totals[k] >= left:  # the tightest of those that suffice: equal totals stand in order
                x = i
                while x + 1 < mine and totals[keys[x + 1] & _INDEX] >= left:
                    x += 1
                while x > i and totals[keys[x - 1] & _INDEX] == totals[keys[x] & _INDEX]:
                    x -= 1
                k = keys[x] & _INDEX
            taken = _take_run(w, begins[k], ends[k], left, taken)
            left -= min(totals[k], left)
            totals[k] = 0
            i += 1
    return int(_sort_spot(w, taken))


@inlined
def _sort_spot(w: Record, count: int) -> int:
    """Entries in `t.spot(w)` by node, and neighbours as one: several runs were joined; how many there are then."""
    spot = t.spot(w)
    keys, units, more = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(count):
        keys[i], units[i], more[i] = (spot.node[i] << 32) + i, spot.units[i], spot.more[i]
    sort_keys(keys)
    new: Any = np.int64(0)
    for i in range(count):
        k = keys[i] & _INDEX
        new = put_entry(w, new, keys[i] >> 32, units[k], more[k] + 1)
    return new
