"""Speeds of jobs on GPU types: configured, learned from jobs that ran on several types, or the vendors' figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from slurm_rl.domain.cluster import published_speed
from slurm_rl.domain.jsonfile import read_json
from slurm_rl.domain.pairs import parse_pairs
from slurm_rl.errors import InputError

_Ratio = tuple[str, str, float, float]  # two types, log of time on the second over the first, weight
_TRUST = 4.0  # comparisons that weigh as much as what is published


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished job: what it was, on how many GPUs of which type, and for how long."""

    user: str
    name: str
    gpus: int
    gpu_type: str
    seconds: float
    busy: float = 1.0  # share of the time that its GPUs worked, where it was measured


@dataclass(frozen=True, slots=True)
class SpeedMatrix:
    """Speeds of GPU types, and of classes of jobs (user, name) where they differ."""

    types: Mapping[str, float]
    classes: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)

    def speed(self, gpu_type: str, user: str = "", name: str = "") -> float:
        """Of a job on a type; 1 is that of a V100."""
        own = self.classes.get((user, name), {})
        key = gpu_type.upper()
        return own.get(key, self.types.get(key, published_speed(gpu_type)))


def parse_speeds(text: str, field: str = "speeds") -> dict[str, float]:
    """Types and speeds from `a100=2,t4=0.45`."""
    wanted = "TYPE=SPEED,… with speeds above 0"
    speeds = parse_pairs(text, field, wanted)
    for name, speed in speeds.items():
        if not 0.0 < speed < 1e6:
            raise InputError(f"must be {wanted}, got '{name}={speed:g}'", field=field)
    return {name.upper(): speed for name, speed in speeds.items()}


def read_speeds(path: Path) -> SpeedMatrix:
    """A matrix from JSON: `{"types": {"T4": 0.45}, "classes": [{"user": "ann", "name": "bert", "T4": 0.3}]}`."""
    value = read_json(path, "no such file", "give types as TYPE=SPEED,… instead")
    if not isinstance(value, dict) or not set(value) <= {"types", "classes"}:
        raise InputError('must be an object with "types" and "classes"', file=str(path))
    types = _speeds(value.get("types", {}), "types", path)
    classes = {}
    for i, row in enumerate(value.get("classes", []), 1):
        if not isinstance(row, dict):
            raise InputError(f"class {i}: must be an object, got {row!r}", file=str(path))
        rest = {k: v for k, v in row.items() if k not in ("user", "name")}
        classes[str(row.get("user", "")), str(row.get("name", ""))] = _speeds(rest, f"class {i}", path)
    return SpeedMatrix(types, classes)


def write_speeds(matrix: SpeedMatrix, path: Path) -> None:
    """A file that `read_speeds` reads back, to four digits."""
    value = {
        "types": {kind: float(f"{speed:.4g}") for kind, speed in sorted(matrix.types.items())},
        "classes": [
            {"user": user, "name": name} | {kind: float(f"{speed:.4g}") for kind, speed in sorted(speeds.items())}
            for (user, name), speeds in sorted(matrix.classes.items())
        ],
    }
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def _speeds(row: object, where: str, path: Path) -> dict[str, float]:
    if not isinstance(row, dict):
        raise InputError(f"{where}: must be an object, got {row!r}", file=str(path))
    for name, speed in row.items():
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 < speed < 1e6:
            raise InputError(f"{where}: the speed of {name} must be above 0, got {speed!r}", file=str(path))
    return {str(name).upper(): float(speed) for name, speed in row.items()}


def learn_speeds(history: Iterable[FinishedRun], prior: Mapping[str, float] | None = None) -> SpeedMatrix:
    """What jobs of the same user, name and size tell that ran on several types.

    Each pair of types that a kind of job ran on gives one ratio of median run times. A type's speed is drawn from the
    prior (published, or given) towards these ratios in proportion to how many there are, and to how busy GPUs were: a
    job that leaves them idle takes as long on any type, which says nothing of the type. A class of jobs is drawn
    likewise from its types' speeds, by all its ratios: an idle class needs no fast type.
    """
    runs: dict[tuple[str, str, int], dict[str, list[FinishedRun]]] = {}
    for ran in history:
        if ran.gpu_type and ran.name and ran.seconds >= 1.0:
            kinds = runs.setdefault((ran.user, ran.name, ran.gpus), {})
            kinds.setdefault(ran.gpu_type.upper(), []).append(ran)
    types = sorted({kind for kinds in runs.values() for kind in kinds})
    start = {kind: math.log((prior or {}).get(kind, published_speed(kind))) for kind in types}
    of_types: list[_Ratio] = []
    of_classes: dict[tuple[str, str], list[_Ratio]] = {}
    for (user, name, _), kinds in runs.items():
        for a, b in ((a, b) for a in kinds for b in kinds if a < b):
            ratio = math.log(_length(kinds[b]) / _length(kinds[a]))
            count = float(min(len(kinds[a]), len(kinds[b])))
            of_classes.setdefault((user, name), []).append((a, b, ratio, count))
            of_types.append((a, b, ratio, count * min(_busy(kinds[a]), _busy(kinds[b]))))
    common = _fit(start, of_types)
    classes = {who: {k: math.exp(v) for k, v in _fit(common, pairs).items()} for who, pairs in of_classes.items()}
    return SpeedMatrix({kind: math.exp(value) for kind, value in common.items()}, classes)


def _length(runs: list[FinishedRun]) -> float:
    return median(ran.seconds for ran in runs)


def _busy(runs: list[FinishedRun]) -> float:
    return sum(ran.busy for ran in runs) / len(runs)


def _fit(start: Mapping[str, float], pairs: list[_Ratio]) -> dict[str, float]:
    """Log speeds whose differences match the ratios, least squares, held to the start with a weight of _TRUST."""
    value = dict(start)
    for _ in range(100 if pairs else 0):
        moved = 0.0
        for kind in start:
            weight, total = _TRUST, _TRUST * start[kind]
            for a, b, ratio, count in pairs:
                # Time on b over time on a is speed of a over speed of b.
                if kind == a:
                    weight, total = weight + count, total + count * (value[b] + ratio)
                elif kind == b:
                    weight, total = weight + count, total + count * (value[a] - ratio)
            moved = max(moved, abs(total / weight - value[kind]))
            value[kind] = total / weight
        if moved < 1e-9:
            break
    return value
