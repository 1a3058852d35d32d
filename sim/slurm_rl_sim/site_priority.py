"""priority/multifactor as a site has set it up: what of a job's priority never changes while it waits.

Implements M1 to M5 of docs/backfill.md: the size and TRES terms, partitions' and QOS' factors, and PriorityTier. What
changes, age and fairshare (M6), is in policy/heuristics.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.domain.limits import Limits, PartitionBounds
from slurm_rl.kernel.arrays import GPU_MILLI, UNLIMITED, Array
from slurm_rl.kernel.build import Workload
from slurm_rl.policy.multifactor import RELATIVE_TO_TIME, partition_shares, size_share


def partition_tables(workload: Workload, partitions: Mapping[str, PartitionBounds], *, raw: bool) -> dict[str, Array]:
    """M3, M5: PriorityJobFactor as a share of the largest (`raw`: NO_NORMAL_PART), and PriorityTier of each job."""
    names = workload.partition_names
    factors = {name: p.factor for name, p in partitions.items() if p.factor is not None}
    found: dict[str, Array] = {}
    if factors:
        found["partition_factor"] = partition_shares(names, factors, raw=raw)
    tier = np.array([_tier(partitions.get(name)) for name in names] or [1], dtype=np.int64)
    if len(set(tier.tolist())) > 1:
        found["tiers"] = tier[workload.jobs["partition"]]
    return found


def _tier(partition: PartitionBounds | None) -> int:
    return 1 if partition is None or partition.tier is None else partition.tier


def qos_table(names: tuple[str, ...], limits: Limits) -> Array:
    """M4: the priority of each QOS as a share of the highest; the first row is for jobs that name none."""
    most = max((b.priority for b in limits.qos.values()), default=0.0) or 1.0
    called = (limits.default_qos, *names)
    return np.array([limits.qos[name].priority / most if name in limits.qos else 0.0 for name in called])


def static_points(workload: Workload, slurm: SlurmSettings) -> Array:
    """M1, M2: what job size and TRES add to the priority of each job."""
    requests, nodes = workload.requests, workload.nodes
    fewest = -(-requests["units"] // np.maximum(requests["per_node"], 1)).astype(np.float64)
    cpus = np.maximum(requests["units"] * requests["cpu"], fewest).astype(np.float64)
    weight = float(slurm.weights.get("job_size", 0.0))
    counted = bool((nodes["cpu"] < UNLIMITED).all())
    all_cpus, all_nodes = max(float(nodes["cpu"].sum()), 1.0), max(len(nodes), 1)
    if not counted:
        cpus = np.zeros(len(requests))
    job = workload.jobs["request"]
    size = size_share(
        cpus[job],
        fewest[job],
        all_cpus,
        all_nodes,
        workload.jobs["limit"],
        small=slurm.priority_favor_small,
        relative=RELATIVE_TO_TIME in slurm.priority_flags,
    )
    return np.ascontiguousarray(weight * size + _tres(workload, cpus, fewest, slurm)[job])


def _tres(workload: Workload, cpus: Array, nodes: Array, slurm: SlurmSettings) -> Array:
    """M2: PriorityWeightTRES, each amount as a share of what the job's partition has (NO_NORMAL_TRES: as it is)."""
    requests = workload.requests
    points = np.zeros(len(requests))
    gpus = requests["units"] * (requests["gpu"] + requests["share"] / GPU_MILLI)
    partition = np.zeros(len(requests), dtype=np.int64)
    partition[workload.jobs["request"]] = workload.jobs["partition"]
    for name, weight in slurm.tres_weights.items():
        amounts = {
            "cpu": cpus,
            "node": nodes,
            "mem": (requests["units"] * requests["mem"]).astype(np.float64),
            "gres/gpu": gpus,
        }
        kind = name.lower().partition("gres/gpu:")[2]
        asked = np.where(_only_type(workload, kind), gpus, 0.0) if kind else amounts.get(name.lower())
        if asked is None:
            continue
        if "NO_NORMAL_TRES" not in slurm.priority_flags:
            total = np.array([_total(workload, p, name.lower(), kind) for p in workload.partition_names])
            asked = asked / np.maximum(total, 1.0)[partition]
        points += weight * asked
    return points


def _only_type(workload: Workload, kind: str) -> Array:
    """Whether the nodes that a request may use have GPUs of this type alone."""
    names = np.array([name.lower() == kind for name in workload.type_names])
    kinds = [
        bool(names[workload.nodes["type"][workload.kind_node[a:b]]].all()) and b > a
        for a, b in zip(workload.kind_ptr[:-1].tolist(), workload.kind_ptr[1:].tolist(), strict=True)
    ]
    return np.array(kinds, dtype=bool)[workload.requests["kind"]]


def _total(workload: Workload, partition: str, tres: str, kind: str) -> float:
    classes = workload.cluster.classes
    mine = np.array([partition in c.partitions for c in classes])[workload.node_class]
    nodes = workload.nodes[mine]
    if kind:
        named = np.array([name.lower() == kind for name in workload.type_names])[nodes["type"]]
        return float(nodes["gpu"][named].sum())
    if tres == "node":
        return float(len(nodes))
    return float(nodes[{"cpu": "cpu", "mem": "mem", "gres/gpu": "gpu"}[tres]].sum())
