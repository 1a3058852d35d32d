"""One formula each for values that live and replay must count alike: pools, a job's size, the estimator's groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

GPU_MILLI = 1000  # one GPU in the unit of fractional requests
_LEAST = 1e-9


class NodeLike(Protocol):
    """What is needed of a node."""

    @property
    def cpus(self) -> int: ...
    @property
    def gpus(self) -> Mapping[str, int]: ...
    @property
    def partitions(self) -> tuple[str, ...]: ...


def pools_of(partitions: Sequence[str], together: Iterable[Sequence[str]]) -> dict[str, int]:
    """The pool of each partition, numbered as they come: partitions that share nodes, directly or through others."""
    parent = {p: p for p in partitions}

    def root(p: str) -> str:
        while parent[p] != p:
            parent[p] = parent[parent[p]]
            p = parent[p]
        return p

    for names in together:
        for other in names[1:]:
            parent[root(other)] = root(names[0])
    numbers = {r: i for i, r in enumerate(dict.fromkeys(root(p) for p in partitions))}
    return {p: numbers[root(p)] for p in partitions}


def gpus_per_cpu(gpus: Any, cpus: Any) -> Any:
    """What a CPU of a pool weighs: as many GPUs as the pool has of them to a CPU; 1 in a pool without GPUs."""
    return np.where(np.asarray(gpus) > 0, gpus / np.maximum(cpus, 1), 1.0)


def job_size(gpus: Any, cpus: Any, weight: Any) -> Any:
    """A job's size in GPUs: its own, or for a job without GPUs its CPUs at their weight."""
    return np.maximum(np.where(np.asarray(gpus) > 0, gpus, cpus * weight), _LEAST)


def weights_by_partition(nodes: Iterable[NodeLike]) -> dict[str, float]:
    """What a CPU of each partition weighs: as one of its pool."""
    members = [n for n in nodes if n.partitions]
    names = list(dict.fromkeys(p for n in members for p in n.partitions))
    pool = pools_of(names, (n.partitions for n in members))
    gpus, cpus = np.zeros(len(names)), np.zeros(len(names))
    for n in members:
        gpus[pool[n.partitions[0]]] += sum(n.gpus.values())
        cpus[pool[n.partitions[0]]] += n.cpus
    weight = gpus_per_cpu(gpus, cpus)
    return {p: float(weight[pool[p]]) for p in names}


# The estimator's groups, from the most general to the most specific, by the columns whose values their jobs share.
GROUP_LEVELS = (("bucket",), ("user",), ("user", "bucket"), ("user", "exact", "limit"), ("user", "name", "exact"))
# Behind these come KEY_LEVELS more where a site tells more of its jobs: same user, size and value of a key (keys.py).


def group_columns(user: Any, name: Any, size: Any, on_gpus: Any, limit: Any) -> dict[str, Any]:
    """The columns of GROUP_LEVELS: sizes in octaves, apart for jobs with and without GPUs, and in thousandths."""
    bucket = np.floor(np.log2(np.maximum(size, 1e-3)) + 20).astype(np.int64) * 2 + on_gpus
    exact = np.round(np.asarray(size) * GPU_MILLI).astype(np.int64)
    return {"bucket": bucket, "user": user, "name": name, "exact": exact, "limit": limit}
