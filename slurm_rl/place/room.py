"""Whether a shape has room: on a pool's sums (a quick no) and on one node."""

from __future__ import annotations

from slurm_rl.domain import tables as t
from slurm_rl.domain.arrays import GPU_MILLI, Record
from slurm_rl.jit import kernel


@kernel
def fits_totals(w: Record, s: int, view: int) -> bool:
    """Whether the sums over the shape's pool leave room: a quick no, never a yes on its own."""
    units = t.shapes(w).units[s]
    pool = t.shapes(w).pool[s]
    return (
        units * t.shapes(w).cpu[s] <= t.total(w)[view, pool, 0]
        and units * t.shapes(w).mem[s] <= t.total(w)[view, pool, 1]
        and units * t.shapes(w).gpu[s] <= t.total(w)[view, pool, 2]
    )


@kernel
def capacity(w: Record, s: int, view: int, n: int, wanted: int) -> int:
    """How many units of a shape a node can take, at most `wanted`."""
    room = min(wanted, t.shapes(w).per_node[s])
    per = t.shapes(w).gpu[s]
    if per > 0:
        have = t.free(w).gpu[view, n]
        if have < per:
            return 0
        room = min(room, have if per == 1 else have // per)
    per = t.shapes(w).cpu[s]
    if per > 0:
        have = t.free(w).cpu[view, n]
        if have < per:
            return 0
        room = min(room, have if per == 1 else have // per)
    per = t.shapes(w).mem[s]
    if per > 0:
        have = t.free(w).mem[view, n]
        if have < per:
            return 0
        room = min(room, have // per)
    share = t.shapes(w).share[s]
    if share > 0:
        slots = 0
        for k in range(t.used(w).shape[2]):
            slots += (GPU_MILLI - t.used(w)[view, n, k]) // share
        room = min(room, slots)
    return room
