"""From requests and a cluster to the arrays that kernels take, with a reason for every job that can never run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from slurm_rl.domain.cluster import Cluster
from slurm_rl.domain.keys import KEY_LEVELS
from slurm_rl.domain.sizes import GROUP_LEVELS, gpus_per_cpu, group_columns, job_size, pools_of
from slurm_rl.kernel.arrays import (
    GPU_MILLI,
    JOB,
    NEVER,
    NODE,
    POOL,
    REQUEST,
    TYPE,
    UNLIMITED,
    UNLIMITED_MB,
    Array,
)
from slurm_rl.kernel.codes import number
from slurm_rl.kernel.devices import Devices, read_devices
from slurm_rl.kernel.eligible import Kinds, accepted_types, find_kinds
from slurm_rl.kernel.fitting import Fitting
from slurm_rl.kernel.request_columns import RequestColumns, sharing_code


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
    partition: Array  # codes into partition_names; a name "a,b" means either, a first
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
    # What some jobs ask for besides (docs/gres.md); None: nobody does.
    gres: Array | None = None  # codes into gres_names: GRES of each node, as `--gres` has it
    gres_names: tuple[str, ...] = ()
    constraint: Array | None = None  # codes into constraint_names …
    prefer: Array | None = None  # … as are wishes
    constraint_names: tuple[str, ...] = ()
    exclusive: Array | None = None  # bool: whole nodes
    keys: tuple[Array, ...] = ()  # codes of further groups (domain/keys.py), from general to specific; -1: blank
    switches: Array | None = None  # blocks or leaf switches that a job may span, 0: any number
    segment: Array | None = None  # nodes that must lie in one block, 0: no such


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
    slots: int  # GPUs told apart on each node: 0 unless a job asks for a share or a whole node, or GPUs differ
    pools: Array  # POOL
    node_class: Array  # class of each node
    node_number: Array  # its number in the order of the cluster file
    type_names: tuple[str, ...]  # of the nodes' GPU types
    partition_names: tuple[str, ...]
    part_bits: Array  # nodes of each partition, as bits
    user_account: Array  # account of each user, for fairshare
    accounts: int
    groups: int  # of the run-time estimator
    reference_speed: Array  # float64 [jobs] of the GPU type that a job's run time was measured on
    devices: Array  # [classes, slots, 4] type, parts, sharing and name of each GPU
    others: Array  # [classes, kinds of other GRES]
    other_names: tuple[str, ...]
    demand: Array  # [requests, GPU types + kinds of other GRES]
    node_sets: Array  # [rows, 2] kind, next row
    mixed: bool  # some node has GPUs of several types
    rejected: dict[int, str]  # job -> why it can never run here
    # Tables of the site's own rules: limits, tiers, factors.
    site: Mapping[str, Array] = dataclasses.field(default_factory=dict)

    @property
    def node_speed(self) -> Array:
        """Of each node: the mean of its GPUs' speeds."""
        if not self.mixed:
            return np.asarray(self.speed[0, self.nodes["type"]])
        types = self.devices[:, :, TYPE]
        there = types >= 0
        mean = np.where(there, self.speed[0, types], 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
        return np.where(there.any(axis=1), mean, 1.0)[self.node_class]


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast classes of jobs run on GPU types, besides the types' own speeds."""

    types: Mapping[str, float]  # GPU type -> speed, where it is not the cluster file's
    classes: tuple[Mapping[str, float], ...] = ()  # of each class of jobs: GPU type -> speed
    of_job: Array | None = None  # class of each job, -1: none; None: of all


def build(requests: Requests, cluster: Cluster, *, learn: bool = True, speeds: Speeds | None = None) -> Workload:
    """Compiles requests for a cluster; `learn` says whether the estimator's groups are needed."""
    lists, listing, bad_partition = _partitions(requests, cluster)
    part = _nodes(cluster, lists)
    columns = RequestColumns(requests, part.devices)
    requests = replace(requests, gpus=columns.gpus(requests.gpus, requests.nodes), **columns.gpu_type(requests))
    partition = np.array([names[0] for names in lists], dtype=np.int32)[listing]
    speed, row = _speeds(requests, part, speeds)
    kinds, kind_count = number(listing, requests.gpu_type, requests.gpus > 0, *columns.of_kind)
    request_of, raw = _distinct(requests, kinds, row, columns)
    first = np.zeros(kind_count, dtype=np.int64)
    first[kinds[::-1]] = np.arange(len(kinds))[::-1]
    found = find_kinds(requests, columns, cluster, part.node_class, lists, listing, first)
    kind_ptr = np.concatenate([[0], np.cumsum([len(k) for k in found.nodes])]).astype(np.int64)
    mixed = bool(part.devices.mixed.any())
    slots = part.devices.slots if mixed or columns.tracked or bool(np.any(raw["share"] > 0)) else 0
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
    demand = columns.demand(raw["first"], part.type_names)
    _special(distinct, requests, columns, found, part, demand, raw["first"])
    distinct["switches"], distinct["segment"] = columns.switches[raw["first"]], columns.segment[raw["first"]]
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
    pools["parts"] = np.bincount(part.partition_pool, minlength=count)
    pools["last_full"] = -NEVER
    pools["learned"] = -1
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
        (np.concatenate(found.nodes) if found.nodes else np.zeros(0)).astype(np.int64),
        np.concatenate([[0], np.cumsum([len(k) for k in found.classes])]).astype(np.int64),
        (np.concatenate(found.classes) if found.classes else np.zeros(0)).astype(np.int64),
        speed,
        slots,
        pools,
        part.node_class,
        part.number,
        part.type_names,
        part.partitions,
        _partition_bits(cluster, part),
        user_account,
        max(requests.accounts, 1),
        groups,
        _reference_speed(requests, part, speed, row),
        part.devices.table,
        part.devices.others,
        part.devices.other_names,
        demand,
        found.node_sets,
        mixed,
        {},
    )
    workload.rejected.update(_rejections(workload, requests, columns, found, raw["first"], bad_partition))
    return workload


def _special(
    distinct: Array,
    requests: Requests,
    columns: RequestColumns,
    kinds: Kinds,
    part: _NodePart,
    demand: Array,
    first: Array,
) -> None:
    """Writes what requests say of single GPUs, shards, other GRES, whole nodes and several sets of nodes."""
    distinct["chain"] = kinds.chain[distinct["kind"]]
    distinct["exclusive"] = columns.exclusive[first]
    distinct["careful"] = (distinct["share"] > 0) | columns.exclusive[first]
    mixed = part.devices.mixed
    distinct["accept"] = -1  # whatever its nodes have
    if not columns.any and not mixed.any():
        return
    named = any(part.type_names)
    for i, job in enumerate(first.tolist()):
        ask, request = columns.gres(job), distinct[i]
        code = int(requests.gpu_type[job])
        wanted = accepted_types(requests.gpu_type_names[code] if code >= 0 else "", ask) if named else set()
        good = [not wanted or name.upper() in wanted for name in part.type_names]
        if mixed.any():
            request["accept"] = sum(1 << t for t, fits in enumerate(good) if fits)
        if request["share"] > 0:
            request["shards"], request["sharing"] = ask.shares, sharing_code(ask)
        request["exact"] = len(ask.types) > 1
        on_mixed = request["gpu"] + request["share"] > 0 and bool(mixed[kinds.classes[int(request["kind"])]].any())
        request["careful"] |= bool(on_mixed or ask.shares or ask.others or request["exact"])


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
    devices: Devices


def _nodes(cluster: Cluster, lists: tuple[tuple[int, ...], ...]) -> _NodePart:
    """Nodes sorted by pool; partitions that a job names together are one pool, too."""
    partitions = cluster.partitions
    together = [*(c.partitions for c in cluster.classes), *([partitions[p] for p in names] for names in lists)]
    pool = pools_of(partitions, together)
    count = len(set(pool.values()))
    partition_pool = np.array([pool[p] for p in partitions], dtype=np.int32)
    counts = np.array([c.count for c in cluster.classes])
    class_of = np.repeat(np.arange(len(counts)), counts)
    class_pool = np.array([pool[c.partitions[0]] for c in cluster.classes])
    # Nodes of a block are neighbours; blocks stand in the order of their first nodes.
    block_of = np.zeros(len(class_of), dtype=np.int64)
    if any(c.block != "" for c in cluster.classes):
        blocks = cluster.blocks
        numbers = {name: i for i, name in enumerate(dict.fromkeys(blocks))}
        block_of = np.array([numbers[name] for name in blocks], dtype=np.int64)
    order = np.lexsort((np.arange(len(class_of)), block_of, class_pool[class_of]))
    class_of = class_of[order]
    # A GPU type is a name at a speed: classes of one name and different speeds count as different types.
    types: dict[tuple[str, float], int] = {("", 1.0): 0}
    type_of = np.array([types.setdefault((c.gpu_type, c.speed_of(c.gpu_type)), len(types)) for c in cluster.classes])
    devices = read_devices(cluster, types)
    speeds = np.array([speed for _, speed in types])

    nodes = np.zeros(len(class_of), dtype=NODE)
    nodes["cpu"] = np.array([UNLIMITED if c.cpus is None else c.cpus for c in cluster.classes])[class_of]
    nodes["mem"] = np.array([UNLIMITED_MB if c.mem_gb is None else c.mem_gb * 1024 for c in cluster.classes])[class_of]
    nodes["gpu"] = np.array([c.gpus for c in cluster.classes])[class_of]
    nodes["type"] = type_of[class_of]
    nodes["pool"] = class_pool[class_of]
    nodes["klass"] = class_of
    nodes["number"] = order
    nodes["block"] = block_of[order]
    nodes["span"] = np.array([c.span_speed for c in cluster.classes])[class_of]
    nodes["weight"] = np.array([c.weight for c in cluster.classes])[class_of]
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
        devices,
    )


def pack_bits(chosen: Array) -> Array:
    """Rows of yes and no as rows of 64-bit words, the first in the lowest bit."""
    rows, count = chosen.shape
    words = -(-max(count, 1) // 64)
    padded = np.zeros((rows, words * 64), dtype=bool)
    padded[:, :count] = chosen
    return np.packbits(padded, axis=1, bitorder="little").view("<i8").astype(np.int64)


def _partition_bits(cluster: Cluster, part: _NodePart) -> Array:
    rows = [np.array([name in c.partitions for c in cluster.classes])[part.node_class] for name in part.partitions]
    return pack_bits(np.array(rows).reshape(len(rows), len(part.nodes)))


def _partitions(requests: Requests, cluster: Cluster) -> tuple[tuple[tuple[int, ...], ...], Array, Array]:
    """Lists of partitions, each job's list, and jobs whose partition nobody knows.

    A blank one is the cluster's first, and a lone partition takes every name.
    """
    names = cluster.partitions
    index = {p: i for i, p in enumerate(names)}
    lists: dict[tuple[int, ...], int] = {(0,): 0}
    table = []
    for name in (*requests.partition_names, names[0]):  # code -1 picks the last entry: the default partition
        known = tuple(dict.fromkeys(index[p] for p in name.split(",") if p in index))
        if not known:
            known = (index[name],) if name in index else ((0,) if len(names) == 1 else ())
        table.append(lists.setdefault(known, len(lists)) if known else -1)
    codes = np.array(table, dtype=np.int32)[requests.partition]
    return tuple(lists), np.maximum(codes, 0), codes < 0


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


def _distinct(requests: Requests, kind: Array, row: Array, columns: RequestColumns) -> tuple[Array, dict[str, Array]]:
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
    raw = {"units": units, "per_node": per_node, "cpu": cpu, "mem": memory, "gpu": gpu, "share": share}
    columns.by_node(raw, whole, cpus, mem, nodes)
    for field, most in (("units", UNLIMITED), ("per_node", UNLIMITED), ("cpu", UNLIMITED), ("mem", UNLIMITED_MB)):
        raw[field] = np.minimum(raw[field], most + 1)
    codes, count = number(*raw.values(), kind, row, *columns.of_request)
    first = np.zeros(count, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return codes, {k: v[first] for k, v in raw.items()} | {"first": first}


def _groups(requests: Requests, size: Array, group: Array) -> int:
    """Writes the estimator's groups of each job, from general to specific (-1: none, as without a name); how many."""
    values = group_columns(requests.user, requests.name, size, requests.gpus > 0, requests.limit)
    total = 0
    for level, columns in enumerate(GROUP_LEVELS):
        codes, count = number(*(values[c] for c in columns))
        group[:, level] = codes + total
        total += count
    named = len(GROUP_LEVELS) - 1
    group[requests.name < 0, named] = -1
    group[:, named + 1 :] = -1
    for level, key in enumerate(requests.keys[:KEY_LEVELS], named + 1):
        codes, count = number(values["user"], key, values["exact"])
        group[:, level] = np.where(key >= 0, codes + total, -1)
        total += count
    return total


def _reference_speed(requests: Requests, part: _NodePart, speed: Array, row: Array) -> Array:
    """A run time belongs to the GPU type that the row names, at the job's speed on that type; else to speed 1."""
    types = {name.upper(): i for i, name in enumerate(part.type_names) if name}
    column = np.array([*(types.get(n.upper(), -1) for n in requests.gpu_type_names), -1])[requests.gpu_type]
    return np.where((requests.gpus > 0) & (column >= 0), speed[row, column], 1.0)


def _rejections(
    workload: Workload, requests: Requests, columns: RequestColumns, kinds: Kinds, first: Array, bad_partition: Array
) -> dict[int, str]:
    """Jobs that no empty cluster could run, each with its reason; marks requests that one GPU type could hold."""
    rejected: dict[int, str] = {}
    for j in np.flatnonzero(bad_partition).tolist():
        rejected[j] = f"unknown partition {requests.partition_names[int(requests.partition[j])]!r}"
    wl = workload
    fitting = Fitting(wl.requests, wl.nodes, wl.demand, wl.devices, wl.others, wl.speed.shape[1])
    reasons: dict[int, str] = {}
    blocks = int(wl.nodes["block"].max(initial=0)) + 1
    for i, s in enumerate(wl.requests):
        most, alone = 0, True
        for kind in kinds.sets(int(s["kind"])):
            room, by_type = fitting.room(i, kinds.nodes[kind])
            most = max(most, room)
            if room >= s["units"]:
                alone = alone and bool(by_type.max(initial=0) >= s["units"])
        wl.requests["alone"][i] = alone and most >= s["units"]
        if blocks > 1 and s["units"] > 1:
            wl.requests["wide"][i] = fitting.on_one(i, kinds.nodes[int(s["kind"])]) < s["units"]
        problem = columns.problem(int(first[i])) if columns.any else ""
        if not problem and (s["switches"] or s["segment"]) and most >= s["units"]:
            problem = _in_blocks(fitting, i, [kinds.nodes[kind] for kind in kinds.sets(int(s["kind"]))])
        if problem or most < s["units"]:
            reasons[i] = problem or _reason(s, len(kinds.nodes[int(s["kind"])]), most, special=columns.any)
    if reasons:
        for j in np.flatnonzero(np.isin(workload.jobs["request"], list(reasons))).tolist():
            rejected.setdefault(j, reasons[int(workload.jobs["request"][j])])
    return rejected


def _in_blocks(fitting: Fitting, i: int, sets: list[Array]) -> str:
    """Why a request could never keep to the switches or segments that it names; "" if it could."""
    request = fitting.requests[i]
    units, segment, switches = (int(request[f]) for f in ("units", "segment", "switches"))
    if segment and (units % segment or request["per_node"] != 1):
        return f"asks for segments of {segment} nodes, which its nodes are no multiple of"
    for members in sets:
        block = fitting.nodes["block"][members]
        rooms = sorted((fitting.room(i, members[block == b])[0] for b in np.unique(block)), reverse=True)
        rooms = [room // max(segment, 1) * max(segment, 1) for room in rooms]
        if sum(rooms[: switches or len(rooms)]) >= units:
            return ""
    within = f"{switches} switch{'es' * (switches > 1)}" if switches else f"segments of {segment} nodes"
    return f"asks for {units} nodes or units in {within}, which no empty cluster has"


def _reason(request: np.void, eligible: int, room: int, *, special: bool) -> str:
    if eligible == 0:
        what = "the GPU type, GRES or features that it asks for" if special else "an acceptable GPU type"
        return f"no node of its partition has {what}"
    asks = (("gpu", "GPU", "GPUs"), ("cpu", "CPU", "CPUs"), ("mem", "MB", "MB"))
    each = ", ".join(f"{int(request[f])} {one if request[f] == 1 else many}" for f, one, many in asks if request[f] > 0)
    if request["share"] > 0:
        each = f"{int(request['share'])}/1000 GPU" + (f", {each}" if each else "")
    could = f"only {room} of these fit" if room else "not one of these fits"
    return (
        f"asks for {int(request['units'])} × ({each}), but {could} on the {eligible} nodes it may use, even empty ones"
    )
