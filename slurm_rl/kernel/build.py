"""From requests and a cluster to the arrays that kernels take, with a reason for every job that can never run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_rl.domain.cluster import Cluster
from slurm_rl.domain.sizes import GROUP_LEVELS, gpus_per_cpu, group_columns, job_size, pools_of
from slurm_rl.kernel.arrays import GPU_MILLI, JOB, LEVELS, NODE, POOL, REQUEST, UNLIMITED, UNLIMITED_MB, Array
from slurm_rl.kernel.codes import number


@dataclass(frozen=True, slots=True)
class Requests:
    """What jobs ask for, as columns sorted by (submit, id); blank is 0 in `nodes`, NaN in amounts, -1 in codes."""

    submit: Array
    limit: Array
    gpus: Array  # float64, total over the job's nodes; below 1 a share of one GPU
    gpu_type: Array  # codes into gpu_type_names; a name "A|B" accepts A and B
    gpu_type_names: tuple[str, ...]
    nodes: Array
    cpus: Array  # float64 total
    mem_gb: Array  # float64 total
    partition: Array  # codes into partition_names
    partition_names: tuple[str, ...]
    user: Array
    users: int
    account: Array
    accounts: int
    name: Array
    qos: Array
    qos_count: int
    priority: Array
    deadline: Array
    nice: Array | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs on a cluster, compiled to arrays."""

    cluster: Cluster
    jobs: Array  # JOB
    requests: Array  # REQUEST
    nodes: Array  # NODE
    kind_ptr: Array
    kind_node: Array
    class_ptr: Array
    class_list: Array
    speed: Array
    slots: int  # GPUs tracked one by one on each node: 0 unless some job asks for a share
    pools: Array  # POOL
    node_class: Array  # class of each node
    node_number: Array  # its number in the order of the cluster file
    type_names: tuple[str, ...]  # of the nodes' GPU types
    partition_names: tuple[str, ...]
    user_account: Array  # account of each user, for fairshare
    accounts: int
    groups: int  # of the run-time estimator
    reference_speed: Array  # float64 [jobs] of the GPU type that a job's run time was measured on
    rejected: dict[int, str]  # job -> why it can never run here


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast classes of jobs run on GPU types, besides the types' own speeds."""

    types: Mapping[str, float]  # GPU type -> speed, where it is not the cluster file's
    classes: tuple[Mapping[str, float], ...] = ()  # of each class of jobs: GPU type -> speed
    of_job: Array | None = None  # class of each job, -1: none; None: of all


def build(requests: Requests, cluster: Cluster, *, learn: bool = True, speeds: Speeds | None = None) -> Workload:
    """Compiles requests for a cluster; `learn` says whether the estimator's groups are needed."""
    part = _nodes(cluster)
    partition, rejected_partition = _partitions(requests, cluster)
    speed, row = _speeds(requests, part, speeds)
    request_of, raw = _distinct(requests, partition, row)
    kinds, kind_count = number(partition, requests.gpu_type, requests.gpus > 0)
    first = np.zeros(kind_count, dtype=np.int64)
    first[kinds[::-1]] = np.arange(len(kinds))[::-1]
    kind_nodes = [
        _eligible(cluster, part, int(partition[i]), _type_name(requests, int(i)), bool(requests.gpus[i] > 0))
        for i in first
    ]
    kind_ptr = np.concatenate([[0], np.cumsum([len(k) for k in kind_nodes])]).astype(np.int64)
    kind_classes = [np.unique(part.node_class[k]) for k in kind_nodes]
    slots = 0
    if bool(np.any(raw["share"] > 0)):
        slots = max((c.gpus for c in cluster.classes), default=0)
    nodes = part.nodes
    count = len(part.pool_nodes) - 1
    pool_gpus = np.bincount(nodes["pool"], weights=nodes["gpu"], minlength=count)
    pool_cpus = np.bincount(nodes["pool"], weights=nodes["cpu"], minlength=count)
    distinct = np.zeros(len(raw["units"]), dtype=REQUEST)
    for field in ("units", "per_node", "cpu", "mem", "gpu", "share"):
        distinct[field] = raw[field]
    distinct["kind"] = kinds[raw["first"]]
    distinct["row"] = row[raw["first"]]
    distinct["pool"] = part.partition_pool[partition[raw["first"]]]
    distinct["misfit"] = distinct["misfit_both"] = distinct["fitted"] = -1
    gpu_size = distinct["units"] * (distinct["gpu"] + distinct["share"] / GPU_MILLI)
    weight = gpus_per_cpu(pool_gpus, pool_cpus)
    cpus = distinct["units"] * distinct["cpu"].astype(np.float64)
    distinct["volume"] = job_size(gpu_size, cpus, weight[distinct["pool"]])
    jobs = np.zeros(len(requests.submit), dtype=JOB)
    jobs["submit"] = requests.submit
    jobs["limit"] = np.maximum(requests.limit, 1)
    jobs["deadline"] = requests.deadline
    jobs["priority"] = np.nan_to_num(requests.priority, nan=0.0)
    jobs["request"] = request_of
    jobs["user"], jobs["account"], jobs["partition"] = requests.user, requests.account, partition
    jobs["qos"] = np.maximum(requests.qos, 0)
    if requests.nice is not None:
        jobs["nice"] = requests.nice
    jobs["speed_row"] = row
    groups = _groups(requests, distinct["volume"][request_of], jobs["group"]) if learn else 0
    pools = np.zeros(count, dtype=POOL)
    pools["volume"] = np.maximum(np.where(pool_gpus > 0, pool_gpus, pool_cpus), 1.0)
    pools["cpu_only"] = pool_gpus == 0
    pools["first_node"], pools["last_node"] = part.pool_nodes[:-1], part.pool_nodes[1:]
    pools["cursor"] = pools["first_node"]
    per_pool = np.bincount(distinct["pool"][request_of], minlength=count)
    pools["last_job"] = np.cumsum(per_pool)
    pools["first_job"] = pools["last_job"] - per_pool
    pools["queue_first"] = pools["queue_last"] = pools["first_job"]
    user_account = np.zeros(max(requests.users, 1), dtype=np.int32)
    user_account[requests.user[::-1]] = requests.account[::-1]
    workload = Workload(
        cluster,
        jobs,
        distinct,
        nodes,
        kind_ptr,
        (np.concatenate(kind_nodes) if kind_nodes else np.zeros(0)).astype(np.int64),
        np.concatenate([[0], np.cumsum([len(k) for k in kind_classes])]).astype(np.int64),
        (np.concatenate(kind_classes) if kind_classes else np.zeros(0)).astype(np.int64),
        speed,
        slots,
        pools,
        part.node_class,
        part.number,
        part.type_names,
        part.partitions,
        user_account,
        max(requests.accounts, 1),
        groups,
        _reference_speed(requests, part, speed, row),
        {},
    )
    workload.rejected.update(_rejections(workload, requests, rejected_partition))
    return workload


def _type_name(requests: Requests, i: int) -> str:
    code = int(requests.gpu_type[i])
    return requests.gpu_type_names[code] if code >= 0 else ""


@dataclass(frozen=True, slots=True)
class _NodePart:
    nodes: Array
    pool_nodes: Array  # first node of each pool, and the end
    speed: Array
    node_class: Array
    number: Array
    type_names: tuple[str, ...]
    partitions: tuple[str, ...]
    partition_pool: Array


def _nodes(cluster: Cluster) -> _NodePart:
    """Nodes sorted by pool."""
    partitions = cluster.partitions
    pool = pools_of(partitions, (c.partitions for c in cluster.classes))
    count = len(set(pool.values()))
    partition_pool = np.array([pool[p] for p in partitions], dtype=np.int32)
    counts = np.array([c.count for c in cluster.classes])
    class_of = np.repeat(np.arange(len(counts)), counts)
    class_pool = np.array([pool[c.partitions[0]] for c in cluster.classes])
    order = np.argsort(class_pool[class_of], kind="stable")
    class_of = class_of[order]
    # A GPU type is a name at a speed: classes of one name and different speeds count as different types.
    types: dict[tuple[str, float], int] = {("", 1.0): 0}
    type_of = np.array([types.setdefault((c.gpu_type, c.speed), len(types)) for c in cluster.classes])
    speeds = np.array([speed for _, speed in types])

    nodes = np.zeros(len(class_of), dtype=NODE)
    nodes["cpu"] = np.array([UNLIMITED if c.cpus is None else c.cpus for c in cluster.classes])[class_of]
    nodes["mem"] = np.array([UNLIMITED_MB if c.mem_gb is None else c.mem_gb * 1024 for c in cluster.classes])[class_of]
    nodes["gpu"] = np.array([c.gpus for c in cluster.classes])[class_of]
    nodes["type"] = type_of[class_of]
    nodes["pool"] = class_pool[class_of]
    nodes["klass"] = class_of
    nodes["watts"] = np.array([(c.watts_busy - c.watts_idle) / max(c.gpus, 1) for c in cluster.classes])[class_of]
    return _NodePart(
        nodes,
        np.searchsorted(nodes["pool"], np.arange(count + 1)),
        np.vstack([speeds, np.ones_like(speeds)]),
        class_of,
        order,
        tuple(name for name, _ in types),
        partitions,
        partition_pool,
    )


def _partitions(requests: Requests, cluster: Cluster) -> tuple[Array, Array]:
    """Each job's partition; a blank one is the cluster's first, and a lone partition takes every name."""
    names = cluster.partitions
    index = {p: i for i, p in enumerate(names)}
    fallback = 0 if len(names) == 1 else -1
    table = np.array([*(index.get(p, fallback) for p in requests.partition_names), 0], dtype=np.int32)
    codes = table[requests.partition]  # code -1 picks the last entry: the default partition
    return np.maximum(codes, 0), codes < 0


def _speeds(requests: Requests, part: _NodePart, speeds: Speeds | None) -> tuple[Array, Array]:
    """The table [rows, GPU types], and each job's row: 0: the types' own speeds; 1: no GPUs, speed 1; then classes."""
    row = (requests.gpus <= 0).astype(np.int64)
    if speeds is None:
        return part.speed, row
    table = [part.speed[0].copy(), part.speed[1]]
    folded = {name.upper(): value for name, value in speeds.types.items()}
    for k, name in enumerate(part.type_names):
        table[0][k] = folded.get(name.upper(), table[0][k])
    for own in speeds.classes:
        named = {name.upper(): value for name, value in own.items()}
        table.append(np.array([named.get(n.upper(), table[0][k]) for k, n in enumerate(part.type_names)]))
    if speeds.of_job is not None:
        row = np.where((speeds.of_job >= 0) & (requests.gpus > 0), speeds.of_job + 2, row)
    return np.ascontiguousarray(np.vstack(table)), row


def _room(s: np.void, nodes: Array) -> Array:
    """How many units of a request each empty node holds."""
    room = np.full(len(nodes), min(int(s["per_node"]), int(s["units"])), dtype=np.int64)
    for field in ("cpu", "mem", "gpu"):
        if s[field] > 0:
            room = np.minimum(room, nodes[field] // s[field])
    if s["share"] > 0:
        room = np.minimum(room, nodes["gpu"] * (GPU_MILLI // int(s["share"])))
    return room


def _distinct(requests: Requests, partition: Array, row: Array) -> tuple[Array, dict[str, Array]]:
    gpus = requests.gpus
    share = np.where((gpus > 0) & (gpus < 1), np.ceil(gpus * GPU_MILLI - 1e-9), 0).astype(np.int64)
    whole = np.where(gpus >= 1, np.ceil(gpus - 1e-9), 0).astype(np.int64)
    nodes = requests.nodes.astype(np.int64)
    cpus = np.where(np.isnan(requests.cpus), np.where(gpus > 0, 0, np.maximum(nodes, 1)), np.ceil(requests.cpus))
    cpus = np.where((gpus <= 0) & (cpus < 1), 1, cpus).astype(np.int64)
    mem = np.where(np.isnan(requests.mem_gb), 0, np.ceil(requests.mem_gb * 1024)).astype(np.int64)
    lead = np.where(share > 0, 1, np.where(whole > 0, whole, cpus))  # what is split over the units
    even = (nodes > 0) & (lead % np.maximum(nodes, 1) == 0)
    units = np.where(share > 0, 1, np.where(even, nodes, lead))
    per_node = np.where(even, 1, np.where(nodes > 0, -(-lead // np.maximum(nodes, 1)), lead))
    gpu = np.where(whole > 0, whole // units, 0)
    cpu = np.where(cpus >= units, -(-cpus // units), 0)
    memory = -(-mem // units)
    units, per_node, cpu = (np.minimum(v, UNLIMITED + 1) for v in (units, per_node, cpu))
    memory = np.minimum(memory, UNLIMITED_MB + 1)
    kind, _ = number(partition, requests.gpu_type, gpus > 0)
    codes, count = number(units, per_node, cpu, memory, gpu, share, kind, row)
    first = np.zeros(count, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    raw = {"units": units, "per_node": per_node, "cpu": cpu, "mem": memory, "gpu": gpu, "share": share}
    return codes, {k: v[first] for k, v in raw.items()} | {"first": first}


def _eligible(cluster: Cluster, part: _NodePart, partition: int, wanted: str, needs_gpu: bool) -> Array:
    """Nodes of the partition that have an acceptable GPU type; where no node names its type, any GPU will do."""
    name = part.partitions[partition]
    accepted = {t.strip().upper() for t in wanted.split("|") if t.strip()}
    typed = any(c.gpu_type for c in cluster.classes if c.gpus)
    good = [
        name in c.partitions
        and (not needs_gpu or (c.gpus > 0 and (not accepted or not typed or c.gpu_type.upper() in accepted)))
        for c in cluster.classes
    ]
    return np.flatnonzero(np.array(good)[part.node_class]).astype(np.int32)


def _groups(requests: Requests, size: Array, group: Array) -> int:
    """Writes the estimator's groups of each job, from general to specific (-1 without a name); how many there are."""
    values = group_columns(requests.user, requests.name, size, requests.gpus > 0, requests.limit)
    total = 0
    for level, columns in enumerate(GROUP_LEVELS):
        codes, count = number(*(values[c] for c in columns))
        group[:, level] = codes + total
        total += count
    group[requests.name < 0, LEVELS - 1] = -1
    return total


def _reference_speed(requests: Requests, part: _NodePart, speed: Array, row: Array) -> Array:
    """A run time belongs to the GPU type that the row names, at the job's speed on that type; else to speed 1."""
    types = {name.upper(): i for i, name in enumerate(part.type_names) if name}
    column = np.array([*(types.get(n.upper(), -1) for n in requests.gpu_type_names), -1])[requests.gpu_type]
    return np.where((requests.gpus > 0) & (column >= 0), speed[row, column], 1.0)


def _rejections(workload: Workload, requests: Requests, bad_partition: Array) -> dict[int, str]:
    """Jobs that no empty cluster could run, each with its reason; marks requests that one GPU type could hold."""
    rejected: dict[int, str] = {}
    for j in np.flatnonzero(bad_partition).tolist():
        rejected[j] = f"unknown partition {requests.partition_names[int(requests.partition[j])]!r}"
    nodes = workload.nodes
    reasons: dict[int, str] = {}
    of_kind: dict[int, Array] = {}
    for i, s in enumerate(workload.requests):
        kind = int(s["kind"])
        if kind not in of_kind:
            of_kind[kind] = nodes[workload.kind_node[workload.kind_ptr[kind] : workload.kind_ptr[kind + 1]]]
        mine = of_kind[kind]
        room = _room(s, mine)
        workload.requests["alone"][i] = np.bincount(mine["type"], weights=room).max(initial=0) >= s["units"]
        if int(room.sum()) < s["units"]:
            reasons[i] = _reason(s, len(mine), int(room.sum()))
    if reasons:
        for j in np.flatnonzero(np.isin(workload.jobs["request"], list(reasons))).tolist():
            rejected.setdefault(j, reasons[int(workload.jobs["request"][j])])
    return rejected


def _reason(request: np.void, eligible: int, room: int) -> str:
    if eligible == 0:
        return "no node of its partition has an acceptable GPU type"
    asks = (("gpu", "GPU", "GPUs"), ("cpu", "CPU", "CPUs"), ("mem", "MB", "MB"))
    each = ", ".join(f"{int(request[f])} {one if request[f] == 1 else many}" for f, one, many in asks if request[f] > 0)
    if request["share"] > 0:
        each = f"{int(request['share'])}/1000 GPU" + (f", {each}" if each else "")
    could = f"only {room} of these fit" if room else "not one of these fits"
    return (
        f"asks for {int(request['units'])} × ({each}), but {could} on the {eligible} nodes it may use, even empty ones"
    )
