"""A cluster: node classes as in a cluster file, with GPU types, speeds and watts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from slurm_rl.domain.gres import NodeGres, node_gres, slice_of
from slurm_rl.domain.hosts import expand_hosts
from slurm_rl.domain.jsonfile import read_json
from slurm_rl.errors import InputError, unknown_name


@dataclass(frozen=True, slots=True)
class GpuType:
    """Published figures of a GPU model: FP16/FP32 training throughput relative to a V100, and watts of one card."""

    name: str
    speed: float
    watts_idle: float
    watts_busy: float


# Relative training throughput from vendors' published dense FLOPS (mixed precision where the card has it, V100 = 1),
# tempered by memory bandwidth; watts are the cards' idle figures and board power.
KNOWN_GPUS = {
    g.name: g
    for g in (
        GpuType("H100", 3.6, 70, 700),
        GpuType("H800", 3.4, 70, 700),
        GpuType("A100", 2.0, 50, 400),
        GpuType("A800", 2.0, 50, 400),
        GpuType("A10", 0.9, 20, 150),
        GpuType("A30", 1.2, 30, 165),
        GpuType("L40S", 1.6, 35, 350),
        GpuType("V100", 1.0, 40, 300),
        GpuType("P100", 0.55, 30, 250),
        GpuType("T4", 0.45, 10, 70),
        GpuType("K80", 0.25, 30, 150),
    )
}
_NODE_WATTS_IDLE = 150.0  # a dual-socket server without its GPUs
_NODE_WATTS_BUSY = 450.0
MOST_NODES = 1_000_000  # larger than any site; each is a row of several tables
_KEYS = {"count", "gpu_type", "gpus", "cpus", "mem_gb", "partition", "speed", "watts_idle", "watts_busy"} | {
    "gres",
    "features",
    "weight",
    "nodes",
    "block",
    "span_speed",
}
_REMARKS = {"note", "comment", "name"}  # for people


@dataclass(frozen=True, slots=True)
class NodeClass:
    """`count` identical nodes; `cpus` or `mem_gb` of None means that this resource is not limited."""

    count: int
    gpu_type: str = ""
    gpus: int = 0
    cpus: int | None = None
    mem_gb: float | None = None
    partition: str = "batch"  # "a,b": the nodes belong to several partitions
    speed: float = 1.0
    watts_idle: float = _NODE_WATTS_IDLE
    watts_busy: float = _NODE_WATTS_BUSY
    weight: int = 1  # Slurm's Weight: placement `slurm` takes lighter nodes first
    gres: tuple[tuple[str, int], ...] = ()  # "gpu:a100" -> 4, "shard" -> 16 …; () where GPUs of one type are all
    features: tuple[str, ...] = ()
    block: int | str = ""  # its nodes are in blocks of so many, or all in the block of this name; "": in none
    span_speed: float = 1.0  # of a gang in several blocks, as a share of its speed within one
    names: str = ""  # of its nodes, as Slurm lists them: gpu[1-4]; "" where nobody asks

    def __post_init__(self) -> None:
        """`gres` says which GPUs there are; their number and first type follow from it."""
        if self.gres:
            devices = self.has.devices
            object.__setattr__(self, "gpus", len(devices))
            object.__setattr__(self, "gpu_type", devices[0].type if devices else "")

    @property
    def partitions(self) -> tuple[str, ...]:
        return tuple(p.strip() for p in self.partition.split(",") if p.strip())

    @property
    def has(self) -> NodeGres:
        """The GRES of one node."""
        return node_gres(dict(self.gres) or {f"gpu:{self.gpu_type}": self.gpus})

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Types of its GPUs and slices; () without any, "" is a type without a name."""
        return self.has.types if self.gres else (self.gpu_type,) * bool(self.gpus)

    def speed_of(self, gpu_type: str) -> float:
        """`speed` is that of a whole GPU of the first type; others are as much faster as published."""
        if not self.gres:
            return self.speed
        first = slice_of(self.gpu_type)
        whole = published_speed(first.parent if first else self.gpu_type)
        return round(self.speed * published_speed(gpu_type) / whole, 6)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A named list of node classes. Nodes are numbered in the order of the classes."""

    name: str
    classes: tuple[NodeClass, ...]

    @property
    def nodes(self) -> int:
        return sum(c.count for c in self.classes)

    @property
    def gpus(self) -> int:
        return sum(c.count * c.gpus for c in self.classes)

    @property
    def partitions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(p for c in self.classes for p in c.partitions))

    @property
    def gpu_types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t for c in self.classes for t in c.gpu_types if t))

    @property
    def blocks(self) -> tuple[str, ...]:
        """The block or leaf switch of each node; nodes in none count as one block together."""
        found = []
        for i, c in enumerate(self.classes, 1):
            cut = isinstance(c.block, int)
            found += [f"{i}.{k // c.block}" if cut else str(c.block) for k in range(c.count)]  # type: ignore[operator]
        return tuple(found)


# Idle and busy watts of a node, by its GPU type and how many GPUs of it there are.
NodeWatts = Callable[[str, int], tuple[float, float]]


def default_watts(gpu_type: str, gpus: int) -> tuple[float, float]:
    """Idle and busy watts of a node with these GPUs; an unknown type counts as a V100."""
    key = next((k for k in KNOWN_GPUS if gpu_type.upper().startswith(k)), "V100")
    gpu = KNOWN_GPUS[key]
    return _NODE_WATTS_IDLE + gpus * gpu.watts_idle, _NODE_WATTS_BUSY + gpus * gpu.watts_busy


def gres_watts(gres: NodeGres) -> tuple[float, float]:
    """Idle and busy watts of a node: a slice draws its share of its parent's compute."""
    idle, busy = _NODE_WATTS_IDLE, _NODE_WATTS_BUSY
    for device in gres.devices:
        part = slice_of(device.type)
        one = default_watts(part.parent if part else device.type, 1)
        share = part.compute if part else 1.0
        idle += share * (one[0] - _NODE_WATTS_IDLE)
        busy += share * (one[1] - _NODE_WATTS_BUSY)
    return idle, busy


def published_speed(gpu_type: str) -> float:
    """A type's training throughput by its vendor's figures, V100 = 1; 1 for a type that nobody has described.

    A slice has its share of its parent's compute units.
    """
    part = slice_of(gpu_type)
    if part is not None:
        return part.compute * published_speed(part.parent)
    name = gpu_type.upper()
    known = max((k for k in KNOWN_GPUS if name.startswith(k)), key=len, default="")
    return KNOWN_GPUS[known].speed if known else 1.0


class SiteNode(Protocol):
    """What is needed of a node of a live site."""

    @property
    def name(self) -> str: ...
    @property
    def cpus(self) -> int: ...
    @property
    def mem_mb(self) -> int: ...
    @property
    def gpus(self) -> Mapping[str, int]: ...
    @property
    def partitions(self) -> tuple[str, ...]: ...


N = TypeVar("N", bound=SiteNode)


Gres = tuple[tuple[str, int], ...]
_Alike = tuple[str, int, int, int, str, Gres, tuple[str, ...], str]
KnownNodes = dict[int, tuple[N, _Alike | None]]  # by identity, with what its equals share; None: in no partition


def _nothing(_node: object) -> tuple[()]:
    return ()


def node_classes(
    nodes: Iterable[N],
    partitions: Collection[str] = (),
    speed: Callable[[str], float] = published_speed,
    watts: NodeWatts = default_watts,
    *,
    gres: Callable[[N], Gres] = _nothing,
    features: Callable[[N], tuple[str, ...]] = _nothing,
    block: Callable[[N], str] = lambda _node: "",
    known: KnownNodes[N] | None = None,
) -> list[tuple[NodeClass, list[N]]]:
    """Nodes of these partitions (all, if none is named) as classes of equals, each with its nodes, as they come.

    `gres` gives all kinds that a node has, or nothing where it has GPUs of one type alone. `known` is the caller's,
    empty at first and whenever `partitions`, `gres`, `features` or `block` say otherwise: an object that was there at
    the last look is not looked at again.
    """
    before = {} if known is None else known.copy()
    now: KnownNodes[N] = {}
    alike: dict[_Alike, list[N]] = {}
    for node in nodes:
        if (seen := before.get(id(node))) is None:
            where = ",".join(p for p in node.partitions if not partitions or p in partitions)
            kind = next((t for t, count in sorted(node.gpus.items()) if t and count), "")
            own = (kind, sum(node.gpus.values()), node.cpus, node.mem_mb, where)
            seen = (node, (*own, gres(node), features(node), block(node)) if where else None)
        now[id(node)] = seen
        if seen[1] is not None:
            alike.setdefault(seen[1], []).append(node)
    if known is not None:
        known.clear()
        known.update(now)
    found = []
    for (kind, gpus, cpus, mem, where, has, words, inside), same in alike.items():
        draws = gres_watts(node_gres(dict(has))) if has else watts(kind, gpus)
        first = next((name.partition(":")[2] for name, _ in has if name.startswith("gpu:")), kind)
        part = slice_of(first)
        fast = speed(part.parent if part else first)
        alike_in = NodeClass(len(same), kind, gpus, cpus, mem / 1024, where, fast, *draws, gres=has, features=words)
        found.append((replace(alike_in, block=inside), same))
    return found


def read_cluster(path: str | Path) -> Cluster:
    """Reads a cluster file: a JSON list of `{count,gpu_type,gpus,cpus,mem_gb,partition}` and optional figures."""
    path = Path(path)
    rows = read_json(path, "no such cluster file", "give --cluster FILE.json")
    if not isinstance(rows, list) or not rows:
        raise InputError("must be a non-empty JSON list of node classes", file=str(path))
    name = path.name.removesuffix(".json").removesuffix(".cluster")
    cluster = Cluster(name, tuple(_node_class(row, f"node class {i}", str(path)) for i, row in enumerate(rows, 1)))
    if cluster.nodes > MOST_NODES:
        raise InputError(f"has {cluster.nodes:,} nodes, expected {MOST_NODES:,} at most", file=str(path))
    return cluster


def _node_class(row: object, where: str, file: str) -> NodeClass:
    if not isinstance(row, dict):
        raise InputError(f"{where}: must be an object, got {row!r}", file=file)

    for key in row.keys() - _KEYS - _REMARKS:
        unknown = unknown_name("key", str(key), _KEYS)
        raise InputError(f"{where}: {unknown.message}", file=file, remedy=unknown.remedy)

    def number(key: str, low: float, blank: float | None) -> float | None:
        value = row.get(key, "")
        if value in ("", None):
            return blank
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < 1e12:
            raise InputError(f"{where}: {key} must be a number ≥ {low:g}, got {value!r}", file=file)
        return float(value)

    def whole(key: str, low: int, blank: int | None) -> int | None:
        value = number(key, low, blank)
        if value is not None and value != int(value):
            raise InputError(f"{where}: {key} must be a whole number, got {row[key]!r}", file=file)
        return None if value is None else int(value)

    count = whole("count", 1, None)
    if count is None:
        raise InputError(f"{where}: count is missing", file=file)
    gpus = whole("gpus", 0, 0) or 0
    if gpus > 64:
        raise InputError(f"{where}: gpus must be ≤ 64 per node, got {gpus}", file=file)
    gpu_type = str(row.get("gpu_type") or "")
    gres = _gres(row.get("gres") or {}, where, file)
    features = row.get("features") or []
    if not isinstance(features, list) or not all(isinstance(f, str) and f for f in features):
        raise InputError(f"{where}: features must be a list of names, got {features!r}", file=file)
    partition = str(row.get("partition") or "batch")
    if not any(p.strip() for p in partition.split(",")):
        raise InputError(f"{where}: partition must name at least one, got {partition!r}", file=file)
    idle, busy = default_watts(gpu_type, gpus)
    if gres:
        has = node_gres(dict(gres), where)
        if row.get("gpus") not in ("", None, len(has.devices)):
            raise InputError(f"{where}: gres has {len(has.devices)} GPUs and slices, gpus says {gpus}", file=file)
        if gpu_type and gpu_type not in has.types:
            raise InputError(f"{where}: gres has no gpu:{gpu_type}, which gpu_type names", file=file)
        idle, busy = gres_watts(has)
    speed = number("speed", 0.0, 1.0) or 0.0
    if speed <= 0:
        raise InputError(f"{where}: speed must be > 0, got {row['speed']!r}", file=file)
    return NodeClass(
        count=count,
        gpu_type=gpu_type,
        gpus=gpus,
        cpus=whole("cpus", 0, None),
        mem_gb=number("mem_gb", 0, None),
        partition=partition,
        speed=speed,
        watts_idle=number("watts_idle", 0, idle) or 0.0,
        watts_busy=number("watts_busy", 0, busy) or 0.0,
        gres=gres,
        features=tuple(dict.fromkeys(features)),
        weight=whole("weight", 0, 1) or 0,
        block=_block(row.get("block", ""), where, file),
        span_speed=_span_speed(number("span_speed", 0.0, 1.0) or 0.0, where, file),
        names=_names(row.get("nodes") or "", count, where, file),
    )


def _block(value: object, where: str, file: str) -> int | str:
    """The key `block`: nodes in each block, or the name of one."""
    if isinstance(value, bool) or not isinstance(value, int | str) or (isinstance(value, int) and value < 1):
        raise InputError(f"{where}: block must be a number of nodes ≥ 1 or a name, got {value!r}", file=file)
    return value


def _span_speed(value: float, where: str, file: str) -> float:
    if not 0.0 < value <= 1.0:
        raise InputError(f"{where}: span_speed must be above 0 and at most 1, got {value:g}", file=file)
    return value


def _names(value: object, count: int, where: str, file: str) -> str:
    """The key `nodes`: as many names as there are nodes."""
    if not isinstance(value, str):
        raise InputError(f"{where}: nodes must be a list as Slurm writes it, gpu[1-4], got {value!r}", file=file)
    if value and len(expand_hosts(value)) != count:
        raise InputError(f"{where}: nodes names {len(expand_hosts(value))} nodes, count says {count}", file=file)
    return value


def _gres(value: object, where: str, file: str) -> tuple[tuple[str, int], ...]:
    """The key `gres`: counts by kind."""
    if not isinstance(value, dict):
        raise InputError(f'{where}: gres must be an object like {{"gpu:a100": 4}}, got {value!r}', file=file)
    for name, count in value.items():
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 2**31:
            raise InputError(f"{where}: gres {name} must be a whole number ≥ 0, got {count!r}", file=file)
    try:
        node_gres(value, where)
    except InputError as error:
        raise InputError(error.message, file=file) from None
    return tuple(value.items())


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Writes a cluster file that `read_cluster` reads back equal."""
    rows = [
        {
            "count": c.count,
            "gpu_type": c.gpu_type,
            "gpus": c.gpus,
            "cpus": "" if c.cpus is None else c.cpus,
            "mem_gb": "" if c.mem_gb is None else c.mem_gb,
            "partition": c.partition,
            "speed": c.speed,
            "watts_idle": c.watts_idle,
            "watts_busy": c.watts_busy,
        }
        | ({"gres": dict(c.gres)} if c.gres else {})
        | ({"features": list(c.features)} if c.features else {})
        | ({} if c.weight == 1 else {"weight": c.weight})
        | ({} if c.block == "" else {"block": c.block})
        | ({} if c.span_speed == 1.0 else {"span_speed": c.span_speed})
        | ({"nodes": c.names} if c.names else {})
        for c in cluster.classes
    ]
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
