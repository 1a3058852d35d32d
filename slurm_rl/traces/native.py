"""Reads and writes the project's own trace CSV."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slurm_rl.traces.files import Source, write_file
from slurm_rl.traces.table import ColumnLayout, TraceTable, parse, whole
from slurm_rl.traces.trace import (
    ASKED_COLUMNS,
    KEY_COLUMNS,
    MEASURED_COLUMNS,
    NATIVE_COLUMNS,
    OPTIONAL_COLUMNS,
    Floats,
    Ints,
    Labels,
    Trace,
)

_REQUIRED = ("job_id", "submit_time", "run_time")
_NUMBERS = ("submit_time", "run_time", "time_limit", "num_gpus", "num_nodes", "cpus", "mem_gb", "priority", "deadline")
_TIMES = ("submit_time", "deadline")  # seconds from any origin, or dates
_LABELS = ("gpu_type", "user", "group", "vc", "status", "qos", "name")
_FIELDS = {"group": "account", "vc": "partition", "name": "job_name"}  # columns whose field has another name
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_BLOCK = 1 << 16


def sniff(head: str) -> bool:
    return set(_REQUIRED) <= set(_header(head))


def resembles(head: str) -> bool:
    """True for a header that is meant as ours but lacks a column; asked when no format matches."""
    return len(set(_header(head)) & {*NATIVE_COLUMNS, *OPTIONAL_COLUMNS}) >= 3


def read(source: Source) -> Trace:
    """Reads a native trace; blank is unknown, rows without submit or run time are dropped and noted.

    Dates (2026-01-31T08:00:00, UTC where no zone is given) become seconds from the first submission.
    """
    raw = source.raw
    names = _header(raw[: 1 << 16].decode("utf-8", errors="replace"))
    known = {*NATIVE_COLUMNS, *OPTIONAL_COLUMNS, *ASKED_COLUMNS, *KEY_COLUMNS, *MEASURED_COLUMNS}
    known.add("command")  # for replay --commands
    for name in _REQUIRED:
        if name not in names:
            raise source.error(
                f"the header lacks the column {name!r}", line=1, remedy="expected " + ",".join(NATIVE_COLUMNS)
            )
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise source.error(f"the header names {twice[0]!r} twice", line=1, field=twice[0])
    dated = tuple(n for n in _TIMES if n in names and _has_dates(raw, names.index(n)))
    layout = ColumnLayout(
        names=tuple(names),
        numbers=tuple(n for n in (*_NUMBERS, *MEASURED_COLUMNS) if n in names and n not in dated),
        times=dated,
        labels=tuple(n for n in (*_LABELS, *ASKED_COLUMNS, *KEY_COLUMNS) if n in names),
        ids=("job_id",),
    )
    table = parse(source, raw, layout)
    origin = _count_from_first(table, dated) if "submit_time" in dated else None
    trace = _trace(table)
    if origin is not None:
        trace.meta["time_origin"] = origin
    ignored = [n for n in names if n not in known]
    if ignored:
        trace.meta["ignored_columns"] = ignored
    return trace


def _header(head: str) -> list[str]:
    fields = next(csv.reader(head.splitlines()[:1]), [])
    return [n.strip() or f"column {i}" for i, n in enumerate(fields)]


def _has_dates(raw: bytes, column: int) -> bool:
    """Whether the first value of a column is a date."""
    rows = csv.reader(io.StringIO(raw[: 1 << 16].decode("utf-8", errors="replace")))
    try:
        values = (row[column].strip() for row in itertools.islice(rows, 1, None) if len(row) > column)
        return bool(_DATE.match(next((v for v in values if v), "")))
    except csv.Error:  # a field of megabytes: the parser says where
        return False


def _count_from_first(table: TraceTable, dated: tuple[str, ...]) -> int:
    """Makes the dates seconds from the first submission, which is returned."""
    for name in dated:
        table.numbers[name] = table.time(name)
    submit = table.numbers["submit_time"]
    origin = 0 if np.isnan(submit).all() else int(np.nanmin(submit))
    for name in dated:
        table.numbers[name] = table.numbers[name] - origin
    return origin


def _trace(table: TraceTable) -> Trace:
    screen, number = table.screen, table.number
    submit = number("submit_time")
    missing = np.isnan(submit)
    if table.count and missing.all():
        screen.note(missing, "submit_time is blank in every row: all jobs are submitted at 0")
        submit = np.zeros(table.count)
    else:
        screen.drop(missing, "submit_time is blank")
        table.numbers["submit_time"] = submit
        submit = table.checked("submit_time", low=-1e15)
    run = table.checked("run_time")
    screen.drop(np.isnan(run), "run_time is blank")
    gpus = table.checked("num_gpus")
    limit, deadline = table.seconds("time_limit"), whole(table.checked("deadline", low=-1e15), blank=-1)
    cpus, mem, nodes = table.checked("cpus"), table.checked("mem_gb"), table.checked("num_nodes")
    screen.drop(np.abs(nodes) > 2**31 - 1, "num_nodes is out of range")
    priority = table.checked("priority", low=-1e15)
    measured = {n: table.checked(n) for n in MEASURED_COLUMNS if n in table.numbers}
    ids = table.ids["job_id"]
    screen.drop(np.asarray(ids == "", dtype=bool) & np.ones(table.count, dtype=bool), "job_id is blank")
    screen.note(limit == 0, "time_limit is 0: taken as unknown")
    screen.note(repeated(ids), "job_id repeats an earlier one")
    notes = screen.finish()
    trace = Trace(
        name="",
        job_id=ids,
        submit_time=whole(submit, blank=0),
        run_time=whole(run, blank=0),
        time_limit=np.where(limit > 0, limit, -1),
        num_gpus=np.nan_to_num(gpus, nan=0.0),
        gpu_type=table.label("gpu_type"),
        num_nodes=whole(nodes, blank=0).astype(np.int32),
        cpus=cpus,
        mem_gb=mem,
        user=table.label("user"),
        account=table.label("group"),
        partition=table.label("vc"),
        status=table.label("status"),
        qos=table.label("qos"),
        job_name=table.label("name"),
        priority=priority,
        deadline=deadline,
        notes=notes,
        asked={n: table.label(n) for n in ASKED_COLUMNS if (table.label(n).codes >= 0).any()},
        keys={n: table.label(n) for n in KEY_COLUMNS if (table.label(n).codes >= 0).any()},
        measured=measured,
    )
    return kept(trace, screen.keep)


def kept(trace: Trace, keep: npt.NDArray[np.bool_]) -> Trace:
    """The rows that were kept, sorted by submit time."""
    return (trace if keep.all() else trace.take(np.flatnonzero(keep))).sorted()


def repeated(ids: npt.NDArray[np.int64] | npt.NDArray[np.object_]) -> npt.NDArray[np.bool_]:
    """True where an id stood on an earlier row already."""
    if ids.dtype == np.int64 and len(ids) > 1 and bool(np.all(ids[1:] > ids[:-1])):
        return np.zeros(len(ids), dtype=bool)
    import pandas as pd

    return np.asarray(pd.Series(ids).duplicated().to_numpy(), dtype=bool)


def write_native(trace: Trace, path: str | Path) -> None:
    """Writes a trace so that `read_trace` reads it back equal; compressed when the name ends in .gz, .xz or .zst."""
    write_file(path, _blocks(trace))


def _blocks(trace: Trace) -> Iterator[bytes]:
    fields = {column: _FIELDS.get(column, column) for column in NATIVE_COLUMNS}
    for column in OPTIONAL_COLUMNS:
        field = _FIELDS.get(column, column)
        values = getattr(trace, field)
        known = (
            values.codes >= 0
            if isinstance(values, Labels)
            else ~np.isnan(values)
            if column == "priority"
            else (values != -1)
        )
        if known.any():
            fields[column] = field
    measured = [m for m in MEASURED_COLUMNS if m in trace.measured and not np.isnan(trace.measured[m]).all()]
    further = trace.asked | trace.keys
    asked = [a for a in (*ASKED_COLUMNS, *KEY_COLUMNS) if a in further and (further[a].codes >= 0).any()]
    yield (",".join([*fields, *asked, *measured]) + "\n").encode()
    quoted = {f: [_quoted(n) for n in v.names] for f in fields.values() if isinstance(v := getattr(trace, f), Labels)}
    for start in range(0, len(trace), _BLOCK):
        rows = slice(start, start + _BLOCK)
        texts = [_texts(getattr(trace, f), f, rows, quoted.get(f, [])) for f in fields.values()]
        texts += [_texts(further[a], a, rows, [_quoted(n) for n in further[a].names]) for a in asked]
        texts += [_texts(trace.measured[m], m, rows, []) for m in measured]
        yield "".join([",".join(row) + "\n" for row in zip(*texts, strict=True)]).encode()


def _texts(values: Labels | Ints | Floats, field: str, rows: slice, names: list[str]) -> list[str]:
    if isinstance(values, Labels):
        return [names[c] if c >= 0 else "" for c in values.codes[rows].tolist()]
    if values.dtype == object:
        return [_quoted(v) for v in values[rows].tolist()]
    if values.dtype == np.float64:
        return [number(v) for v in values[rows].tolist()]
    if field in ("time_limit", "deadline", "run_time"):
        return ["" if v == -1 else str(v) for v in values[rows].tolist()]
    if field == "num_nodes":
        return [str(v) if v else "" for v in values[rows].tolist()]
    return [str(v) for v in values[rows].tolist()]


def number(value: float) -> str:
    """The shortest text that reads back as the same number; blank for NaN."""
    if math.isnan(value):
        return ""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _quoted(text: str) -> str:
    if not any(c in text for c in ',"\n\r'):
        return text
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([text])
    return out.getvalue()
