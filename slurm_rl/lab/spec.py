"""The parts of a lab: its nodes, as written in `--nodes "a100:8*4,t4:4*8"`, and its options."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from slurm_rl.domain.gres import node_gres
from slurm_rl.domain.pairs import pairs_in
from slurm_rl.errors import InputError

DEFAULT_NODES = "a100:8*4,v100:8*4,t4:4*8"
DEFAULT_DIR = Path("/var/lib/slurm-rl/lab")

# munged, slurmd and MariaDB put unix sockets below the directory, and a socket's path has at most 107 characters.
MAX_DIR_LENGTH = 60
MAX_NODES = 1000

_CLASS = re.compile(
    r"(?P<type>[a-z0-9_.-]+):(?P<gpus>\d+)(?:\*(?P<count>\d+))?(?P<options>(?::[a-z]+=[\w./+-]+)*)", re.I
)


class PluginMode(StrEnum):
    """Whether the lab runs the service and its job_submit plugin, and what the service may do."""

    OFF = "off"
    SHADOW = "shadow"
    ENFORCE = "enforce"


class Auth(StrEnum):
    """How the lab's daemons and commands prove who they are."""

    MUNGE = "munge"
    SLURM = "slurm"  # Slurm's own, with no other daemon; since 23.11


@dataclass(frozen=True)
class LabNodes:
    """Equal nodes: `count` nodes with `gpus` GPUs of one type each."""

    gpu_type: str
    gpus: int
    count: int
    cpus: int
    mem_mb: int
    first: int = 1  # the number of the first node, where several classes have one type
    partitions: tuple[str, ...] = ("batch",)
    gres: tuple[tuple[str, int], ...] = ()  # all kinds, in place of the GPUs of one type: "gpu:a100" -> 2, "shard" -> 8
    features: tuple[str, ...] = ()  # besides its type

    @property
    def kinds(self) -> tuple[tuple[str, int], ...]:
        """Its GRES by name and type."""
        return self.gres or (((f"gpu:{self.gpu_type}", self.gpus),) if self.gpus else ())

    def names(self) -> list[str]:
        """Node names, such as a100-1 … a100-4; nodes without GPUs are called by their declared type too."""
        return [f"{self.gpu_type}-{i}" for i in range(self.first, self.first + self.count)]


@dataclass(frozen=True)
class Topology:
    """Nodes in groups of one size: leaf switches under one core (`tree`), or blocks."""

    kind: str
    nodes: int


def parse_topology(text: str) -> Topology:
    """`tree:N` or `block:N`."""
    kind, _, nodes = text.partition(":")
    if kind not in ("tree", "block") or not nodes.isdecimal() or int(nodes) < 1:
        raise InputError(f"cannot read {text!r}", field="--topology", remedy="write tree:N or block:N, N nodes each")
    return Topology(kind, int(nodes))


@dataclass(frozen=True)
class LabSpec:
    """Everything `lab up` needs to know."""

    directory: Path = DEFAULT_DIR
    nodes: tuple[LabNodes, ...] = field(default_factory=lambda: parse_nodes(DEFAULT_NODES))
    accounting: bool = False
    plugin: PluginMode = PluginMode.OFF
    slurm: str = ""  # a release that `lab fetch` brought, such as 24.11; "" is the installed one
    auth: Auth = Auth.MUNGE
    extra_conf: tuple[str, ...] = ()  # lines for slurm.conf, after all others
    clock: float = 1.0  # how many times as fast as real time the lab lives
    settings: tuple[tuple[str, str], ...] = ()  # slurm.conf's names and values, in place of the lab's own
    service: tuple[tuple[str, str | float], ...] = ()  # the same of the service's slurm-rl.toml
    topology: Topology | None = None
    run_nodes: bool = True  # False declares the nodes and starts no slurmd: for measuring large queues

    def node_count(self) -> int:
        return sum(c.count for c in self.nodes)


def parse_nodes(text: str) -> tuple[LabNodes, ...]:
    """`TYPE:GPUS*COUNT[:cpus=N][:mem=GB][:gres=…][:features=…]`, comma-separated; a GPU brings 8 CPUs and 64 GB.

    `gres=gpu/a100/2+gpu/a100_3g.20gb/4+shard/8` replaces the GPUs of one type; `features=ib+fast` come on top of TYPE.
    """
    classes = tuple(_parse_class(part.strip()) for part in text.split(",") if part.strip())
    if not classes:
        raise InputError("no nodes given", field="--nodes", remedy=f'for example "{DEFAULT_NODES}"')
    types = [c.gpu_type for c in classes]
    repeated = sorted({t for t in types if types.count(t) > 1})
    if repeated:
        raise InputError(f"{repeated[0]!r} is given twice", field="--nodes", remedy="write one class per type")
    total = sum(c.count for c in classes)
    if total > MAX_NODES:
        raise InputError(f"{total} nodes are too many, at most {MAX_NODES}", field="--nodes")
    return classes


def _parse_class(text: str) -> LabNodes:
    match = _CLASS.fullmatch(text)
    if match is None:
        raise InputError(
            f"cannot read {text!r}",
            field="--nodes",
            remedy="write TYPE:GPUS*COUNT[:cpus=N][:mem=GB][:gres=…][:features=…], as in a100:8*4",
        )
    gpus, count = int(match["gpus"]), int(match["count"] or 1)
    if count < 1:
        raise InputError(f"{text!r} declares no node", field="--nodes", remedy="write a count of at least 1")
    options = dict(pairs_in(match["options"].split(":")))
    unknown = sorted(set(options) - {"cpus", "mem", "gres", "features"})
    if unknown:
        known = "known: cpus, mem, gres, features"
        raise InputError(f"unknown option {unknown[0]!r} in {text!r}", field="--nodes", remedy=known)
    gres = _gres(options.get("gres", ""), text)
    if gres:
        gpus = sum(n for name, n in gres if name.startswith("gpu:"))
    cpus = _positive(options.get("cpus", str(max(8 * gpus, 8))), text)
    mem_gb = _positive(options.get("mem", str(max(64 * gpus, 64))).upper().removesuffix("G"), text)
    features = tuple(filter(None, options.get("features", "").split("+")))
    return LabNodes(match["type"].lower(), gpus, count, cpus, mem_gb * 1024, gres=gres, features=features)


def _gres(value: str, text: str) -> tuple[tuple[str, int], ...]:
    """`gpu/a100/2+shard/8` by name and type."""
    found = []
    for item in filter(None, value.split("+")):
        *name, number = item.lower().split("/")
        if not 1 <= len(name) <= 2 or not all(name):
            raise InputError(f"cannot read {item!r} in {text!r}", field="--nodes", remedy="write NAME/TYPE/COUNT")
        found.append((":".join(name), _positive(number, text)))
    try:
        node_gres(dict(found), "gres")
    except InputError as error:
        raise InputError(f"{text!r}: {error.message}", field="--nodes") from None
    return tuple(found)


def _positive(value: str, text: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise InputError(f"{value!r} in {text!r} is not a positive number", field="--nodes")
    return int(value)


def check_directory(directory: Path) -> Path:
    """The directory as an absolute path that unix sockets fit below."""
    absolute = directory.absolute()
    if len(str(absolute)) > MAX_DIR_LENGTH:
        raise InputError(
            f"{absolute} is longer than {MAX_DIR_LENGTH} characters, so unix sockets do not fit below it",
            field="--dir",
            remedy="choose a shorter one",
        )
    if re.search(r"[^\w./-]", str(absolute)):
        raise InputError(f"{absolute} holds characters Slurm's configuration cannot carry", field="--dir")
    return absolute
