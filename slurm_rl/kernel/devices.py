"""GPUs and slices of a cluster's node classes one by one, and the other GRES that their nodes have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_rl.domain.cluster import Cluster
from slurm_rl.domain.gres import SHARINGS, WHOLE, GresRequest
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import NAME, PARTS, SHARING, TYPE, Array

MOST_TYPES = 62  # GPU types of a cluster with several of them in one node: they are bits of a number


@dataclass(frozen=True, slots=True)
class Devices:
    """The tables `devices` and `others` of a World."""

    table: Array  # int64 [classes, slots, 4]: GPU type, parts, sharing, name; of a slot without a device -1, 0, 0, -1
    others: Array  # int64 [classes, kinds of other GRES]
    other_names: tuple[str, ...]
    mixed: Array  # bool [classes]: GPUs of several types in one node

    @property
    def slots(self) -> int:
        return int(self.table.shape[1])

    def share_of(self, ask: GresRequest) -> int:
        """Thousandths of a GPU that a job's shards stand for, on the first GPU that is shared this way."""
        code = SHARINGS.index(ask.sharing)
        mine = self.table[:, :, PARTS][(self.table[:, :, SHARING] == code) & (self.table[:, :, TYPE] >= 0)]
        return min(-(-ask.shares * WHOLE // int(mine[0])), WHOLE) if len(mine) else WHOLE


def read_devices(cluster: Cluster, types: dict[tuple[str, float], int]) -> Devices:
    """Devices of a cluster; GPU types that are new are entered into `types`."""
    has = [c.has for c in cluster.classes]
    slots = max([1, *(len(h.devices) for h in has)])
    names = tuple(dict.fromkeys(name for h in has for name in h.others))
    table = np.zeros((len(has), slots, 4), dtype=np.int64)
    table[:, :, TYPE] = table[:, :, NAME] = -1
    others = np.zeros((len(has), len(names)), dtype=np.int64)
    for i, (c, h) in enumerate(zip(cluster.classes, has, strict=True)):
        for k, d in enumerate(h.devices):
            kind = types.setdefault((d.type, c.speed_of(d.type)), len(types))
            named = next(n for (name, _), n in types.items() if name.upper() == d.type.upper())
            table[i, k] = kind, d.parts, SHARINGS.index(d.sharing), named
        for name, count in h.others.items():
            others[i, names.index(name)] = count
    mixed = np.array([len(c.gpu_types) > 1 for c in cluster.classes], dtype=bool)
    if mixed.any() and len(types) > MOST_TYPES:
        raise InputError(f"cluster {cluster.name}: at most {MOST_TYPES} GPU types where a node has several of them")
    return Devices(table, others, names, mixed)
