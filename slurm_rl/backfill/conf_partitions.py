"""`PartitionName=` lines of a slurm.conf: PriorityTier and PriorityJobFactor of each partition."""

from __future__ import annotations

import re

from slurm_rl.domain.limits import PartitionBounds
from slurm_rl.errors import InputError

_PAIR = re.compile(r"(\w+)\s*=\s*(\S+)")
_KEYS = {"prioritytier": ("tier",), "priorityjobfactor": ("factor",), "priority": ("tier", "factor")}


def partition_lines(text: str) -> dict[str, PartitionBounds]:
    """Partitions by name; a line `PartitionName=DEFAULT` holds for those behind it."""
    found: dict[str, PartitionBounds] = {}
    usual: dict[str, int] = {}
    for line in text.replace("\\\n", " ").splitlines():
        pairs = [(name.lower(), value) for name, value in _PAIR.findall(line.split("#", 1)[0])]
        if not pairs or pairs[0][0] != "partitionname":
            continue
        own: dict[str, int] = {}
        for name, value in pairs[1:]:
            for to in _KEYS.get(name, ()):
                if not value.isdecimal():
                    raise InputError(f"must be a whole number ≥ 0, got {value!r}", field=f"{pairs[0][1]}: {name}")
                own[to] = int(value)
        if pairs[0][1].upper() == "DEFAULT":
            usual |= own
            continue
        told = {"tier": 1, "factor": 1} | usual | own  # 1 is Slurm's default of both
        for name in pairs[0][1].split(","):
            found[name] = PartitionBounds(tier=told["tier"], factor=float(told["factor"]))
    return found
