"""A cluster file as a lab: its nodes by name, its partitions, and accounts that stand for a trace's users."""

from __future__ import annotations

import pwd
import re
from collections import Counter
from dataclasses import replace

from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import InputError
from slurm_rl.lab.spec import MAX_NODES, LabNodes

# What a node claims where the cluster file sets no limit.
_MANY_CPUS = 1024
_MUCH_MEMORY = 4 * 1024 * 1024  # MB


def lab_nodes(cluster: Cluster) -> tuple[LabNodes, ...]:
    """The cluster's classes as a lab has them; nodes are named after their GPU type, counted through all classes."""
    if cluster.nodes > MAX_NODES:
        raise InputError(f"{cluster.name} has {cluster.nodes} nodes, a lab at most {MAX_NODES}", field="--cluster")
    counted: Counter[str] = Counter()
    found = []
    for c in cluster.classes:
        kind = c.gpu_type.lower() or ("gpu" if c.gpus else "cpu")
        cpus = _MANY_CPUS if c.cpus is None else max(c.cpus, 1)
        memory = _MUCH_MEMORY if c.mem_gb is None else max(round(c.mem_gb * 1024), 1)
        if c.gres:
            kind = re.sub(r"[^a-z0-9-]", "-", kind)  # a node's name, not a type
        gres = tuple((name.lower(), count) for name, count in c.gres if count)
        found.append(LabNodes(kind, c.gpus, c.count, cpus, memory, counted[kind] + 1, c.partitions, gres, c.features))
        counted[kind] += c.count
    return tuple(found)


def evenly_fast(cluster: Cluster) -> Cluster:
    """The cluster with GPUs of one speed, as a lab's are: a job takes as long on each."""
    return replace(cluster, classes=tuple(replace(c, speed=1.0) for c in cluster.classes))


def node_names(cluster: Cluster) -> list[str]:
    """The lab's names of the nodes, in the order of the cluster file."""
    return [name for c in lab_nodes(cluster) for name in c.names()]


def stand_ins() -> list[str]:
    """System accounts of this machine that may stand for users of a trace: they run nothing but the lab's jobs."""
    return [entry.pw_name for entry in pwd.getpwall() if 0 < entry.pw_uid < 100 and entry.pw_name != "sync"]
