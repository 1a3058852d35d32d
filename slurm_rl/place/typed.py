"""Places a job on nodes of one GPU type, the most preferred on which it fits: what `greedy` and `mip` go by."""

from __future__ import annotations

import numpy as np

from slurm_rl.domain import tables as t
from slurm_rl.domain.arrays import GPU, Record
from slurm_rl.domain.links import INT, by_address
from slurm_rl.jit import kernel
from slurm_rl.place.room import capacity


@kernel
def place_by_type(w: Record, s: int, view: int, first: int, last: int) -> int:
    """On nodes of one GPU type, the most preferred on which it fits: the fullest that holds all, else the roomiest."""
    shapes, kind_node, prefer, nodes = t.shapes(w), t.kind_node(w), t.prefer(w), t.nodes(w)
    units = shapes.units[s]
    types = prefer.shape[1]
    room = np.zeros(types, dtype=np.int64)
    for at in range(first, last):
        n = kind_node[at]
        if room[nodes.type[n]] < units:
            room[nodes.type[n]] += capacity(w, s, view, n, units)
    best = -1
    for k in range(types):
        if room[k] >= units and (best < 0 or prefer[s, k] > prefer[s, best]):
            best = k
    if best < 0:
        return 0
    count, left = 0, units
    while left > 0:
        pick, pick_room, pick_free = -1, 0, 0
        for at in range(first, last):
            n = kind_node[at]
            if nodes.type[n] == best:
                here = capacity(w, s, view, n, left)
                free = t.free(w)[view, n, GPU]
                if here > pick_room or (here == pick_room and here > 0 and free < pick_free):
                    taken = False
                    for i in range(count):
                        taken = taken or t.spot(w).node[i] == n
                    if not taken:
                        pick, pick_room, pick_free = n, here, free
        t.spot(w).node[count], t.spot(w).units[count], t.spot(w).gpus[count] = pick, pick_room, 0
        count += 1
        left -= pick_room
    return count


call_place_by_type = by_address("place_by_type", place_by_type, INT, INT, INT, INT, INT)
