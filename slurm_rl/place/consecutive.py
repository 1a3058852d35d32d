"""Placement `slurm`: runs of consecutive nodes, as select/cons_tres takes them.

Implements P10 of docs/backfill.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.place.capacity import capacity, node_room, sort_keys

_INDEX = np.int64((1 << 32) - 1)  # the lower half of a key


@kernel
def place_slurm(w: Record, s: int, view: int, first: int, last: int) -> int:
    """P10: nodes for a request, written to `t.spot(w)`; 0 if it does not fit (arguments: kernels.py)."""
    requests, free, kind_node, room, fitting = t.requests(w), t.free(w), t.kind_node(w), t.room(w), t.fitting(w)
    cpu, mem, gpu, units = requests.cpu[s], requests.mem[s], requests.gpu[s], requests.units[s]
    most = min(units, requests.per_node[s])
    total, count = np.int64(0), np.int64(0)
    for at in range(first, last):
        n = kind_node[at]
        if requests.careful[s] > 0:
            here = capacity(w, s, view, n, units)
        else:
            here = node_room(free, view, n, cpu, mem, gpu, most)
        if here > 0:
            room[n], fitting[count] = here, n
            total += here
            count += 1
    return choose_nodes(w, s, view, count) if total >= units else 0


@inner
def choose_nodes(w: Record, s: int, view: int, count: int) -> int:
    """Nodes for all units of a request, from the first `count` in `t.fitting(w)` with their room; they suffice."""
    if w.least_loaded:
        return _least_loaded(w, s, view, count)
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
    nodes, fitting, room = t.nodes(w), t.fitting(w), t.room(w)
    start = at
    total: Any = np.int64(0)
    number, weight = nodes.number[fitting[at]], nodes.weight[fitting[at]]
    while at < count:
        n = fitting[at]
        if nodes.number[n] != number or nodes.weight[n] != weight:
            break
        total += room[n]
        number += 1
        at += 1
    return start, at, total


@inlined
def _take_run(w: Record, begin: int, end: int, left: int, count: int) -> int:
    """Takes units from a run: from the single node with least room that holds all, else in order; new entries."""
    fitting, room, spot = t.fitting(w), t.room(w), t.spot(w)
    alone = -1
    for at in range(begin, end):
        n = fitting[at]
        if room[n] >= left and (alone < 0 or room[n] < room[alone]):
            alone = n
    for at in range(begin, end):
        n = fitting[at]
        if alone < 0 or n == alone:
            spot.node[count], spot.units[count], spot.gpus[count] = n, min(room[n], left), 0
            left -= spot.units[count]
            count += 1
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
    _sort_spot(w, taken)
    return int(taken)


@inlined
def _sort_spot(w: Record, count: int) -> None:
    """Entries in `t.spot(w)` by node: several runs were joined."""
    spot = t.spot(w)
    keys = np.empty(count, np.int64)
    for i in range(count):
        keys[i] = (spot.node[i] << 32) + spot.units[i]
    sort_keys(keys)
    for i in range(count):
        spot.node[i], spot.units[i] = keys[i] >> 32, keys[i] & _INDEX


@inner
def _least_loaded(w: Record, s: int, view: int, count: int) -> int:
    """P10 with CR_LLN: node by node, the one with most free CPUs."""
    fitting, room, spot, free = t.fitting(w), t.room(w), t.spot(w), t.free(w)
    left = t.requests(w).units[s]
    taken = 0
    while left > 0:
        best = -1
        for at in range(count):
            n = fitting[at]
            if room[n] > 0 and (best < 0 or free[view, n, CPU] > free[view, best, CPU]):
                best = n
        if best < 0:
            return 0
        spot.node[taken], spot.units[taken], spot.gpus[taken] = best, min(room[best], left), 0
        left -= spot.units[taken]
        room[best] = 0
        taken += 1
    _sort_spot(w, taken)
    return taken
