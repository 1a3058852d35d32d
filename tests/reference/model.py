"""Clusters and requests as the reference sees them: plain objects, no arrays, no caches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from builders import Job

from slurm_rl.domain.cluster import Cluster

UNLIMITED, UNLIMITED_MB = 2**20 - 1, 2**30  # of a node whose class leaves its CPUs or memory blank
WHOLE = 1000  # thousandths of a GPU


@dataclass(frozen=True)
class Node:
    """A node; its number is its place in the cluster file."""

    cpus: int
    mem: int  # MB
    gpus: int
    type: str
    speed: float
    partitions: tuple[str, ...]


@dataclass(frozen=True)
class Ask:
    """A request: `units` equal units, at most `per_node` of them on one node of `nodes`."""

    units: int
    per_node: int
    cpu: int
    mem: int
    gpu: int
    share: int
    nodes: tuple[int, ...]
    pool: int
    volume: float


def nodes_of(cluster: Cluster) -> list[Node]:
    """The nodes of a cluster, in the order of its file."""
    return [
        Node(
            UNLIMITED if c.cpus is None else c.cpus,
            UNLIMITED_MB if c.mem_gb is None else int(c.mem_gb * 1024),
            c.gpus,
            c.gpu_type,
            c.speed,
            c.partitions,
        )
        for c in cluster.classes
        for _ in range(c.count)
    ]


def pools_of(cluster: Cluster) -> dict[str, int]:
    """Pool of each partition: partitions with a node in common, directly or through others, are one pool."""
    pools = [{partition} for partition in cluster.partitions]
    for c in cluster.classes:
        joined = [p for p in pools if p & set(c.partitions)]
        pools = [p for p in pools if p not in joined] + [set().union(*joined)]
    numbers: dict[str, int] = {}
    for partition in cluster.partitions:
        mine = next(p for p in pools if partition in p)
        known = [numbers[p] for p in mine if p in numbers]
        numbers[partition] = known[0] if known else len(set(numbers.values()))
    return numbers


def partition_of(cluster: Cluster, job: Job) -> str | None:
    """A job's partition: a blank one is the first, a lone one takes every name; None if there is no such."""
    names = cluster.partitions
    if not job.partition or len(names) == 1:
        return names[0]
    return job.partition if job.partition in names else None


def ask_of(cluster: Cluster, nodes: list[Node], job: Job) -> Ask | None:
    """What a job asks for; None if no empty cluster could give it."""
    partition = partition_of(cluster, job)
    if partition is None:
        return None
    share = math.ceil(job.gpus * WHOLE - 1e-9) if 0 < job.gpus < 1 else 0
    whole = math.ceil(job.gpus) if job.gpus >= 1 else 0
    if job.cpus is None:
        cpus = 0 if job.gpus > 0 else max(job.nodes, 1)
    else:
        cpus = math.ceil(job.cpus)
    if job.gpus <= 0:
        cpus = max(cpus, 1)
    mem = math.ceil((job.mem_gb or 0) * 1024)
    # GPUs lead, else CPUs: the leading amount is split evenly over the asked nodes if it can be, else one by one.
    lead = 1 if share else whole or cpus
    if share:
        units, per_node = 1, 1
    elif job.nodes and lead % job.nodes == 0:
        units, per_node = job.nodes, 1
    else:
        units, per_node = lead, math.ceil(lead / job.nodes) if job.nodes else lead
    typed = any(n.gpus and n.type for n in nodes)
    accepted = {t.strip().upper() for t in job.gpu_type.split("|") if t.strip()}
    eligible = tuple(
        i
        for i, n in enumerate(nodes)
        if partition in n.partitions
        and (job.gpus <= 0 or (n.gpus > 0 and (not accepted or not typed or n.type.upper() in accepted)))
    )
    pools = pools_of(cluster)
    pool = pools[partition]
    inside = [n for n in nodes if pools[n.partitions[0]] == pool]
    gpus, all_cpus = sum(n.gpus for n in inside), sum(n.cpus for n in inside)
    cpu = math.ceil(cpus / units) if cpus >= units else 0
    gpu = whole // units
    volume = units * (gpu + share / WHOLE) or units * cpu * (gpus / max(all_cpus, 1) if gpus else 1.0)
    ask = Ask(units, per_node, cpu, math.ceil(mem / units), gpu, share, eligible, pool, max(volume, 1e-9))
    empty = View.empty(nodes, told_apart=True)
    return ask if sum(empty.room(ask, n, ask.units) for n in eligible) >= ask.units else None


@dataclass
class View:
    """What is free on each node: CPUs, MB, and GPUs.

    GPUs are counted, unless some job of the trace asks for a share of one: then it is known how much of each is in
    use (in thousandths), and one that is free now is not the same as another that is free later.
    """

    cpu: list[int]
    mem: list[int]
    gpus: list[int]  # free ones
    used: list[list[int]] | None = None  # of each GPU, if they are told apart

    @classmethod
    def empty(cls, nodes: list[Node], told_apart: bool) -> View:
        """A cluster on which nothing runs."""
        used = [[0] * n.gpus for n in nodes] if told_apart else None
        return cls([n.cpus for n in nodes], [n.mem for n in nodes], [n.gpus for n in nodes], used)

    def copy(self) -> View:
        used = None if self.used is None else [list(u) for u in self.used]
        return View(list(self.cpu), list(self.mem), list(self.gpus), used)

    def room(self, ask: Ask, n: int, wanted: int) -> int:
        """How many units a node can take, at most `wanted`."""
        room = min(wanted, ask.per_node)
        if ask.cpu:
            room = min(room, self.cpu[n] // ask.cpu)
        if ask.mem:
            room = min(room, self.mem[n] // ask.mem)
        if ask.gpu:
            room = min(room, self.gpus[n] // ask.gpu)
        if ask.share:
            assert self.used is not None
            room = min(room, sum((WHOLE - used) // ask.share for used in self.used[n]))
        return room

    def pick(self, ask: Ask, n: int, units: int) -> tuple[int, ...]:
        """GPUs of a node for units of a job: the first free ones, or for a share the fullest that has room."""
        if self.used is None:
            return ()
        used = self.used[n]
        if ask.share:
            fits = [g for g in range(len(used)) if used[g] + ask.share <= WHOLE]
            return (max(fits, key=lambda g: (used[g], -g)),)
        return tuple(g for g in range(len(used)) if used[g] == 0)[: units * ask.gpu]

    def take(self, ask: Ask, placement: Placement, sign: int = 1) -> None:
        """Takes a placement out of what is free."""
        for n, units, gpus in placement:
            self.cpu[n] -= sign * units * ask.cpu
            self.mem[n] -= sign * units * ask.mem
            if self.used is None:
                self.gpus[n] -= sign * units * ask.gpu
            else:
                for g in gpus:
                    self.used[n][g] += sign * (ask.share or WHOLE)
                self.gpus[n] = self.used[n].count(0)

    def give(self, ask: Ask, placement: Placement) -> None:
        """Gives a placement back."""
        self.take(ask, placement, -1)

    def meet(self, other: View) -> View:
        """What is free in both."""
        cpu = [min(a, b) for a, b in zip(self.cpu, other.cpu, strict=True)]
        mem = [min(a, b) for a, b in zip(self.mem, other.mem, strict=True)]
        if self.used is None or other.used is None:
            return View(cpu, mem, [min(a, b) for a, b in zip(self.gpus, other.gpus, strict=True)])
        pairs = zip(self.used, other.used, strict=True)
        used = [[max(a, b) for a, b in zip(one, two, strict=True)] for one, two in pairs]
        return View(cpu, mem, [u.count(0) for u in used], used)


Placement = tuple[tuple[int, int, tuple[int, ...]], ...]  # node, units, GPUs if they are told apart
