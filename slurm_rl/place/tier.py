"""RLTune's tiers in polynomial time: fewest nodes, or one more if fragmentation does not grow.

Among placements on the fewest nodes k, and on k + 1 where the number of partly used nodes does not grow, the one wins
that is least in (growth of partial nodes, growth of free GPUs on partial nodes, variance of free GPUs). All three are
sums over nodes (the variance through the sum of squares, since the total is fixed), nodes of equal state are
interchangeable, and all but one node of a placement are filled to the brim: so a small dynamic programme over
(groups of equal nodes, nodes used, units placed) finds the best one exactly within that family. Of a request beyond
`_EXACT` units, the bulk goes to the roomiest nodes first and the programme places the rest.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.domain import tables as t
from slurm_rl.domain.arrays import GPU, Array, Record
from slurm_rl.domain.links import INT, by_address
from slurm_rl.jit import inner, kernel
from slurm_rl.place.room import capacity

# One number orders the triple: each weight exceeds what all the lower terms can add up to (free GPUs on a node ≤ 64,
# so squares ≤ 4096 a node and nodes of a job ≤ 4096).
_PARTIAL = 1 << 44
_WASTE = 1 << 26
_NONE = np.int64(1) << 60
_EXACT = 128
_FULL, _PART, _SPARED = range(3)


@inner
def _cost(total: int, free: int, taken: int) -> int:
    """Lexicographic cost of taking `taken` of the `free` GPUs of a node that has `total`."""
    left = free - taken
    partial = (0 < left < total) - (0 < free < total)
    waste = (left if 0 < left < total else 0) - (free if 0 < free < total else 0)
    return partial * _PARTIAL + waste * _WASTE + (left * left - free * free)


@kernel
def place_tier(w: Record, s: int, view: int) -> int:
    """Chooses nodes for a shape by tiers; the number of entries, 0 if it does not fit."""
    first, last = t.kind_ptr(w)[t.shapes(w).kind[s]], t.kind_ptr(w)[t.shapes(w).kind[s] + 1]
    units = t.shapes(w).units[s]
    per = t.shapes(w).gpu[s]
    # 1. Group the nodes that could take something: equal (room, free, total) are interchangeable.
    eligible = last - first
    room = np.zeros(eligible, dtype=np.int64)
    free = np.zeros(eligible, dtype=np.int64)
    total = np.zeros(eligible, dtype=np.int64)
    group = np.full(eligible, -1, dtype=np.int64)
    groups = 0
    leader = np.zeros(eligible, dtype=np.int64)
    size = np.zeros(eligible, dtype=np.int64)
    for i in range(eligible):
        n = t.kind_node(w)[first + i]
        room[i] = capacity(w, s, view, n, units)
        if room[i] == 0:
            continue
        free[i] = t.free(w)[view, n, GPU]
        total[i] = t.nodes(w).gpu[n]
        for g in range(groups):
            k = leader[g]
            if room[k] == room[i] and free[k] == free[i] and total[k] == total[i]:
                group[i] = g
                break
        if group[i] < 0:
            group[i] = groups
            leader[groups] = i
            groups += 1
        size[group[i]] += 1
    # 2. The fewest nodes that hold all units.
    bulk = np.zeros(groups, dtype=np.int64)
    least, covered = 0, 0
    seen = np.zeros(groups, dtype=np.bool_)
    for _ in range(groups):
        # The roomiest group not yet taken: there are few.
        top = -1
        for g in range(groups):
            if not seen[g] and (top < 0 or room[leader[g]] > room[leader[top]]):
                top = g
        seen[top] = True
        wanted = max(0, -(-(units - covered) // room[leader[top]]))
        take = min(size[top], wanted)
        least += take
        covered += take * room[leader[top]]
        bulk[top] = take
    if covered < units:
        return 0
    # Beyond the exact part, the bulk stays on the roomiest nodes.
    for g in range(groups):
        bulk[g] = min(bulk[g], max(0, (units - _EXACT) // room[leader[g]]))
        units -= bulk[g] * room[leader[g]]
        size[g] -= bulk[g]
        least -= bulk[g]
    most = least + 1
    # The largest room among a group and those after it: what they can still hold.
    reach = np.zeros(groups + 1, dtype=np.int64)
    for g in range(groups - 1, -1, -1):
        reach[g] = max(reach[g + 1], room[leader[g]])
    # 3. Least cost of u units on k nodes of the groups so far: `full` with all nodes brim-full, `part` with one node
    #    filled in part, `spared` with all brim-full and a node of this group left over for that. States that k nodes
    #    cannot hold are never written; those from which the rest would need too many nodes are left out, and nobody
    #    looks at them, since their successors are left out too.
    full = np.full((most + 1, units + 1), _NONE, dtype=np.int64)
    part, spared, scratch = full.copy(), full.copy(), full.copy()
    full[0, 0] = 0
    choice = np.zeros((3, groups, most + 1, units + 1), dtype=np.int16)  # brim-full nodes of a group in each of them
    rest = np.zeros((groups, most + 1, units + 1), dtype=np.int16)  # units on the group's partly filled node
    for g in range(groups):
        i = leader[g]
        fill = room[i]
        cost = _cost(total[i], free[i], fill * per)
        _add_full(full, spared, choice[_SPARED, g], fill, cost, size[g] - 1, reach[0], reach[g])
        _add_full(part, scratch, choice[_PART, g], fill, cost, size[g], reach[0], reach[g + 1])
        for r in range(1, fill):
            partly = _cost(total[i], free[i], r * per)
            for k in range(1, most + 1):
                for u in range(max(r, units - (most - k) * reach[g + 1]), min(units, k * reach[0]) + 1):
                    before = spared[k - 1, u - r]
                    if before < _NONE and before + partly < scratch[k, u]:
                        scratch[k, u] = before + partly
                        rest[g, k, u] = r
        part, scratch = scratch, part
        _add_full(full, scratch, choice[_FULL, g], fill, cost, size[g], reach[0], reach[g + 1])
        full, scratch = scratch, full
    # 4. The best of all that use the fewest nodes, or one more without making more nodes partial.
    win, win_k, open_node = _NONE, -1, False
    for k in range(most + 1):
        for partly in range(2):
            cost = part[k, units] if partly else full[k, units]
            if cost < win and _allowed(cost, k, least):
                win, win_k, open_node = cost, k, partly == 1
    if win_k < 0:
        return 0
    # 5. Read the winner back from the last group to the first, then write it down, lower node numbers first.
    quota = bulk
    k, u, win_g, left_over = win_k, units, -1, 0
    for g in range(groups - 1, -1, -1):
        state = _FULL
        if open_node:
            state = _PART
            if rest[g, k, u] > 0:
                win_g, left_over = g, int(rest[g, k, u])
                k -= 1
                u -= left_over
                state = _SPARED
                open_node = False
        c = int(choice[state, g, k, u])
        quota[g] += c
        k -= c
        u -= c * room[leader[g]]
    count = 0
    for i in range(eligible):
        g = group[i]
        if g < 0:
            continue
        if quota[g] > 0:
            quota[g] -= 1
            amount = room[i]
        elif g == win_g and left_over > 0:
            amount = left_over
            left_over = 0
        else:
            continue
        t.spot(w).node[count] = t.kind_node(w)[first + i]
        t.spot(w).units[count] = amount
        t.spot(w).gpus[count] = 0
        count += 1
    return count


call_place_tier = by_address("place_tier", place_tier, INT, INT, INT)


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
