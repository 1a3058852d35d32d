"""Places a job on nodes of one GPU type, the most preferred on which it fits: for `greedy` and `mip`.

Implements P5 of docs/backfill.md; what it prefers is in docs/placement.md.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, GPU_MILLI, MEM, PARTS, TYPE, Record
from slurm_rl.kernel.jit import inner, kernel
from slurm_rl.place.capacity import NOT_MINE, capacity, capacity_of_type

_EQUAL = 1e-9  # of a GPU


@kernel
def place_by_type(w: Record, s: int, view: int, first: int, last: int) -> int:
    """On nodes of one GPU type, the most preferred on which it fits: one that holds all, else the roomiest.

    Of several, the one on which it leaves the fewest free GPUs that the mix cannot use, then the fullest.
    """
    requests, kind_node, prefer, nodes = t.requests(w), t.kind_node(w), t.prefer(w), t.nodes(w)
    if not requests.alone[s] or requests.gpu[s] + requests.share[s] == 0:
        return NOT_MINE  # no single type could hold it, or it is not about GPUs
    units = requests.units[s]
    types = prefer.shape[1]
    room = np.zeros(types, dtype=np.int64)
    several = w.mixed > 0 and requests.careful[s] > 0
    for at in range(first, last):
        n = kind_node[at]
        if several:
            for k in range(types):
                if room[k] < units:
                    room[k] += capacity_of_type(w, s, view, n, units, k)
        elif room[nodes.type[n]] < units:
            room[nodes.type[n]] += capacity(w, s, view, n, units)
    best = -1
    for k in range(types):
        if room[k] >= units and (best < 0 or prefer[s, k] > prefer[s, best]):
            best = k
    if best < 0:
        return 0
    count, left = 0, units
    weigh = len(t.mix(w)) > 0
    while left > 0:
        pick, pick_room, pick_free, pick_lost = -1, 0, 0, 0.0
        for at in range(first, last):
            n = kind_node[at]
            if nodes.type[n] != best and not several:
                continue
            here = capacity_of_type(w, s, view, n, left, best) if several else capacity(w, s, view, n, left)
            if here == 0 or here < pick_room:
                continue
            lost = 0.0
            if weigh and has_several(w, n):
                lost = blocked_by_type(w, s, view, n, here, best) - blocked_by_type(w, s, view, n, 0, best)
            elif weigh:
                lost = blocked(w, s, view, n, here) - blocked(w, s, view, n, 0)
            free = t.free(w)[view, n, GPU]
            less = lost < pick_lost - _EQUAL or (lost <= pick_lost + _EQUAL and free < pick_free)
            if here > pick_room or less:
                taken = False
                for i in range(count):
                    taken = taken or t.spot(w).node[i] == n
                if not taken:
                    pick, pick_room, pick_free, pick_lost = n, here, free, lost
        only = np.int64(1) << best if several else np.int64(0)
        t.spot(w).node[count], t.spot(w).units[count], t.spot(w).gpus[count] = pick, pick_room, only
        count += 1
        left -= pick_room
    return count


@inner
def blocked(w: Record, s: int, view: int, n: int, units: int) -> float:
    """Free GPUs on a node that the mix could not use after so many units of a request: `PlacementProblem.blocked`."""
    requests, used = t.requests(w), t.used(w)
    slots = used.shape[2]
    cpu = t.free(w)[view, n, CPU] - units * requests.cpu[s]
    mem = t.free(w)[view, n, MEM] - units * requests.mem[s]
    gpu = t.free(w)[view, n, GPU] - units * requests.gpu[s]
    share = requests.share[s]
    milli = np.empty(slots, dtype=np.int64)  # free of each GPU
    idle = float(gpu)
    if slots > 0:
        whole = units * requests.gpu[s]
        for k in range(slots):
            parts = max(t.devices(w)[t.nodes(w).klass[n], k, PARTS], 1)
            milli[k] = max(GPU_MILLI - used[view, n, k] * GPU_MILLI // parts, 0)
            if whole > 0 and milli[k] == GPU_MILLI:
                milli[k] = 0
                whole -= 1
        for _ in range(units if share > 0 else 0):
            fullest = -1
            for k in range(slots):
                if milli[k] >= share and (fullest < 0 or milli[k] < milli[fullest]):
                    fullest = k
            if fullest >= 0:
                milli[fullest] -= share
        gpu, idle = 0, 0.0
        for k in range(slots):
            gpu += milli[k] == GPU_MILLI
            idle += milli[k] / GPU_MILLI
    total = 0.0
    if idle == 0.0:
        return total
    for i in range(len(t.mix(w))):
        m = t.mix(w).request[i]
        if not may_use(w, requests.kind[m], n):
            continue
        need = requests.share[m] if requests.share[m] > 0 else GPU_MILLI
        lost, most = 0.0, 0
        for k in range(slots):
            most = max(most, milli[k])
            lost += milli[k] / GPU_MILLI if milli[k] < need else 0.0
        fits = cpu >= requests.cpu[m] and mem >= requests.mem[m] and gpu >= requests.gpu[m]
        fits = fits and (requests.share[m] == 0 or most >= need)
        total += t.mix(w).portion[i] * (lost if fits else idle)
    return total


@inner
def has_several(w: Record, n: int) -> bool:
    """Whether a node has GPUs of several types."""
    c, first = t.nodes(w).klass[n], -1
    for k in range(t.used(w).shape[2] if w.mixed else 0):
        kind = t.devices(w)[c, k, TYPE]
        if kind >= 0 and first >= 0 and kind != first:
            return True
        first = max(first, kind)
    return False


@inner
def blocked_by_type(w: Record, s: int, view: int, n: int, units: int, kind: int) -> float:
    """Likewise on a node of several types, after so many units on GPUs of one of them; whole GPUs alone are counted."""
    requests, used, c = t.requests(w), t.used(w), t.nodes(w).klass[n]
    cpu = t.free(w)[view, n, CPU] - units * requests.cpu[s]
    mem = t.free(w)[view, n, MEM] - units * requests.mem[s]
    free = np.zeros(t.speed(w).shape[1], dtype=np.int64)
    for k in range(used.shape[2]):
        if t.devices(w)[c, k, TYPE] >= 0 and used[view, n, k] == 0:
            free[t.devices(w)[c, k, TYPE]] += 1
    free[kind] -= units * requests.gpu[s]
    idle = free.sum()
    total = 0.0
    for i in range(len(t.mix(w)) if idle > 0 else 0):
        m = t.mix(w).request[i]
        if requests.share[m] > 0 or not may_use(w, requests.kind[m], n):
            continue
        fits, mine = False, np.int64(0)
        for k in range(len(free)):
            if requests.accept[m] >> k & 1:
                mine += free[k]
                fits = fits or free[k] >= requests.gpu[m]
        fits = fits and cpu >= requests.cpu[m] and mem >= requests.mem[m]
        total += t.mix(w).portion[i] * (idle - mine if fits else idle)
    return total


@inner
def may_use(w: Record, kind: int, n: int) -> bool:
    """Whether requests of a kind may use a node."""
    for i in range(t.class_ptr(w)[kind], t.class_ptr(w)[kind + 1]):
        if t.class_list(w)[i] == t.nodes(w).klass[n]:
            return True
    return False
