"""Reads a trace of any known format, detected by content, through the cache of parsed traces."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from slurm_rl.domain.keys import parse_keys
from slurm_rl.errors import InputError, unknown_name
from slurm_rl.traces import cache as kept
from slurm_rl.traces import native
from slurm_rl.traces.files import Progress, Source, load, source_of, trace_name
from slurm_rl.traces.trace import Trace

# Name -> module with `sniff(head)` and `read(source, **options)`; asked in this order, strictest first.
FORMATS: dict[str, str] = {
    "native": "slurm_rl.traces.native",
    "swf": "slurm_rl.traces.swf",
    "sacct": "slurm_rl.traces.sacct",
    "sacct-json": "slurm_rl.traces.sacct_json",
    "acme": "slurm_rl.traces.acme",
    "helios": "slurm_rl.traces.helios",
    "philly": "slurm_rl.traces.philly",
    "rltune": "slurm_rl.traces.rltune",
    "pai": "slurm_rl.traces.pai",
    "openb": "slurm_rl.traces.openb",
    "alibaba-spot": "slurm_rl.traces.spot",
    "supercloud": "slurm_rl.traces.supercloud",
    "google": "slurm_rl.traces.google",
    "arrivals": "slurm_rl.traces.arrivalcsv",
}
_HEAD = 1 << 16


def read_trace(
    path: str | Path,
    *,
    format: str | None = None,
    cache: bool = True,
    on_progress: Progress | None = None,
    **options: object,
) -> Trace:
    """Reads a trace file (or a directory of tables); bad rows are dropped, counted and named in `notes`.

    `format` overrides the detection. `on_progress(step, done, total)` is called with bytes. Further options go to the
    reader of the format, which refuses those it does not know.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise unknown_name("trace format", format, FORMATS)
    stored, sha256, is_directory = load(path, on_progress)
    options = {k: v for k, v in options.items() if v is not None}
    key = kept.key(sha256, format, options)
    trace = kept.load(key) if cache else None
    if trace is None:
        total = sum(map(len, stored.values()))
        source = source_of(path, stored, is_directory)
        del stored
        if on_progress:
            on_progress("parsing", 0, total)
        trace = _parse(source, format, options, sha256)
        if cache:
            kept.save(key, trace)
        if on_progress:
            on_progress("parsing", total, total)
    return replace(trace, name=trace_name(path))


def _parse(source: Source, format_name: str | None, options: dict[str, object], sha256: str) -> Trace:
    if not any(re.search(rb"\S", raw) for raw in source.files.values()):
        raise source.error("the file is empty", remedy="is this the right file?")
    name = format_name or detect(source)
    module = _module(name)
    accepted = [p for p in inspect.signature(module.read).parameters if p != "source"]
    for option in options:
        if option not in accepted:
            known = ", ".join(accepted) or "none"
            raise InputError(
                f"the {name} format takes no option {option!r}", file=source.file, remedy=f"known: {known}"
            )
    trace: Trace = module.read(source, **options)
    return replace(trace, meta={"format": name, "sha256": sha256, **trace.meta})


def detect(source: Source) -> str:
    """The name of the format, from the first lines."""
    head = source.raw[:_HEAD].decode("utf-8", errors="replace")
    for name in FORMATS:
        module = _module(name)
        if source.is_directory:
            if hasattr(module, "sniff_files") and module.sniff_files(source.files):
                return name
        elif module.sniff(head):
            return name
    if not source.is_directory and native.resembles(head):
        return "native"  # whose reader says which column is missing
    first = next((line for line in head.splitlines() if line.strip()), "")[:60]
    raise source.error(
        f"unknown trace format; the first line is {first!r}",
        line=1,
        remedy="give --format, one of " + ", ".join(FORMATS),
    )


def _module(name: str) -> ModuleType:
    return importlib.import_module(FORMATS[name])


def chosen_keys(trace: Trace, text: str | None) -> Trace:
    """The trace with those of its keys that are named; all of them where none is named (domain/keys.py)."""
    if text is None:
        return trace
    names = [key.name for key in parse_keys(text)]
    missing = [name for name in names if name not in trace.keys]
    if missing:
        has = f"it has {', '.join(trace.keys)}" if trace.keys else "make it with traces from-slurm --keys"
        raise InputError(f"the trace has no column {missing[0]!r}", field="--keys", remedy=has)
    return trace.with_keys(names)
