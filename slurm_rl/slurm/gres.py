"""GRES as Slurm's commands print it: the nodes' amounts and use, and a job's request per node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from slurm_rl.domain.gres import MOST_DEVICES, SHARINGS, parse_request, spell
from slurm_rl.errors import InputError

_ABSENT = ("", "(null)", "N/A", "None", "none")
_SEPARATOR = re.compile(r",(?![^(]*\))")  # commas inside (IDX:0,2) or (1/4,0/4) do not separate
# gpu:a100:2(S:0-1), shard:v100:5(3/4,2/4,-/4,0/4), gres/gpu:a100=2, gres:fpga, bandwidth:lustre:no_consume:4G
_ITEM = re.compile(
    r"(?:gres[:/])?(?P<name>[^:()=,\s/]+)(?::(?P<type>(?!no_consume)[^:()=,\s]+?))??(?P<free>:no_consume)?"
    r"(?:[:=](?P<count>\d+)(?P<unit>[KMGT]?))?(?:\((?P<more>.*)\))?",
    re.IGNORECASE,
)
_PARTS = re.compile(r"(\d+|-)/(\d+)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
PLENTY = (1 << 31) - 1  # of a GRES that is not used up, or that is counted in bytes
WHOLE = -1  # a GPU that is given out whole, in a list of parts
SHARED = -2  # a GPU of which an unknown part is in use


@lru_cache(maxsize=4096)
def _items(text: str) -> tuple[tuple[str, str, int, str], ...]:
    """Name, type, count and what stands in parentheses."""
    if text in _ABSENT:
        return ()
    found = []
    for item in _SEPARATOR.split(text.replace(":(null)", "")):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            continue
        count = PLENTY if match["free"] else int(match["count"] or 1) * _UNITS[(match["unit"] or "").upper()]
        name, kind = match["name"].lower(), (match["type"] or "").lower()
        found.append((name, kind, min(count, PLENTY), match["more"] or ""))
    return tuple(found)


def node_counts(text: str) -> dict[str, int]:
    """A node's Gres or GresUsed by name and type, `{"gpu:a100": 4, "shard:a100": 16}`; without the zeros."""
    found: dict[str, int] = {}
    for name, kind, count, _ in _items(text):
        key = f"{name}:{kind}" if kind else name
        if count:
            found[key] = found.get(key, 0) + count
    return found


def shared_parts(used: str) -> dict[str, tuple[int, ...]]:
    """Of a node's GresUsed: parts in use of each shared GPU, by the way of sharing; WHOLE where it is given out whole.

    22.05 prints no parts but the indices of the GPUs that are shared: these are SHARED in the list, others 0.
    """
    found: dict[str, tuple[int, ...]] = {}
    for name, _, _, more in _items(used):
        if name in SHARINGS[1:] and more:
            parts = tuple(WHOLE if a == "-" else int(a) for a, _ in _PARTS.findall(more))
            found[name] = parts or _indices(more)
    return found


def _indices(more: str) -> tuple[int, ...]:
    """`IDX:0,2-3` as a list: SHARED at these places."""
    listed = more.partition("IDX:")[2]
    numbers = {
        n
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", listed)
        for n in range(int(first), int(last or first) + 1)
        if n < MOST_DEVICES
    }
    return tuple(SHARED if n in numbers else 0 for n in range(max(numbers, default=-1) + 1))


def reports_parts(used: str) -> bool:
    """Whether GresUsed says how much of each shared GPU is in use: since 23.02."""
    return any(name in SHARINGS[1:] and _PARTS.search(more) for name, _, _, more in _items(used))


def asked_of_each_node(
    per_job: str, per_node: str, per_task: str, per_socket: str, nodes: int, tasks: int
) -> tuple[str, str]:
    """What a job asks for of each node beyond GPUs of one type, as `gpu:a100:1,shard:2`; and what is not understood.

    Both are "" for a job that asks for nothing but GPUs of one type, or of any.
    """
    parts = {"job": _items(per_job), "node": _items(per_node), "task": _items(per_task)}
    if _items(per_socket):
        return "", "requests GRES by socket (--gpus-per-socket), which is not understood"
    every = [item for items in parts.values() for item in items]
    kinds = {(name, kind) for name, kind, _, _ in every}
    if not every or (len(kinds) == 1 and every[0][0] == "gpu"):
        return "", ""
    if (parts["job"] or parts["task"]) and nodes > 1:
        return "", "requests several kinds of GRES by job or task, over several nodes, which is not understood"
    if any(name in SHARINGS for name, _, _, _ in parts["task"]):
        return "", "requests shares of GPUs by task, which is not understood"
    counts: dict[str, int] = {}
    for where, items in parts.items():
        for name, kind, count, _ in items:
            key = f"{name}:{kind}" if kind else name
            counts[key] = counts.get(key, 0) + count * (tasks if where == "task" else 1)
    text = spell(counts.items())
    try:
        parse_request(text)
    except InputError as error:
        return "", f"{error.message}, which is not understood"
    return text, ""


def plain(gres: Mapping[str, int]) -> bool:
    """Whether a node has nothing but GPUs of one type."""
    return sum(1 for name, count in gres.items() if count) <= 1 and all(n.partition(":")[0] == "gpu" for n in gres)


def gpus_by_unit(text: str) -> int:
    """CPUs of each GPU in `cpus-per-tres`: gres:gpu:3 (22.05) or gres/gpu:3; 0 if there are none."""
    return sum(count for name, _, count, _ in _items(text) if name == "gpu")
