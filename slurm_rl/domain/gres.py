"""GRES: GPUs, slices, shards and other resources of nodes and requests, in Slurm's own words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from slurm_rl.errors import InputError

GPU = "gpu"
WHOLE = 1000  # parts of a GPU that is not cut into shards: fractions in traces are thousandths
SHARINGS = ("", "shard", "mps")  # how a GPU may be shared, by number; "" are the fractions of traces
MPS = SHARINGS.index("mps")  # of a node's GPUs, one at a time serves it
MOST_DEVICES = 64  # on one node
MOST_PARTS = 1000  # of one GPU

# A slice is named by its parent, its compute units and its memory: a100_3g.20gb, h100-1g.10gb+me, 2g.10gb.
_SLICE = re.compile(r"(?:(?P<parent>.*?)[._-](?:mig[._-])?)?(?P<units>\d)g\.(?P<gb>\d+)gb(?:\+.*)?", re.IGNORECASE)
_UNITS_OF_A_GPU = {"A30": 4}  # 7 on all others
_ITEM = re.compile(r"(?P<name>[^:=(),\s]+)(?::(?P<type>[^:=(),\s]+?))??(?:[:=](?P<count>\d+))?")


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG slice: which GPU it is cut from, its share of the compute units, and its memory."""

    parent: str
    compute: float
    mem_gb: int


@lru_cache(maxsize=1024)
def slice_of(gpu_type: str) -> Slice | None:
    """What the name of a type says of a slice; None if it names no slice."""
    match = _SLICE.fullmatch(gpu_type)
    if match is None:
        return None
    parent = match["parent"] or ""
    whole = next((n for name, n in _UNITS_OF_A_GPU.items() if name in parent.upper()), 7)
    return Slice(parent, min(int(match["units"]) / whole, 1.0), int(match["gb"]))


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or slice of a node: its type, and into how many parts it may be shared, by whom (see SHARINGS)."""

    type: str
    parts: int = WHOLE
    sharing: str = ""


@dataclass(frozen=True, slots=True)
class NodeGres:
    """What a node has: its GPUs one by one, and counts of everything else."""

    devices: tuple[Device, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d.type for d in self.devices))


@dataclass(frozen=True, slots=True)
class GresRequest:
    """What a job asks for on each of its nodes.

    `types` are GPUs of named types; `gpus` of any type. Shards, or percentages of MPS, all lie on one GPU.
    """

    types: tuple[tuple[str, int], ...] = ()
    gpus: int = 0
    shares: int = 0
    sharing: str = ""
    share_type: str = ""
    others: tuple[tuple[str, int], ...] = ()

    @property
    def gpu_count(self) -> int:
        return self.gpus + sum(count for _, count in self.types)


def node_gres(counts: Mapping[str, int], where: str = "gres") -> NodeGres:
    """What `{"gpu:a100": 4, "gpu:a100_1g.5gb": 7, "shard": 16, "fpga": 2}` says of a node.

    Shards are dealt out over the GPUs of their type as Slurm does it: evenly, the rest to the last ones. Without a
    type they lie on all GPUs that are no slices.
    """
    types: list[str] = []
    shared: list[tuple[str, str, int]] = []
    others: dict[str, int] = {}
    for key, count in counts.items():
        name, _, kind = key.partition(":")
        if count < 0:
            raise InputError(f"{where}: {key} must be ≥ 0, got {count}")
        if name == GPU:
            types += [kind] * count
        elif name in SHARINGS[1:]:
            shared.append((name, kind, count))
        elif count:
            others[key] = count
    if len(types) > MOST_DEVICES:
        raise InputError(f"{where}: at most {MOST_DEVICES} GPUs and slices per node, got {len(types)}")
    devices = [Device(t) for t in types]
    for name, kind, count in shared:
        mine = [i for i, d in enumerate(devices) if (d.type == kind if kind else slice_of(d.type) is None)]
        if count and not mine:
            raise InputError(f"{where}: {name} without a GPU to share")
        rest = count
        for left, i in zip(range(len(mine), 0, -1), mine, strict=True):
            parts = rest // left
            rest -= parts
            if parts > MOST_PARTS:
                raise InputError(f"{where}: at most {MOST_PARTS} {name} per GPU, got {parts}")
            if parts:
                if devices[i].sharing:
                    raise InputError(f"{where}: a GPU has both {devices[i].sharing} and {name}")
                devices[i] = Device(devices[i].type, parts, name)
    return NodeGres(tuple(devices), others)


@lru_cache(maxsize=4096)
def parse_request(text: str) -> GresRequest:
    """`gpu:a100:2,shard:1` as `--gres` has it, for each node; `gres/` or `gres:` before a name may stand or not.

    Raises InputError where Slurm would refuse it, or where we do not know what it means.
    """
    typed: dict[str, int] = {}
    others: dict[str, int] = {}
    shares: list[tuple[str, str, int]] = []
    gpus = 0
    for item in filter(None, (part.strip() for part in re.split("[,;]", text))):
        match = _ITEM.fullmatch(re.sub(r"^gres[:/]", "", item))
        if match is None:
            raise InputError(f"GRES {item!r} is not understood")
        name, kind, count = match["name"], match["type"] or "", int(match["count"] or 1)
        if not count:
            continue
        if name == GPU and kind:
            typed[kind] = typed.get(kind, 0) + count
        elif name == GPU:
            gpus += count
        elif name in SHARINGS[1:]:
            shares.append((name, kind, count))
        else:
            key = f"{name}:{kind}" if kind else name
            others[key] = others.get(key, 0) + count
    if typed and gpus:
        raise InputError("requests GPUs with and without a type")
    if shares and (typed or gpus):
        raise InputError(f"requests whole GPUs and {shares[0][0]}")
    if len(shares) > 1:
        raise InputError("requests shares of GPUs in two ways")
    sharing, share_type, count = shares[0] if shares else ("", "", 0)
    return GresRequest(tuple(typed.items()), gpus, count, sharing, share_type, tuple(others.items()))


def spell(counts: Iterable[tuple[str, int]]) -> str:
    """Counts as one line: `gpu:a100:4,shard:16`."""
    return ",".join(f"{name}:{count}" for name, count in counts)
