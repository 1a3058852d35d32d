"""Reads and writes the Standard Workload Format of the Parallel Workloads Archive: 18 numbers a job, -1 is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slurm_rl.traces.files import Source, write_file
from slurm_rl.traces.native import kept, repeated
from slurm_rl.traces.table import LARGEST, ColumnLayout, parse
from slurm_rl.traces.trace import Ints, Labels, Trace

_NAMES = (
    "job_id submit_time wait_time run_time allocated_procs average_cpu used_memory requested_procs requested_time "
    "requested_memory status user group executable queue partition preceding_job think_time"
).split()
_USED = tuple(
    n
    for n in _NAMES
    if n not in ("job_id", "wait_time", "average_cpu", "used_memory", "executable", "preceding_job", "think_time")
)
# The archive's definition; 2 to 4 are parts of a job that was checkpointed or swapped out.
_STATUS = {0: "FAILED", 1: "COMPLETED", 2: "PARTIAL", 3: "COMPLETED", 4: "FAILED", 5: "CANCELLED"}
_HEADER = re.compile(r"^;\s*([A-Za-z]+)\s*:\s*(.*?)\s*$", re.MULTILINE)
_KB_PER_GB = 1024.0 * 1024.0
_BLOCK = 1 << 16


def sniff(head: str) -> bool:
    """True where comments start with ";" or the first row is 18 numbers."""
    for line in head.split("\n"):
        text = line.strip()
        if text.startswith(";"):
            return True
        if text:
            fields = text.split()
            return len(fields) == len(_NAMES) and all(re.fullmatch(r"[-+.\deE]+", f) for f in fields)
    return False


def read(source: Source) -> Trace:
    """Reads an SWF log; `cpus` are the requested processors, else the allocated ones."""
    raw = source.raw
    layout = ColumnLayout(tuple(_NAMES), wholes=_USED, ids=("job_id",), separator=" ", comment=";", header=False)
    table = parse(source, raw, layout)
    screen, count, column = table.screen, table.count, table.wholes
    for name in ("submit_time", "run_time"):
        screen.drop(column[name] == -1, f"{name} is unknown (-1)")
    for name in _USED:
        screen.drop(column[name] < -1, f"{name} is negative")
        screen.drop(column[name] > LARGEST, f"{name} is out of range")
    requested, allocated = column["requested_procs"], column["allocated_procs"]
    cpus = np.where(requested > 0, requested, allocated).astype(np.float64)
    screen.drop(cpus <= 0, "neither requested nor allocated processors are known")
    limit, memory = column["requested_time"], column["requested_memory"]
    ids = table.ids["job_id"]
    screen.note(repeated(ids), "job_id repeats an earlier one")
    notes = screen.finish()
    trace = Trace(
        name="",
        job_id=ids,
        submit_time=column["submit_time"],
        run_time=column["run_time"],
        time_limit=np.where(limit > 0, limit, -1),
        num_gpus=np.zeros(count),
        gpu_type=Labels.blank(count),
        num_nodes=np.zeros(count, dtype=np.int32),
        cpus=cpus,
        mem_gb=np.where(memory >= 0, memory * cpus / _KB_PER_GB, np.nan),
        user=_numbered(column["user"]),
        account=_numbered(column["group"]),
        partition=_numbered(column["partition"]),
        status=_statuses(column["status"]),
        qos=_numbered(column["queue"]),
        job_name=Labels.blank(count),
        priority=np.full(count, np.nan),
        deadline=np.full(count, -1, dtype=np.int64),
        notes=notes,
        meta=_header_of(raw),
    )
    return kept(trace, screen.keep)


def _header_of(raw: bytes) -> dict[str, object]:
    lines = []
    for line in raw[: 1 << 20].split(b"\n"):
        if line.strip() and not line.lstrip().startswith(b";"):
            break
        lines.append(line.decode("utf-8", errors="replace"))
    header = dict(_HEADER.findall("\n".join(lines)))
    meta: dict[str, object] = {}
    for key, name in (("MaxProcs", "max_procs"), ("MaxNodes", "max_nodes"), ("UnixStartTime", "time_origin")):
        digits = re.match(r"\d+", header.get(key, ""))
        if digits:
            meta[name] = int(digits[0])
    if "Computer" in header:
        meta["computer"] = header["Computer"]
    return meta


def _numbered(numbers: Ints) -> Labels:
    """Whole numbers as labels, in order of first appearance; negative is blank."""
    import pandas as pd

    found, names = pd.factorize(np.maximum(numbers, -1))
    codes = found.astype(np.int32)
    blank = np.flatnonzero(np.asarray(names) == -1)
    if len(blank):
        at = int(blank[0])
        codes = np.where(codes == at, -1, codes - (codes > at)).astype(np.int32)
        names = np.delete(names, at)
    return Labels(codes, tuple(str(int(n)) for n in names))


def _statuses(numbers: Ints) -> Labels:
    names = tuple(dict.fromkeys(_STATUS.values()))
    lookup = np.array([*(names.index(_STATUS[code]) for code in range(6)), -1], dtype=np.int32)
    return Labels(lookup[np.where((numbers >= 0) & (numbers <= 5), numbers, 6)], names)


def write_swf(trace: Trace, path: str | Path) -> list[str]:
    """Writes an SWF log and says what the format could not hold."""
    lost = []
    if (trace.num_gpus > 0).any():
        lost.append("GPUs and their types (SWF counts processors only)")
    if (trace.cpus != np.ceil(trace.cpus))[trace.cpus > 0].any():
        lost.append("fractions of processors (rounded up)")
    for field in ("deadline", "priority", "job_name"):
        values = getattr(trace, field)
        known = values.codes >= 0 if isinstance(values, Labels) else ~np.isnan(values) & (values != -1)
        if known.any():
            lost.append(f"{field.removeprefix('job_')}s" if field != "priority" else "priorities")
    write_file(path, _blocks(trace))
    return lost


def _blocks(trace: Trace) -> Iterator[bytes]:
    def numbered(labels: Labels) -> npt.NDArray[np.int64]:
        """Numeric names stay as they are; others are numbered from 1, as the format asks."""
        if labels is trace.partition and len(labels.names) == 1 and not labels.names[0].isdigit():
            return np.full(len(trace), -1, dtype=np.int64)  # a number for the only partition would be another name
        if all(n.isascii() and n.isdigit() for n in labels.names):
            codes = np.array([*map(int, labels.names), -1], dtype=np.int64)
        else:
            codes = np.array([*range(1, len(labels.names) + 1), -1], dtype=np.int64)
        return codes[labels.codes]

    yield b"; Version: 2.2\n"
    for key, name in (("MaxProcs", "max_procs"), ("MaxNodes", "max_nodes"), ("UnixStartTime", "time_origin")):
        if name in trace.meta:
            yield f"; {key}: {trace.meta[name]}\n".encode()
    if trace.meta.get("computer"):
        yield f"; Computer: {trace.meta['computer']}\n".encode()
    codes = {name: code for code, name in _STATUS.items() if code in (0, 1, 2, 5)}
    known = [codes.get(n, 0 if n in ("TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY") else -1) for n in trace.status.names]
    status = np.array([*known, -1], dtype=np.int64)[trace.status.codes]
    ids = trace.job_id if trace.job_id.dtype == np.int64 else np.arange(1, len(trace) + 1, dtype=np.int64)
    cpus = np.ceil(np.where(trace.cpus > 0, trace.cpus, np.maximum(trace.num_gpus, 1.0)))
    memory = np.where(trace.mem_gb >= 0, np.round(trace.mem_gb * _KB_PER_GB / cpus), -1)
    users, groups, queues, partitions = map(numbered, (trace.user, trace.account, trace.qos, trace.partition))
    for a in range(0, len(trace), _BLOCK):
        rows = slice(a, a + _BLOCK)
        procs = [int(v) for v in cpus[rows].tolist()]
        yield "".join(
            f"{i} {s} -1 {r} {p} -1 -1 {p} {t} {int(m)} {st} {u} {g} -1 {q} {v} -1 -1\n"
            for i, s, r, p, t, m, st, u, g, q, v in zip(
                ids[rows].tolist(),
                trace.submit_time[rows].tolist(),
                trace.run_time[rows].tolist(),
                procs,
                trace.time_limit[rows].tolist(),
                memory[rows].tolist(),
                status[rows].tolist(),
                users[rows].tolist(),
                groups[rows].tolist(),
                queues[rows].tolist(),
                partitions[rows].tolist(),
                strict=True,
            )
        ).encode()
