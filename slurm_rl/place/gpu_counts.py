"""GPUs by type in a World, also where a node has several types."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.arrays import GPU, NOW, TYPE, Array
from slurm_rl.kernel.tables import World


def free_by_type(world: World, first: int, last: int, types: int) -> Array:
    """Unused GPUs of these nodes: [nodes, types]."""
    nodes = world["nodes"][first:last]
    found = np.zeros((last - first, types))
    if not world["mixed"]:
        found[np.arange(last - first), nodes["type"]] = world["free"][NOW, first:last, GPU]
        return found
    kind = world["devices"][nodes["klass"], :, TYPE]
    unused = (kind >= 0) & (world["used"][NOW, first:last] == 0)
    np.add.at(found, (np.nonzero(unused)[0], kind[unused]), 1)
    return found


def has_by_type(world: World, first: int, last: int, types: int) -> Array:
    """GPUs that these nodes have: [nodes, types]."""
    nodes = world["nodes"][first:last]
    found = np.zeros((last - first, types))
    if not world["mixed"]:
        found[np.arange(last - first), nodes["type"]] = nodes["gpu"]
        return found
    kind = world["devices"][nodes["klass"], :, TYPE]
    np.add.at(found, (np.nonzero(kind >= 0)[0], kind[kind >= 0]), 1)
    return found


def types_of_nodes(world: World, nodes: Array) -> Array:
    """GPU types that these nodes have, ascending; the type of a node without GPUs counts."""
    if not world["mixed"]:
        return np.unique(world["nodes"]["type"][nodes])
    kind = world["devices"][np.unique(world["nodes"]["klass"][nodes]), :, TYPE]
    return np.unique(np.concatenate([kind[kind >= 0], world["nodes"]["type"][nodes]]))


def first_type(devices: Array, klass: Array, gpus: Array, otherwise: Array) -> Array:
    """The type of the first of the GPUs in each set of bits; `otherwise` where a set is empty."""
    slots = devices.shape[1]
    bits = (gpus[:, None] >> np.arange(slots)[None, :]) & 1
    at = bits.argmax(axis=1)
    return np.where(bits.any(axis=1), devices[klass, at, TYPE], otherwise)
