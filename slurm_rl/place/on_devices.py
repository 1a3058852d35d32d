"""GPUs of a node one by one: types, shards and slices, other GRES, and nodes that a job has for itself.

Implements P7 and P9 of docs/backfill.md. Only requests that are marked `careful` come here; a cluster whose nodes have
one type of GPU, given out whole, has none.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.domain.gres import MPS
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, GPU_MILLI, MEM, NAME, OTHER, PARTS, SHARING, TYPE, Record
from slurm_rl.kernel.jit import inlined, kernel
from slurm_rl.kernel.links import INT, NOTHING, by_address


@inlined
def _serves(w: Record, s: int, c: int, k: int, accept: int) -> bool:
    """Whether a device of a class is of a type that will do, and is shared in the way that the request asks for."""
    devices, requests = t.devices(w), t.requests(w)
    kind = devices[c, k, TYPE]
    if kind < 0 or (accept != -1 and (accept >> kind) & 1 == 0):
        return False
    return requests.sharing[s] == 0 or devices[c, k, SHARING] == requests.sharing[s]


@inlined
def _need(w: Record, s: int, c: int, k: int) -> int:
    """Parts of a device that a unit takes: shards as they are, a fraction rounded up to the device's parts."""
    requests, parts = t.requests(w), t.devices(w)[c, k, PARTS]
    if requests.share[s] == 0:
        # One more than its parts: a GPU given out whole is not taken for one that serves MPS.
        return parts + (t.devices(w)[c, k, SHARING] == MPS)
    if requests.shards[s] > 0:
        return requests.shards[s]
    return -(-requests.share[s] * parts // GPU_MILLI)


@inlined
def _serving_mps(w: Record, view: int, n: int, c: int) -> int:
    """P7: the GPU of a node that serves MPS; -1: none does, -2: more than one, in views that were put together."""
    used, devices = t.used(w), t.devices(w)
    found = -1
    for k in range(used.shape[2]):
        if devices[c, k, SHARING] == MPS and 0 < used[view, n, k] <= devices[c, k, PARTS]:
            found = k if found == -1 else -2
    return found


@inlined
def _in_turn(w: Record, c: int, k: int, serving: int) -> bool:
    """Whether a GPU may be shared now: of those with MPS only the one that serves it, if one does."""
    return serving in (-1, k) or t.devices(w)[c, k, SHARING] != MPS


@kernel
def room_on_devices(w: Record, s: int, view: int, n: int, wanted: int, accept: int) -> int:
    """How many units a node's GPUs and other GRES have room for, at most `wanted`; `accept`: types, as bits."""
    requests, free, used, devices, nodes = t.requests(w), t.free(w), t.used(w), t.devices(w), t.nodes(w)
    c = nodes.klass[n]
    room = wanted
    if requests.exclusive[s]:
        if free[view, n, CPU] < nodes.cpu[n] or free[view, n, MEM] < nodes.mem[n] or free[view, n, GPU] < nodes.gpu[n]:
            return 0
        for g in range(OTHER, free.shape[2]):
            if free[view, n, g] < t.others(w)[c, g - OTHER]:
                return 0
    demand = t.demand(w)
    types = t.speed(w).shape[1]
    if demand.shape[0] > 0:
        for g in range(free.shape[2] - OTHER):
            if demand[s, types + g] > 0:
                room = min(room, free[view, n, OTHER + g] // demand[s, types + g])
    if requests.share[s] > 0:
        units = 0
        serving = _serving_mps(w, view, n, c)
        for k in range(used.shape[2]):
            if _serves(w, s, c, k, accept) and _in_turn(w, c, k, serving):
                units += max(devices[c, k, PARTS] - used[view, n, k], 0) // _need(w, s, c, k)
        return min(room, units)
    if requests.exact[s]:
        for kind in range(types):
            if demand[s, kind] > 0:
                here = 0
                for k in range(used.shape[2]):
                    here += devices[c, k, NAME] == kind and used[view, n, k] == 0
                room = min(room, here // demand[s, kind])
        return room
    if requests.gpu[s] > 0 and accept != -1:
        here = 0
        for k in range(used.shape[2]):
            here += used[view, n, k] == 0 and _serves(w, s, c, k, accept)
        room = min(room, here // requests.gpu[s])
    return room


call_room_on_devices = by_address("room_on_devices", room_on_devices, INT, INT, INT, INT, INT, INT)


@kernel
def pick_devices(w: Record, s: int, view: int, count: int) -> int:
    """Names the GPUs of each entry in `t.spot(w)`; a shared unit gets an entry of its own. The new number of entries.

    Whole GPUs are the first that are unused, a share goes to the fullest GPU with room. An entry whose `gpus` is not 0
    takes those types alone.
    """
    spot, used, devices = t.spot(w), t.used(w), t.devices(w)
    requests = t.requests(w)
    slots = used.shape[2]
    if requests.share[s] == 0:
        for i in range(count):
            n = spot.node[i]
            c = t.nodes(w).klass[n]
            accept = spot.gpus[i] if spot.gpus[i] != 0 else requests.accept[s]
            wanted = spot.units[i] * requests.gpu[s]
            mask = np.int64(0)
            if requests.exclusive[s]:
                for k in range(slots):
                    if devices[c, k, TYPE] >= 0:
                        mask |= np.int64(1) << k
            elif requests.exact[s]:
                for kind in range(t.speed(w).shape[1]):
                    wanted = spot.units[i] * t.demand(w)[s, kind]
                    for k in range(slots):
                        if wanted > 0 and used[view, n, k] == 0 and devices[c, k, NAME] == kind:
                            mask |= np.int64(1) << k
                            wanted -= 1
            else:
                for k in range(slots):
                    if wanted > 0 and used[view, n, k] == 0 and _serves(w, s, c, k, accept):
                        mask |= np.int64(1) << k
                        wanted -= 1
            spot.gpus[i] = mask
        return count
    total = 0
    for i in range(count):
        total += spot.units[i]
    # Written from the back, so that entries not yet split are not overwritten.
    at = total
    added = np.zeros(slots, dtype=np.int64)
    for i in range(count - 1, -1, -1):
        n = spot.node[i]
        c = t.nodes(w).klass[n]
        accept = spot.gpus[i] if spot.gpus[i] != 0 else requests.accept[s]
        for k in range(slots):
            added[k] = 0
        serving = _serving_mps(w, view, n, c)
        for _ in range(spot.units[i]):
            best, best_used = -1, -1
            for k in range(slots):
                if not _serves(w, s, c, k, accept) or not _in_turn(w, c, k, serving):
                    continue
                need = _need(w, s, c, k)
                # Parts differ from GPU to GPU: the fullest is compared in thousandths.
                taken = used[view, n, k] + added[k]
                if taken + need <= devices[c, k, PARTS] and taken * GPU_MILLI // devices[c, k, PARTS] > best_used:
                    best, best_used = k, taken * GPU_MILLI // devices[c, k, PARTS]
            added[best] += _need(w, s, c, best)
            at -= 1
            spot.node[at] = n
            spot.units[at] = 1
            spot.gpus[at] = np.int64(1) << best
    return total


call_pick_devices = by_address("pick_devices", pick_devices, INT, INT, INT, INT)


@kernel
def shift_devices(w: Record, s: int, view: int, n: int, units: int, gpus: int, sign: int) -> None:
    """Takes (TAKE) or gives back (GIVE) units of a request on one node of a view, where GPUs are told apart."""
    requests, free, used, total, nodes = t.requests(w), t.free(w), t.used(w), t.total(w), t.nodes(w)
    pool = requests.pool[s]
    c = nodes.klass[n]
    cpu, mem, gpu = units * requests.cpu[s] * sign, units * requests.mem[s] * sign, 0
    if requests.exclusive[s]:
        cpu, mem = nodes.cpu[n] * sign, nodes.mem[n] * sign
    for k in range(used.shape[2]):
        if gpus >> k & 1:
            was = used[view, n, k]
            now = was - sign * _need(w, s, c, k)
            used[view, n, k] = now
            gpu += (now == 0) - (was == 0)
    free[view, n, CPU] += cpu
    free[view, n, MEM] += mem
    free[view, n, GPU] += gpu
    total[view, pool, CPU] += cpu
    total[view, pool, MEM] += mem
    total[view, pool, GPU] += gpu
    for g in range(free.shape[2] - OTHER):
        if requests.exclusive[s]:
            free[view, n, OTHER + g] += sign * t.others(w)[c, g]
        elif t.demand(w).shape[0] > 0:
            free[view, n, OTHER + g] += sign * units * t.demand(w)[s, t.speed(w).shape[1] + g]


call_shift_devices = by_address("shift_devices", shift_devices, NOTHING, INT, INT, INT, INT, INT, INT)
