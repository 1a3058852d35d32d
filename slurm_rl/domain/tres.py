"""Slurm's TRES and GRES lists: counts, sizes and GPUs, in every spelling; for live answers and accounting exports."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from slurm_rl.domain.pairs import pairs_in, parse_pairs

_UNIT_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)B?", re.IGNORECASE)
_THOUSANDS = {"K": 1e3, "M": 1e6, "G": 1e9}
# Requests: gres:gpu:a100:2 (22.05), gres/gpu:a100:2 and gres/gpu:a100=2 (newer). Nodes: gpu:a100:2(S:0-1), (IDX:0-1).
# The type is optional and tried last, so `gpu:8` is a count and `gpu:4090:8` has a type.
_GPU = re.compile(r"(?:gres[:/])?gpu(?::(?P<type>[^:=,()]+))??(?:[:=](?P<count>\d+))?(?:\(.*\))?", re.IGNORECASE)
_SEPARATOR = re.compile(r",(?![^(]*\))")  # commas inside (IDX:0,2) do not separate


def size_mb(text: str) -> float:
    """`4G`, `1024M`, `500000K` or a plain number of megabytes; NaN where the text is none of these."""
    match = _SIZE.fullmatch(text)
    return float(match[1]) * _UNIT_MB[match[2].upper() or "M"] if match else math.nan


@lru_cache(maxsize=4096)
def _counts(text: str) -> tuple[tuple[str, float], ...]:
    pairs = pairs_in(text.split(","))
    found = ((key, size_mb(value) if key == "mem" else _count(value)) for key, value in pairs)
    return tuple((key, value) for key, value in found if not math.isnan(value))


def tres_counts(text: str) -> dict[str, float]:
    """`cpu=4,mem=1G,gres/gpu:a100=2` as numbers, memory in MB; what is no number is left out."""
    return dict(_counts(text))


def tres_weights(text: str) -> dict[str, float]:
    """`PriorityWeightTRES`, as slurm.conf and `scontrol show config` have it."""
    return parse_pairs(text, "PriorityWeightTRES", "TRES=WEIGHT,…")


def _count(text: str) -> float:
    factor = _THOUSANDS.get(text[-1:].upper(), 1.0)
    number = text if factor == 1.0 else text[:-1]
    return float(number) * factor if number.replace(".", "", 1).isdecimal() else math.nan


def typed_gpus(counts: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """GPUs of TRES counts: by type, and those without one; `gres/gpu=4` counts what `gres/gpu:a100=4` says again."""
    typed = {key.partition(":")[2]: n for key, n in counts.items() if key.startswith("gres/gpu:") and n}
    return typed, max(counts.get("gres/gpu", 0.0) - sum(typed.values()), 0.0)


def gres_gpus(text: str) -> Iterator[tuple[str, int]]:
    """(type or "", count) of each GPU item in a GRES request or a node's Gres line."""
    for item in _SEPARATOR.split(text.replace(":(null)", "")):
        match = _GPU.fullmatch(item.strip())
        if match is not None:
            yield match["type"] or "", int(match["count"] or 1)


def lone_type(types: Iterable[str]) -> str:
    """The type of GPUs that are all of one type, else ""."""
    names = list(dict.fromkeys(types))
    return names[0] if len(names) == 1 else ""
