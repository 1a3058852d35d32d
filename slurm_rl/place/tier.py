"""RLTune's tiers in polynomial time: fewest nodes, or one more if fragmentation does not grow.

Implements P4 of docs/backfill.md. Among placements on the fewest nodes k, and on k + 1 where the
number of partly used nodes does not grow, the one wins that is least in (growth of partial nodes, growth of free GPUs
on partial nodes, variance of free GPUs). All three are sums over nodes (the variance through the sum of squares, since
the total is fixed), nodes of equal state are interchangeable, and all but one node of a placement are filled to the
brim: so a small dynamic programme over (groups of equal nodes, nodes used, units placed) finds the best one exactly
within that family. Of a request beyond `_EXACT` units, the bulk goes to the roomiest nodes first and the programme
places the rest.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import GPU, Array, Record
from slurm_rl.kernel.jit import inner, kernel
from slurm_rl.place.capacity import NOT_MINE, capacity

# One number orders the triple: each weight exceeds what all the lower terms can add up to (free GPUs on a node ≤ 64,
# so squares ≤ 4096 a node and nodes of a job ≤ 4096).
_PARTIAL = 1 << 44
_WASTE = 1 << 26
_NONE = np.int64(1) << 60
_EXACT = 128
_FULL, _PART, _SPARED = range(3)
_NO_GROUP = -2


@inner
def _cost(total: int, free: int, taken: int) -> int:
    """Lexicographic cost of taking `taken` of the `free` GPUs of a node that has `total`."""
    left = free - taken
    partial = (0 < left < total) - (0 < free < total)
    waste = (left if 0 < left < total else 0) - (free if 0 < free < total else 0)
    return partial * _PARTIAL + waste * _WASTE + (left * left - free * free)


@kernel
def place_tier(w: Record, s: int, view: int, first: int, last: int) -> int:
    """Chooses nodes for a request by tiers; the number of entries, 0 if it does not fit."""
    units = t.requests(w).units[s]
    per = t.requests(w).gpu[s]
    if per == 0 or t.requests(w).exclusive[s]:
        return NOT_MINE  # tiers are about whole GPUs, and about what a job leaves of a node
    eligible = last - first
    # 1. Group the nodes that could take something: equal (room, free, total) are interchangeable.
    group = np.full(eligible, -1, dtype=np.int64)
    room = np.zeros(eligible, dtype=np.int64)
    state = np.zeros((3, eligible), dtype=np.int64)  # of each group: room, free and total GPUs of its nodes
    size = np.zeros(eligible, dtype=np.int64)
    groups = _group(w, s, view, first, group, room, state, size)
    # 2. The fewest nodes that hold all units; beyond the exact part, the bulk stays on the roomiest.
    quota = np.zeros(groups, dtype=np.int64)  # brim-full nodes of each group
    least = _fewest_nodes(units, groups, state, size, quota)
    if least < 0:
        return 0
    for g in range(groups):
        quota[g] = min(quota[g], max(0, (units - _EXACT) // state[0, g]))
        units -= quota[g] * state[0, g]
        size[g] -= quota[g]
        least -= quota[g]
    # 3. The best of all that use the fewest nodes, or one more without making more nodes partial.
    partly = _best(units, per, least, groups, state, size, quota)
    if partly[0] == _NO_GROUP:
        return 0
    # 4. Write it down, lower node numbers first.
    count = 0
    for i in range(eligible):
        g = group[i]
        if g < 0:
            continue
        if quota[g] > 0:
            quota[g] -= 1
            amount = room[i]
        elif g == partly[0] and partly[1] > 0:
            amount = partly[1]
            partly[1] = 0
        else:
            continue
        t.spot(w).node[count] = t.kind_node(w)[first + i]
        t.spot(w).units[count] = amount
        t.spot(w).gpus[count] = 0
        count += 1
    return count


@inner
def _group(w: Record, s: int, view: int, first: int, group: Array, room: Array, state: Array, size: Array) -> int:
    """Writes each node's room and group (-1: no room), each group's state and size; how many groups there are."""
    units = t.requests(w).units[s]
    groups = 0
    for i in range(len(group)):
        n = t.kind_node(w)[first + i]
        room[i] = capacity(w, s, view, n, units)
        if room[i] == 0:
            continue
        free = t.free(w)[view, n, GPU]
        total = t.nodes(w).gpu[n]
        for g in range(groups):
            if state[0, g] == room[i] and state[1, g] == free and state[2, g] == total:
                group[i] = g
                break
        if group[i] < 0:
            group[i] = groups
            state[0, groups], state[1, groups], state[2, groups] = room[i], free, total
            groups += 1
        size[group[i]] += 1
    return groups


@inner
def _fewest_nodes(units: int, groups: int, state: Array, size: Array, quota: Array) -> int:
    """Writes how many nodes of each group, the roomiest first, hold all units; their number, -1 if they do not fit."""
    least, covered = 0, 0
    seen = np.zeros(groups, dtype=np.bool_)
    for _ in range(groups):
        # The roomiest group not yet taken: there are few.
        top = -1
        for g in range(groups):
            if not seen[g] and (top < 0 or state[0, g] > state[0, top]):
                top = g
        seen[top] = True
        wanted = max(0, -(-(units - covered) // state[0, top]))
        take = min(size[top], wanted)
        least += take
        covered += take * state[0, top]
        quota[top] = take
    return least if covered >= units else -1


@inner
def _best(units: int, per: int, least: int, groups: int, state: Array, size: Array, quota: Array) -> Array:
    """Adds the winner's brim-full nodes to `quota`; the group and the units of its partly filled node.

    The group is -1 if no node is filled in part, _NO_GROUP if there is no winner.
    """
    most = least + 1
    # The largest room among a group and those after it: what they can still hold.
    reach = np.zeros(groups + 1, dtype=np.int64)
    for g in range(groups - 1, -1, -1):
        reach[g] = max(reach[g + 1], state[0, g])
    # Least cost of u units on k nodes of the groups so far: `full` with all nodes brim-full, `part` with one node
    # filled in part, `spared` with all brim-full and a node of this group left over for that. States that k nodes
    # cannot hold are never written; those from which the rest would need too many nodes are left out, and nobody looks
    # at them, since their successors are left out too.
    full = np.full((most + 1, units + 1), _NONE, dtype=np.int64)
    part, spared, scratch = full.copy(), full.copy(), full.copy()
    full[0, 0] = 0
    choice = np.zeros((3, groups, most + 1, units + 1), dtype=np.int16)  # brim-full nodes of a group in each of them
    rest = np.zeros((groups, most + 1, units + 1), dtype=np.int16)  # units on the group's partly filled node
    for g in range(groups):
        fill, free, total = state[0, g], state[1, g], state[2, g]
        cost = _cost(total, free, fill * per)
        _add_full(full, spared, choice[_SPARED, g], fill, cost, size[g] - 1, reach[0], reach[g])
        _add_full(part, scratch, choice[_PART, g], fill, cost, size[g], reach[0], reach[g + 1])
        for r in range(1, fill):
            partly = _cost(total, free, r * per)
            for k in range(1, most + 1):
                for u in range(max(r, units - (most - k) * reach[g + 1]), min(units, k * reach[0]) + 1):
                    before = spared[k - 1, u - r]
                    if before < _NONE and before + partly < scratch[k, u]:
                        scratch[k, u] = before + partly
                        rest[g, k, u] = r
        part, scratch = scratch, part
        _add_full(full, scratch, choice[_FULL, g], fill, cost, size[g], reach[0], reach[g + 1])
        full, scratch = scratch, full
    win, win_k, open_node = _NONE, -1, False
    for k in range(most + 1):
        for partly in range(2):
            cost = part[k, units] if partly else full[k, units]
            if cost < win and _allowed(cost, k, least):
                win, win_k, open_node = cost, k, partly == 1
    found = np.full(2, -1, dtype=np.int64)
    if win_k < 0:
        found[0] = _NO_GROUP
        return found
    # Read the winner back from the last group to the first.
    k, u = win_k, units
    for g in range(groups - 1, -1, -1):
        table = _FULL
        if open_node:
            table = _PART
            if rest[g, k, u] > 0:
                found[0], found[1] = g, rest[g, k, u]
                k -= 1
                u -= found[1]
                table = _SPARED
                open_node = False
        c = int(choice[table, g, k, u])
        quota[g] += c
        k -= c
        u -= c * state[0, g]
    return found


@inner
def _add_full(
    source: Array, target: Array, chosen: Array, fill: int, cost: int, limit: int, most_each: int, reach: int
) -> None:
    """Extends states by up to `limit` brim-full nodes of one group; `chosen` says by how many.

    Only states are made that nodes of `most_each` units can hold, and nodes of `reach` units each complete.
    """
    most, units = source.shape[0] - 1, source.shape[1] - 1
    for k in range(most + 1):
        for u in range(max(0, units - (most - k) * reach), min(units, k * most_each) + 1):
            top = source[k, u]
            for c in range(1, min(limit, k, u // fill) + 1):
                before = source[k - c, u - c * fill]
                if before < _NONE and before + c * cost < top:
                    top = before + c * cost
                    chosen[k, u] = c
            target[k, u] = top


@inner
def _allowed(cost: int, k: int, least: int) -> bool:
    """The fewest nodes always; one more only if the number of partial nodes does not grow."""
    return k <= least or (cost + _PARTIAL // 2) // _PARTIAL <= 0
