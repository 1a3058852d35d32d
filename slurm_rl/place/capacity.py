"""Whether a request has room: on a pool's sums (a quick no) and on one node."""

from __future__ import annotations

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, GPU_MILLI, MEM, Array, Record
from slurm_rl.kernel.jit import inlined, inner

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
def _times(free: int, per: int, wanted: int) -> int:
    """How often `per` goes into `free`, at most `wanted`; divides only if the answer is neither all nor none."""
    if free >= wanted * per:
        return wanted
    if free < per:
        return 0
    return free // per


@inlined
def node_room(free: Array, view: int, n: int, cpu: int, mem: int, gpu: int, wanted: int) -> int:
    """How many units of so much CPU, memory and whole GPUs a node has room for, at most `wanted`."""
    room = _times(free[view, n, GPU], gpu, wanted)
    if room > 0:
        room = _times(free[view, n, CPU], cpu, room)
    if room > 0:
        room = _times(free[view, n, MEM], mem, room)
    return room


@inner
def capacity(w: Record, s: int, view: int, n: int, wanted: int) -> int:
    """How many units of a request a node can take, at most `wanted`."""
    requests = t.requests(w)
    cpu, mem, gpu, share = requests.cpu[s], requests.mem[s], requests.gpu[s], requests.share[s]
    room = node_room(t.free(w), view, n, cpu, mem, gpu, min(wanted, requests.per_node[s]))
    if share > 0:
        slots = 0
        for k in range(t.used(w).shape[2]):
            slots += (GPU_MILLI - t.used(w)[view, n, k]) // share
        room = min(room, slots)
    return room
