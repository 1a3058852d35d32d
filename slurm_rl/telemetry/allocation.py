"""A job's allocation on this node, by Slurm: GPUs by their GRES index, its owner, its start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slurm_rl.slurm.quantities import expand_hosts, timestamp

# gpu:a100:2(IDX:0-1,4); shards and MPS parts name the GPUs they are parts of the same way: shard:3(IDX:0)
_GRES = re.compile(r"(gpu|shard|mps)(?::[^:,()]+)?:(\d+)\(IDX:([\d,-]+)\)")
_NODE_GRES = re.compile(r"(?:^|,)gpu(?::([^:,()]+))?:(\d+)")
_OWNER = re.compile(r"^   UserId=([^\s(]+)\((\d+)\) ", re.MULTILINE)
_STATE = re.compile(r"^   JobState=(\w+) ", re.MULTILINE)
_START = re.compile(r"^   StartTime=(\S+) ", re.MULTILINE)
_NODES = re.compile(r"^   Socks/Node=.*?^   MinCPUsNode=", re.MULTILINE | re.DOTALL)
_NODE = re.compile(r"^     Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)", re.MULTILINE)
_HERE = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED")


@dataclass(frozen=True, slots=True)
class Allocation:
    """A job's part of this node; `gpus` are GRES indexes with how much of each it holds (1, or a number of shards)."""

    job: int
    user: str = ""
    uid: int | None = None
    start: float = 0.0
    gpus: Mapping[int, float] = field(default_factory=dict)


def of_job(job: int, record: str, node: str) -> Allocation | None:
    """Reads `scontrol show job -d JOB`; None if it is not running here (any more), or cannot be believed.

    A user may write anything into a job's name or comment, line breaks included. A record in which a line that counts
    occurs twice is forged, and none of it is believed.
    """
    parts = [list(pattern.finditer(record)) for pattern in (_OWNER, _STATE, _START, _NODES)]
    if not record.startswith(f"JobId={job} ") or any(len(found) != 1 for found in parts):
        return None
    owner, state, start, nodes = (found[0] for found in parts)
    if record.count("Socks/Node=") != 1 or state[1] not in _HERE:
        return None
    for names, gres in _NODE.findall(nodes[0]):
        if node in expand_hosts(names):
            gpus = _indexes(gres)
            if state[1] == "COMPLETING" and not gpus:
                return None  # Slurm has taken them back
            return Allocation(job, owner[1], int(owner[2]), float(timestamp(start[1]) or 0), gpus)
    return None


def _indexes(gres: str) -> dict[int, float]:
    held: dict[int, float] = {}
    for kind, count, listed in _GRES.findall(gres):
        indexes = list(_expanded(listed))
        for index in indexes:
            held[index] = 1.0 if kind == "gpu" else int(count) / len(indexes)
    return held


def _expanded(listed: str) -> Iterator[int]:
    for part in listed.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            yield from range(int(first), int(last or first) + 1)


def gpu_types(record: str) -> list[str]:
    """The type of each GRES index of a node, from `scontrol show node NODE`; "" for untyped ones."""
    match = re.search(r"^   Gres=(\S+)", record, re.MULTILINE)
    return [kind for kind, count in _NODE_GRES.findall(match[1]) for _ in range(int(count))] if match else []
