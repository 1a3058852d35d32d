"""Placement by blocks: a gang inside one block (or under one leaf switch), else in as few as can hold it.

Implements P11 of docs/backfill.md. Nodes of a block are neighbours in `kind_node`. The numbers of switches and the
segments that jobs insist on are kept here whatever the placement.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, NEVER, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.place.capacity import NOT_MINE, capacity, capacity_of_type


@kernel
def place_by_block(w: Record, s: int, view: int, first: int, last: int) -> int:
    """P11: nodes for a request, written to `t.spot(w)`; 0 if it does not fit, NOT_MINE if blocks do not matter to it.

    GPU types are tried one by one: the cheapest is taken, where spanning blocks costs what it costs in speed. A job
    that no single type could hold is placed as if all were one.
    """
    requests, prefer, nodes, kind_node = t.requests(w), t.prefer(w), t.nodes(w), t.kind_node(w)
    units = requests.units[s]
    bound = requests.switches[s] > 0 or requests.segment[s] > 0
    if not bound and not requests.wide[s]:
        alone = _on_one_node(w, s, view, first, last)
        if alone != 0:
            return alone
    typed = requests.alone[s] > 0 and requests.gpu[s] + requests.share[s] > 0
    room = np.empty(last - first, dtype=np.int64)
    best, best_cost, best_inside, best_spare = -2, np.inf, False, np.int64(0)
    for k in range(-1, prefer.shape[1]):
        if (k >= 0) != typed:
            continue
        total, spare = _rooms(w, s, view, first, last, k, room)
        if total < units:
            continue
        inside = spare >= 0
        if not inside and not _allowed(w, s, first, last, room):
            continue
        slow = 1.0
        if not inside:
            for at in range(first, last):
                if room[at - first] > 0:
                    slow = min(slow, nodes.span[kind_node[at]])
        cost = 1.0 / (prefer[s, k] * slow) if k >= 0 else 1.0 / slow
        if cost < best_cost or (cost == best_cost and inside and (not best_inside or spare < best_spare)):
            best, best_cost, best_inside, best_spare = k, cost, inside, spare
    if best == -2:
        return 0
    _rooms(w, s, view, first, last, best, room)
    return _take_blocks(w, s, view, first, last, best, room)


@inlined
def _end(w: Record, at: int, last: int) -> int:
    """Where the block that begins at a place of `kind_node` ends."""
    block = t.nodes(w).block[t.kind_node(w)[at]]
    while at < last and t.nodes(w).block[t.kind_node(w)[at]] == block:
        at += 1
    return at


@inner
def _rooms(w: Record, s: int, view: int, first: int, last: int, k: int, room: Any) -> tuple[int, int]:
    """Units that each node has room for; their sum, and what the tightest block that holds all has to spare, or -1.

    Blocks count whole segments.
    """
    requests = t.requests(w)
    units, segment = requests.units[s], max(requests.segment[s], 1)
    total: Any = np.int64(0)
    spare: Any = np.int64(-1)
    at = first
    while at < last:
        end = _end(w, at, last)
        here = np.int64(0)
        for i in range(at, end):
            n = t.kind_node(w)[i]
            mine = capacity(w, s, view, n, units) if k < 0 else capacity_of_type(w, s, view, n, units, k)
            room[i - first] = mine
            here += mine
        here = here // segment * segment
        total += here
        if here >= units and (spare < 0 or here - units < spare):
            spare = here - units
        at = end
    return total, spare


@inlined
def _block_room(w: Record, s: int, at: int, end: int, first: int, room: Any) -> int:
    here = np.int64(0)
    for i in range(at, end):
        here += max(room[i - first], 0)
    segment = max(t.requests(w).segment[s], 1)
    return here // segment * segment


@inner
def _best_block(w: Record, s: int, first: int, last: int, room: Any, taken: Any, left: int) -> tuple[int, int, int]:
    """Of the blocks not taken yet, the tightest that holds `left` units, else the roomiest: begin, end, room.

    Marks it as taken; -1: no block has room.
    """
    best: Any = np.int64(-1)
    best_end: Any = np.int64(-1)
    best_room: Any = np.int64(0)
    at = first
    while at < last:
        end = _end(w, at, last)
        here = _block_room(w, s, at, end, first, room)
        if here > 0 and not taken[at - first]:
            if best < 0:
                better = True
            elif here >= left:
                better = best_room < left or here < best_room
            else:
                better = best_room < left and here > best_room
            if better:
                best, best_end, best_room = at, end, here
        at = end
    if best >= 0:
        taken[best - first] = True
    return best, best_end, best_room


@inner
def _allowed(w: Record, s: int, first: int, last: int, room: Any) -> bool:
    """Whether the largest blocks hold a request within the number of switches that it accepts."""
    most = t.requests(w).switches[s]
    if most == 0:
        return True
    left: Any = t.requests(w).units[s]
    taken = np.zeros(last - first, dtype=np.bool_)
    for _ in range(most):
        best, _, size = _best_block(w, s, first, last, room, taken, NEVER)
        if best < 0:
            return False
        left -= size
        if left <= 0:
            return True
    return False


@inner
def _take_blocks(w: Record, s: int, view: int, first: int, last: int, k: int, room: Any) -> int:
    """Block by block: the tightest that holds all that is left, else the roomiest; the number of entries."""
    left: Any = t.requests(w).units[s]
    count: Any = np.int64(0)
    only = np.int64(1) << k if k >= 0 and w.mixed > 0 and t.requests(w).careful[s] > 0 else np.int64(0)
    taken = np.zeros(last - first, dtype=np.bool_)
    while left > 0:
        best, end, size = _best_block(w, s, first, last, room, taken, left)
        if best < 0:
            return 0
        count = _fill_block(w, view, best, end, first, min(left, size), only, room, count)
        left -= min(left, size)
    return int(count)


@inlined
def _fill_block(
    w: Record, view: int, at: int, end: int, first: int, left: int, only: int, room: Any, count: int
) -> int:
    """Node by node, one that holds most of what is left, of these the one with the fewest free GPUs (or CPUs)."""
    spot, free, kind_node = t.spot(w), t.free(w), t.kind_node(w)
    while left > 0:
        best: Any = np.int64(-1)
        best_room: Any = np.int64(0)
        best_gpus, best_cpus = np.int64(0), np.int64(0)
        for i in range(at, end):
            here = min(room[i - first], left)
            if here <= 0 or here < best_room:
                continue
            gpus, cpus = np.int64(free[view, kind_node[i], GPU]), np.int64(free[view, kind_node[i], CPU])
            if here > best_room or gpus < best_gpus or (gpus == best_gpus and cpus < best_cpus):
                best, best_room, best_gpus, best_cpus = i, here, gpus, cpus
        spot.node[count], spot.units[count] = kind_node[best], best_room
        spot.gpus[count] = only
        room[best - first] = -1
        count += 1
        left -= best_room
    return count


@inlined
def _on_one_node(w: Record, s: int, view: int, first: int, last: int) -> int:
    """All on one node: of the cheapest type, the fullest, then the one in the block with the least free."""
    requests, prefer, nodes = t.requests(w), t.prefer(w), t.nodes(w)
    free, kind_node, spot, units = t.free(w), t.kind_node(w), t.spot(w), t.requests(w).units[s]
    if requests.gpu[s] + requests.share[s] == 0 or not requests.alone[s]:
        return NOT_MINE
    several = w.mixed > 0 and requests.careful[s] > 0
    best, best_type, best_worth = np.int64(-1), -1, 0.0
    best_free, best_block = np.int64(0), np.int64(0)
    at = first
    while at < last:
        end = _end(w, at, last)
        idle = np.int64(0)
        for i in range(at, end):
            idle += free[view, kind_node[i], GPU]
        for i in range(at, end):
            n = kind_node[i]
            for k in range(prefer.shape[1]):
                if (not several and nodes.type[n] != k) or (best >= 0 and prefer[s, k] < best_worth):
                    continue
                if capacity_of_type(w, s, view, n, units, np.int64(k)) < units:
                    continue
                amount = np.int64(free[view, n, GPU])
                better = best < 0 or prefer[s, k] > best_worth or amount < best_free
                if better or (amount == best_free and idle < best_block):
                    best, best_type, best_worth, best_free, best_block = n, k, prefer[s, k], amount, idle
        at = end
    if best < 0:
        return 0
    spot.node[0], spot.units[0] = best, units
    spot.gpus[0] = np.int64(1) << best_type if several else np.int64(0)
    return 1
