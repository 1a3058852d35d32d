"""Whether a request has room: on a pool's sums (a quick no) and on one node."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, MEM, Array, Record
from slurm_rl.kernel.jit import inlined, inner
from slurm_rl.place.on_devices import call_room_on_devices

NOT_MINE = -1  # what a placement's own kernel says of a request that is to go best-fit


@inlined
def fits_totals(w: Record, s: int, view: int) -> bool:
    """Whether the sums over the request's pool leave room: a quick no, never a yes on its own."""
    requests, total = t.requests(w), t.total(w)
    units = requests.units[s]
    pool = requests.pool[s]
    return (
        units * requests.cpu[s] <= total[view, pool, CPU]
        and units * requests.mem[s] <= total[view, pool, MEM]
        and units * requests.gpu[s] <= total[view, pool, GPU]
    )


@inlined
def node_times(free: int, per: int, wanted: int) -> int:
    """How often `per` goes into `free`, at most `wanted`; divides only if the answer is neither all nor none."""
    if free >= wanted * per:
        return wanted
    if free < per:
        return 0
    return free // per


@inlined
def node_room(free: Array, view: int, n: int, cpu: int, mem: int, gpu: int, wanted: int) -> int:
    """How many units of so much CPU, memory and whole GPUs a node has room for, at most `wanted`."""
    room = node_times(free[view, n, GPU], gpu, wanted)
    if room > 0:
        room = node_times(free[view, n, CPU], cpu, room)
    if room > 0:
        room = node_times(free[view, n, MEM], mem, room)
    return room


@inner
def capacity(w: Record, s: int, view: int, n: int, wanted: int) -> int:
    """How many units of a request a node can take, at most `wanted`."""
    requests = t.requests(w)
    cpu, mem, gpu = requests.cpu[s], requests.mem[s], requests.gpu[s]
    room = node_room(t.free(w), view, n, cpu, mem, gpu, min(wanted, requests.per_node[s]))
    if room > 0 and requests.careful[s]:
        room = call_room_on_devices(w, s, view, n, room, requests.accept[s])
    return room


@inner
def capacity_of_type(w: Record, s: int, view: int, n: int, wanted: int, kind: int) -> int:
    """Likewise on GPUs of one type alone."""
    requests = t.requests(w)
    if not (w.mixed and requests.careful[s]):
        return capacity(w, s, view, n, wanted) if t.nodes(w).type[n] == kind else 0
    if (requests.accept[s] >> kind) & 1 == 0:
        return 0
    cpu, mem, gpu = requests.cpu[s], requests.mem[s], requests.gpu[s]
    room = node_room(t.free(w), view, n, cpu, mem, gpu, min(wanted, requests.per_node[s]))
    return call_room_on_devices(w, s, view, n, room, np.int64(1) << kind) if room > 0 else 0


@inlined
def sort_keys(keys: np.ndarray) -> None:
    """Heap sort in place: small to compile, which numpy's sorts are not."""
    count = len(keys)
    for end in range(2 * count - 1, 0, -1):
        # First half of the rounds: build the heap; second half: move its largest to the end.
        if end >= count:
            at, size = end - count, count
        else:
            keys[0], keys[end] = keys[end], keys[0]
            at, size = 0, end
        while 2 * at + 1 < size:
            child = 2 * at + 1
            if child + 1 < size and keys[child + 1] > keys[child]:
                child += 1
            if keys[at] >= keys[child]:
                break
            keys[at], keys[child] = keys[child], keys[at]
            at = child
