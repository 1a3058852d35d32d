"""When running jobs are expected to give their GPUs back, and which GPU types jobs accept."""

from __future__ import annotations

import numpy as np

from slurm_rl.domain.arrays import Array
from slurm_rl.domain.tables import World


def ends(world: World, pool: int, now: int, types: int) -> list[tuple[Array, Array]]:
    """By GPU type: when running jobs are expected to end, and the GPUs that are free with them, in order."""
    first = int(world["pools"]["first_job"][pool])
    running = world["running"][first : first + int(world["pools"]["running"][pool])]
    live = world["live"][running]
    kind = world["nodes"]["type"][world["entries"]["node"][live["held"]]]
    shapes = world["shapes"][world["jobs"]["request"][running]]
    speed = world["speed"][shapes["row"], kind]
    ran = now - live["start"]
    left = np.maximum(live["expected"], 1.0) / speed - ran
    # One that has run for longer than expected is taken to be in its middle.
    end = np.minimum(np.where(left > 0, now + left, now + ran), np.maximum(live["expected_end"], now))
    gpus = shapes["units"] * shapes["gpu"]
    found = []
    for t in range(types):
        mine = np.flatnonzero(kind == t)
        mine = mine[np.argsort(end[mine], kind="stable")]
        found.append((end[mine], np.cumsum(gpus[mine])))
    return found


def accepted(world: World, types: int) -> list[list[int]]:
    """GPU types that jobs of each kind may use."""
    ptr, listed, kind = world["kind_ptr"], world["kind_node"], world["nodes"]["type"]
    return [np.unique(kind[listed[ptr[k] : ptr[k + 1]]]).tolist() for k in range(len(ptr) - 1)]
