"""Pods that fill a cluster: from openb's trace, or made so that CPU-heavy ones strand GPUs; and the cluster's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numba
import numpy as np

from slurm_rl.domain.cluster import Cluster, NodeClass, read_cluster
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Trace, make_trace

OPENB = "alibaba_openb_v2023"
SLOTS, MILLI = 8, 1000
_TYPICAL = 0.95  # of all pods: the most frequent requests, as in the paper on FGD


def _njit(function: Callable[..., Any]) -> Any:
    """Compiles; not as a kernel of the engine, since all of those are compiled anew when one of them changes."""
    return numba.njit(cache=True, nogil=True)(function)


@dataclass(frozen=True)
class Filling:
    """Pods in the order in which they come, and the cluster that they fill."""

    name: str
    cluster: Cluster
    cpus: Array  # of each pod
    mem: Array  # GB
    gpus: Array  # whole, or a part of one

    def __len__(self) -> int:
        return len(self.gpus)

    def trace(self, together: int = 1) -> Trace:
        """As jobs that come one a second, or several, and never end."""
        count = len(self)
        return make_trace(
            name=self.name,
            job_id=np.arange(count),
            submit_time=np.arange(count) // together,
            run_time=np.full(count, 10**8),
            time_limit=np.full(count, 10**8),
            num_gpus=self.gpus,
            num_nodes=np.ones(count, dtype=np.int64),
            cpus=self.cpus,
            mem_gb=self.mem,
        )

    def asks(self) -> Array:
        """[pods, 4] CPUs, MB, whole GPUs, thousandths of one: each rounded up as the engine does."""
        share = np.where((self.gpus > 0) & (self.gpus < 1), np.ceil(self.gpus * MILLI - 1e-9), 0)
        whole = np.where(self.gpus >= 1, np.ceil(self.gpus - 1e-9), 0)
        cpus = np.maximum(np.ceil(self.cpus), np.where(self.gpus <= 0, 1, 0))
        return np.stack([cpus, np.ceil(self.mem * 1024), whole, share], axis=1).astype(np.int64)

    def mix(self) -> Array:
        """[requests, 5] share of pods, and what they ask for: GPU pods among the most frequent requests."""
        rows, count = np.unique(self.asks(), axis=0, return_counts=True)
        order = np.argsort(-count, kind="stable")
        kept = order[: int(np.searchsorted(np.cumsum(count[order]) / count.sum(), _TYPICAL)) + 1]
        portion = count[kept] / count[kept].sum()
        found = np.column_stack([portion, rows[kept]]).astype(np.float64)
        return np.ascontiguousarray(found[(found[:, 3] > 0) | (found[:, 4] > 0)])


def until_asked(name: str, cluster: Cluster, kinds: Array, weight: Array, over: float, seed: int) -> Filling:
    """Pods drawn from kinds ([kinds, 3] CPUs, GB, GPUs) until they have asked for `over` times all GPUs."""
    dice = np.random.default_rng([seed, 31])
    mean = float((kinds[:, 2] * weight).sum() / weight.sum())
    drawn = dice.choice(len(kinds), size=int(2 * over * cluster.gpus / mean) + 50, p=weight / weight.sum())
    asked = np.cumsum(kinds[drawn, 2])
    drawn = drawn[: int(np.searchsorted(asked, over * cluster.gpus)) + 1]
    return Filling(name, cluster, kinds[drawn, 0], kinds[drawn, 1], kinds[drawn, 2])


# What the generated pods ask for: CPUs, GB, GPUs, and how often. Nodes have 12 CPUs a GPU. Three GPU pods in ten take
# two to four times that, and one pod in six takes CPUs alone: placed as they come, they leave GPUs without CPUs.
_KINDS = np.array(
    [
        (6, 32, 1, 18), (10, 64, 1, 14), (4, 16, 0.5, 8), (16, 96, 2, 9), (24, 128, 2, 5), (40, 256, 4, 6),
        (80, 512, 8, 4), (24, 64, 1, 8), (36, 96, 1, 5), (48, 128, 1, 3), (72, 192, 2, 3),
        (16, 48, 0, 6), (32, 96, 0, 6), (48, 128, 0, 5),
    ]
)  # fmt: skip


def generated(seed: int, nodes: int = 64, over: float = 1.5) -> Filling:
    """A cluster of nodes with eight GPUs, and pods that ask for one and a half times its GPUs."""
    node = NodeClass(nodes, "A100", SLOTS, 96, 1024.0, "gpu")
    return until_asked("generated", Cluster("generated", (node,)), _KINDS[:, :3], _KINDS[:, 3], over, seed)


def openb_files(folder: str | Path) -> tuple[Path, Path]:
    """The trace and its cluster in a folder of public traces."""
    trace, cluster = (Path(folder) / f"{OPENB}{end}" for end in (".csv.gz", ".cluster.json"))
    for file in (trace, cluster):
        if not file.is_file():
            raise InputError(f"has no {file.name}", field="--traces", remedy="docs/studies.md says where it comes from")
    return trace, cluster


def openb(folder: str | Path, seed: int, nodes: int | None = None, over: float = 1.3) -> Filling:
    """openb's pods in random order, on all of its nodes or on a random part, until they ask for 1.3 times its GPUs."""
    file, beside = openb_files(folder)
    pods, cluster = read_trace(file), read_cluster(beside)
    if nodes is not None:
        cluster = _part(cluster, nodes, seed)
    kinds, count = np.unique(np.column_stack([pods.cpus, pods.mem_gb, pods.num_gpus]), axis=0, return_counts=True)
    most = max(c.gpus for c in cluster.classes)
    fits = kinds[:, 2] <= most
    return until_asked("openb", cluster, kinds[fits], count[fits].astype(float), over, seed)


def _part(cluster: Cluster, nodes: int, seed: int) -> Cluster:
    counts = np.array([c.count for c in cluster.classes])
    drawn = np.random.default_rng([seed, 37]).multinomial(nodes, counts / counts.sum())
    kept = [replace(c, count=int(n)) for c, n in zip(cluster.classes, drawn, strict=True) if n]
    return Cluster(f"part of {cluster.name}", tuple(kept))


class PodNodes:
    """What is free on each node; a pod is put on one and never leaves."""

    def __init__(self, cluster: Cluster, mix: Array) -> None:
        rows = [c for c in cluster.classes for _ in range(c.count)]
        self.cpus = np.array([c.cpus or 0 for c in rows], dtype=np.int64)
        self.mem = np.array([round((c.mem_gb or 0) * 1024) for c in rows], dtype=np.int64)
        self.gpus = np.array([[MILLI * (k < c.gpus) for k in range(SLOTS)] for c in rows], dtype=np.int64)
        self.size = np.stack([self.cpus, self.mem, self.gpus.sum(axis=1)], axis=1).astype(np.float64)
        self.mix = mix
        self.waste = np.array([_waste(self.cpus[n], self.mem[n], self.gpus[n], mix) for n in range(len(rows))])

    def put(self, n: int, ask: Array) -> None:
        """Takes a pod's share of a node: whole GPUs, or a part of the fullest that has room."""
        _put(self.cpus, self.mem, self.gpus, n, ask)
        self.waste[n] = _waste(self.cpus[n], self.mem[n], self.gpus[n], self.mix)

    def best(self, ask: Array, nodes: Array, grown: Array) -> int:
        """Fills in nodes with room, unlike each other: those that waste least first; how many there are."""
        return int(_best(self.cpus, self.mem, self.gpus, self.size, self.waste, ask, self.mix, nodes, grown))

    @property
    def free(self) -> tuple[float, float, float]:
        """CPUs, MB and GPUs that are free."""
        return float(self.cpus.sum()), float(self.mem.sum()), float(self.gpus.sum()) / MILLI


@_njit
def _room(cpus: int, mem: int, gpus: Array, ask: Array) -> bool:
    if cpus < ask[0] or mem < ask[1]:
        return False
    whole, most = 0, 0
    for k in range(SLOTS):
        whole += gpus[k] == MILLI
        most = max(most, gpus[k])
    return bool(whole >= ask[2] and most >= ask[3])


@_njit
def _waste(cpus: int, mem: int, gpus: Array, mix: Array) -> float:
    """Free GPUs of a node that pods of the mix cannot use, by their shares: the paper's expected fragmentation."""
    whole, most, idle = 0, 0, 0
    for k in range(SLOTS):
        whole += gpus[k] == MILLI
        most = max(most, gpus[k])
        idle += gpus[k]
    total = 0.0
    if idle == 0:
        return total
    for m in range(len(mix)):
        need = mix[m, 4] if mix[m, 4] > 0 else MILLI
        if cpus >= mix[m, 1] and mem >= mix[m, 2] and whole >= mix[m, 3] and most >= mix[m, 4]:
            for k in range(SLOTS):
                if gpus[k] < need:
                    total += mix[m, 0] * gpus[k]
        else:
            total += mix[m, 0] * idle
    return total / MILLI


@_njit
def _take(gpus: Array, ask: Array) -> None:
    left = ask[2]
    for k in range(SLOTS):
        if left > 0 and gpus[k] == MILLI:
            gpus[k] = 0
            left -= 1
    if ask[3] > 0:
        fullest = -1
        for k in range(SLOTS):
            if gpus[k] >= ask[3] and (fullest < 0 or gpus[k] < gpus[fullest]):
                fullest = k
        gpus[fullest] -= ask[3]


@_njit
def _put(cpus: Array, mem: Array, gpus: Array, n: int, ask: Array) -> None:
    cpus[n] -= ask[0]
    mem[n] -= ask[1]
    _take(gpus[n], ask)


@_njit
def _best(
    cpus: Array, mem: Array, gpus: Array, size: Array, waste: Array, ask: Array, mix: Array, nodes: Array, grown: Array
) -> int:
    count, seen = 0, -1
    after = np.empty(SLOTS, dtype=np.int64)
    for n in range(len(cpus)):
        if seen >= 0 and cpus[n] == cpus[seen] and mem[n] == mem[seen] and size[n, 2] == size[seen, 2]:
            same = True
            for k in range(SLOTS):
                same = same and gpus[n, k] == gpus[seen, k]
            if same:
                continue
        seen = n
        if not _room(cpus[n], mem[n], gpus[n], ask):
            continue
        after[:] = gpus[n]
        _take(after, ask)
        more = _waste(cpus[n] - ask[0], mem[n] - ask[1], after, mix) - waste[n]
        idle = gpus[n].sum()
        at, alike = count, False
        for i in range(count):
            other = nodes[i]
            if abs(grown[i] - more) < 1e-9:
                if cpus[other] == cpus[n] and gpus[other].sum() == idle:
                    alike = True
                    break
                if idle < gpus[other].sum():
                    at = i
                    break
            elif more < grown[i]:
                at = i
                break
        if alike or at >= len(nodes):
            continue
        count = min(count + 1, len(nodes))
        for i in range(count - 1, at, -1):
            nodes[i], grown[i] = nodes[i - 1], grown[i - 1]
        nodes[at], grown[at] = n, more
    return count


def walk(filling: Filling) -> Iterator[tuple[int, Array]]:
    """Pods with their numbers."""
    yield from enumerate(filling.asks())
