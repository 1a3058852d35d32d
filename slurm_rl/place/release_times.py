"""When running jobs are expected to give their GPUs back, and which GPU types jobs accept or fit on."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.arrays import GPU_MILLI, Array
from slurm_rl.kernel.fitting import Fitting
from slurm_rl.kernel.tables import World
from slurm_rl.place.gpu_counts import first_type, types_of_nodes


def ends(world: World, pool: int, now: int, types: int) -> list[tuple[Array, Array]]:
    """By GPU type: when running jobs are expected to end, and the GPUs that are free with them, in order."""
    first = int(world["pools"]["first_job"][pool])
    running = world["running"][first : first + int(world["pools"]["running"][pool])]
    live = world["live"][running]
    held = world["entries"][live["held"]]
    kind = world["nodes"]["type"][held["node"]]
    if world["mixed"]:
        kind = first_type(world["devices"], world["nodes"]["klass"][held["node"]], held["gpus"], kind)
    requests = world["requests"][world["jobs"]["request"][running]]
    speed = world["speed"][requests["row"], kind]
    ran = now - live["start"]
    left = np.maximum(live["expected"], 1.0) / speed - ran
    # One that has run for longer than expected is taken to be in its middle.
    end = np.minimum(np.where(left > 0, now + left, now + ran), np.maximum(live["expected_end"], now))
    gpus = requests["units"] * requests["gpu"]
    found = []
    for t in range(types):
        mine = np.flatnonzero(kind == t)
        mine = mine[np.argsort(end[mine], kind="stable")]
        found.append((end[mine], np.cumsum(gpus[mine])))
    return found


def accepted(world: World, types: int) -> list[list[int]]:
    """GPU types that jobs of each kind may use."""
    ptr, listed = world["kind_ptr"], world["kind_node"]
    return [types_of_nodes(world, listed[ptr[k] : ptr[k + 1]]).tolist() for k in range(len(ptr) - 1)]


def holds(world: World, types: int) -> Array:
    """By [request, GPU type]: whether the nodes of the type that a job may use would hold it if nothing else ran."""
    ptr, listed, nodes = world["kind_ptr"], world["kind_node"], world["nodes"]
    requests = world["requests"][["units", "per_node", "cpu", "mem", "gpu", "share", "kind"]].tolist()
    found = np.zeros((len(requests), types), dtype=bool)
    known: dict[tuple[int, ...], Array] = {}  # requests may differ in their speeds alone
    fitting = Fitting(world["requests"], nodes, world["demand"], world["devices"], world["others"], types)
    careful = world["requests"]["careful"] > (world["requests"]["accept"] == -1)
    for s, shape in enumerate(requests):
        if careful[s]:
            kind = int(world["requests"]["kind"][s])
            found[s] = fitting.room(s, listed[ptr[kind] : ptr[kind + 1]])[1] >= shape[0]
            continue
        if shape not in known:
            units, per_node, cpu, mem, gpu, share, kind = shape
            mine = nodes[listed[ptr[kind] : ptr[kind + 1]]]
            room = np.full(len(mine), min(units, per_node))
            for free, per in ((mine["cpu"], cpu), (mine["mem"], mem), (mine["gpu"], gpu)):
                if per:
                    room = np.minimum(room, free // per)
            if share:
                room = np.minimum(room, mine["gpu"] * (GPU_MILLI // share))
            known[shape] = np.bincount(mine["type"], weights=room, minlength=types) >= units
        found[s] = known[shape]
    return found
