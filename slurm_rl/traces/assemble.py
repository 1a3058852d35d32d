"""Turns checked columns into a trace: drops bad rows, starts the clock, sorts."""

from __future__ import annotations

import csv

import numpy as np
import numpy.typing as npt

from slurm_rl.traces.files import Source
from slurm_rl.traces.table import LARGEST, ColumnLayout, Screen, whole
from slurm_rl.traces.trace import Floats, Labels, Trace, make_trace


def assemble(screen: Screen, submit: Floats, run: Floats, *, absolute: bool, **columns: object) -> Trace:
    """A trace of the kept rows; `absolute` times become seconds from the first submit, with the origin in `meta`."""
    bounds = {"time_limit": LARGEST, "num_nodes": 2.0**31 - 1, "num_gpus": LARGEST, "cpus": LARGEST, "mem_gb": LARGEST}
    with np.errstate(invalid="ignore"):
        screen.drop(run < 0, "it ends before it starts")
        screen.drop((np.abs(submit) > LARGEST) | (run > LARGEST), "a time is out of range")
        for name, bound in bounds.items():
            if name in columns:
                screen.drop(np.asarray(columns[name]) > bound, f"{name} is out of range")
    screen.drop(np.isnan(submit), "the submit time is unknown")
    screen.drop(np.isnan(run), "the run time is unknown")
    notes = screen.finish()
    rows = np.flatnonzero(screen.keep)
    meta = dict(columns.pop("meta", {}))  # type: ignore[call-overload]  # a dictionary by contract
    times = whole(submit[rows], blank=0)
    if absolute and len(times):
        origin = int(times.min())
        times = times - origin
        meta["time_origin"] = origin
        if "deadline" in columns:
            deadline = np.asarray(columns["deadline"])
            columns["deadline"] = np.where(deadline >= 0, deadline - origin, -1)
    kept = {name: _take(values, rows) for name, values in columns.items()}
    return make_trace("", times, run_time=whole(run[rows], blank=0), notes=notes, meta=meta, **kept)


def _take(values: object, rows: npt.NDArray[np.intp]) -> object:
    if isinstance(values, Labels):
        return values.take(rows)
    if isinstance(values, np.ndarray):
        return values[rows]
    if isinstance(values, dict):
        return {name: _take(column, rows) for name, column in values.items()}
    listed = list(values)  # type: ignore[call-overload]  # a sequence by contract
    return [listed[r] for r in rows.tolist()]


def known(values: Floats) -> Floats:
    """Negative numbers, which many formats write for unknown, as NaN."""
    with np.errstate(invalid="ignore"):
        return np.where(values >= 0, values, np.nan)


def renamed(labels: Labels, names: dict[str, str]) -> Labels:
    """Labels under other names; those mapped to "" become blank, and equal names one."""
    targets = [names.get(n, n) for n in labels.names]
    unique = list(dict.fromkeys(t for t in targets if t))
    lookup = np.array([*(unique.index(t) if t else -1 for t in targets), -1], dtype=np.int32)
    return Labels(lookup[labels.codes], tuple(unique))


def header_of(source: Source, raw: bytes, separator: str = ",") -> tuple[str, ...]:
    """The names in the first line, in lower case."""
    first = raw[: 1 << 16].decode("utf-8", errors="replace").splitlines()[:1]
    fields = next(csv.reader(first, delimiter=separator), [])
    names = tuple(n.strip().lower() or f"column {i}" for i, n in enumerate(fields))  # `sacct -p` ends with a bar
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise source.error(f"the header names {twice[0]!r} twice", line=1, field=twice[0])
    return names


def require(source: Source, names: tuple[str, ...], wanted: tuple[str, ...], expected: str) -> None:
    """Refuses a header without the columns that a format cannot do without."""
    for name in wanted:
        if name not in names:
            raise source.error(f"the header lacks the column {name!r}", line=1, remedy=f"expected {expected}")


def layout_of(names: tuple[str, ...], **kinds: tuple[str, ...]) -> ColumnLayout:
    """A layout with those of the wanted columns that the header has."""
    return ColumnLayout(names, **{kind: tuple(n for n in wanted if n in names) for kind, wanted in kinds.items()})  # type: ignore[arg-type]
