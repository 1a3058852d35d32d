"""Distorts a trace by a level, one kind or several in a row, to test a policy's robustness."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slurm_rl.domain.cluster import Cluster
from slurm_rl.domain.pairs import parse_pairs
from slurm_rl.errors import InputError, unknown_name
from slurm_rl.traces.arrivals import DAY, HOUR
from slurm_rl.traces.files import write_file
from slurm_rl.traces.limits import typed_limits
from slurm_rl.traces.trace import Floats, Ints, Note, Trace

DIP = "capacity-dip"
_DIP_EVERY, _DIP_LENGTH = 12 * HOUR, 2 * HOUR


@dataclass(frozen=True, slots=True)
class Step:
    """One distortion; what the level means depends on the kind."""

    kind: str
    level: float

    @classmethod
    def parse(cls, text: str) -> Step:
        """`KIND=LEVEL`, as in `arrival-noise=0.1`."""
        kind = text.partition("=")[0]
        if kind not in (*KINDS, DIP):
            raise unknown_name("perturbation", kind, (*KINDS, DIP))
        low, high = (0.0, 0.95) if kind == DIP else KINDS[kind].levels
        try:
            level = parse_pairs(text, kind, f"{kind}=LEVEL")[kind]
        except InputError:
            level = math.nan
        if not low <= level <= high:
            raise InputError(
                f"needs a level from {low:g} to {high:g}, got {text!r}", field=kind, remedy=f"{kind}=LEVEL"
            )
        return cls(kind, level)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a distortion does, its levels, and the function."""

    what: str
    levels: tuple[float, float]
    apply: Callable[[Trace, float, np.random.Generator], Trace]


def perturb(trace: Trace, steps: Iterable[Step], seed: int = 0) -> Trace:
    """The trace after all steps, in order; a step's draws depend on the seed, its kind and its place only."""
    for place, step in enumerate(steps):
        if step.kind == DIP:
            continue  # it happens to the cluster: `capacity_dips`
        generator = np.random.default_rng([seed, place, zlib.crc32(step.kind.encode())])
        changed = KINDS[step.kind].apply(trace, step.level, generator)
        note = Note(f"perturbed by {step.kind}={step.level:g}", len(trace))
        trace = replace(changed, notes=(*trace.notes, note)).sorted()
    return trace


def _moved(trace: Trace, submit: Floats) -> Trace:
    """The jobs at other submit times; deadlines move along."""
    times: Ints = np.floor(submit + 0.5).astype(np.int64)
    moved = np.where(trace.deadline >= 0, trace.deadline - trace.submit_time + times, -1)
    return replace(trace, submit_time=times, deadline=moved)


def _arrival_noise(trace: Trace, level: float, generator: np.random.Generator) -> Trace:
    gaps = np.diff(trace.submit_time).astype(np.float64)
    noisy = np.maximum(gaps * (1.0 + level * generator.standard_normal(len(gaps))), 0.0)
    scale = gaps.sum() / noisy.sum() if noisy.sum() > 0 else 1.0
    first = float(trace.submit_time[0]) if len(trace) else 0.0
    return _moved(trace, first + np.concatenate(([0.0], np.cumsum(noisy * scale)))[: len(trace)])


def _durations(trace: Trace, level: float, generator: np.random.Generator) -> Trace:
    factor = np.exp(level * generator.standard_normal(len(trace)))
    return _longer(trace, factor)


def _longer(trace: Trace, factor: Floats) -> Trace:
    run = np.floor(trace.run_time * factor + 0.5).astype(np.int64)
    return replace(trace, run_time=np.where(trace.run_time > 0, np.maximum(run, 1), trace.run_time))


def _phase(trace: Trace, level: float, generator: np.random.Generator) -> Trace:
    first, last = trace.span()
    length = last - first + 1
    shifted: Floats = (trace.submit_time - first + level * DAY).astype(np.float64)
    return _moved(trace, first + shifted % length)


def _burst(trace: Trace, level: float, generator: np.random.Generator) -> Trace:
    into = trace.submit_time % HOUR
    return _moved(trace, trace.submit_time - into + into / level)


def _estimates(trace: Trace, level: float, generator: np.random.Generator) -> Trace:
    known = trace.time_limit > 0
    wished: Floats = trace.time_limit.astype(np.float64) * np.exp(level * generator.standard_normal(len(trace)))
    return replace(trace, time_limit=np.where(known, typed_limits(trace.run_time, wished), trace.time_limit))


def _drift(trace: Trace, level: float, generator: np.random.Generator) -> Trace:
    first, last = trace.span()
    return _longer(trace, 1.0 + level * (trace.submit_time - first) / max(last - first, 1))


KINDS: dict[str, Kind] = {
    "arrival-noise": Kind("gaps between submissions vary by LEVEL (0.1 is 10%)", (0.0, 1.0), _arrival_noise),
    "duration": Kind("run times vary by LEVEL (spread of their logarithm)", (0.0, 3.0), _durations),
    "phase-shift": Kind("submissions come LEVEL days later, the last ones first", (-7.0, 7.0), _phase),
    "burst": Kind("each hour's submissions come LEVEL times as fast at its start", (1.0, 60.0), _burst),
    "estimate-error": Kind(
        "limits vary by LEVEL (spread of their logarithm), not below the run", (0.0, 3.0), _estimates
    ),
    "drift": Kind("run times grow by LEVEL (1 doubles them) from the first job to the last", (-0.9, 10.0), _drift),
}


@dataclass(frozen=True, slots=True)
class Outages:
    """Nodes that go down (`up` 0) or come back (`up` 1), by time; nodes are numbered as in the cluster file."""

    time: Ints
    node: npt.NDArray[np.int32]
    up: npt.NDArray[np.int8]


def capacity_dips(cluster: Cluster, start: int, end: int, level: float, seed: int = 0) -> Outages:
    """Twice a day a random LEVEL of all nodes is gone for two hours."""
    generator = np.random.default_rng([seed, zlib.crc32(DIP.encode())])
    many = round(level * cluster.nodes)
    rows: list[tuple[int, int, int]] = []
    for begin in range(start + _DIP_EVERY // 2, end, _DIP_EVERY):
        for node in np.sort(generator.choice(cluster.nodes, size=many, replace=False)).tolist():
            rows += [(begin, node, 0), (begin + _DIP_LENGTH, node, 1)]
    rows.sort()
    columns: Sequence[Sequence[int]] = list(zip(*rows, strict=True)) or [(), (), ()]
    return Outages(np.array(columns[0], np.int64), np.array(columns[1], np.int32), np.array(columns[2], np.int8))


def write_outages(outages: Outages, path: str | Path) -> None:
    """Writes a CSV `time,node,up`."""
    rows = zip(outages.time.tolist(), outages.node.tolist(), outages.up.tolist(), strict=True)
    write_file(path, [("time,node,up\n" + "".join(f"{t},{n},{u}\n" for t, n, u in rows)).encode()])


def read_outages(path: str | Path) -> Outages:
    """Reads what `write_outages` wrote."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"not readable: {error}", file=str(path)) from None
    if lines[0].strip() != "time,node,up":
        raise InputError("must start with time,node,up", file=str(path), line=1)
    rows = []
    for number, line in enumerate(lines[1:], 2):
        fields = line.strip().split(",")
        if fields == [""]:
            continue
        if len(fields) != 3 or not all(f.isdigit() for f in fields) or fields[2] not in "01":
            raise InputError("expected a time, a node number and 0 or 1", file=str(path), line=number)
        rows.append(tuple(map(int, fields)))
    columns: Sequence[Sequence[int]] = list(zip(*sorted(rows), strict=True)) or [(), (), ()]
    return Outages(np.array(columns[0], np.int64), np.array(columns[1], np.int32), np.array(columns[2], np.int8))
