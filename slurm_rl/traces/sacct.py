"""Reads the output of `sacct -P` or `sacct -p`, with the usual columns in any order."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from slurm_rl.domain.keys import KEYS
from slurm_rl.domain.tres import tres_counts
from slurm_rl.traces.assemble import header_of, layout_of, renamed
from slurm_rl.traces.files import Source
from slurm_rl.traces.slurmjobs import Records, duration, gigabytes, gpus_of, jobs_of, whole_ids
from slurm_rl.traces.table import TraceTable, parse
from slurm_rl.traces.trace import Floats, Labels, Trace

_LABELS = (
    "elapsed elapsedraw timelimit timelimitraw reqtres alloctres reqgres allocgres reqmem nnodes allocnodes reqnodes "
    "reqcpus ncpus alloccpus user account partition qos state jobname priority workdir container submitline"
).split()
_COMMAND = "sacct -a -X -P -o JobIDRaw,JobID,Submit,Start,End,Elapsed,Timelimit,State,User,Account,Partition,QOS,"
_COMMAND += "NNodes,ReqCPUS,ReqMem,ReqTRES,JobName,Priority"


def sniff(head: str) -> bool:
    names = head.split("\n", 1)[0].lower().split("|")
    return len(names) > 2 and bool({"jobid", "jobidraw"} & set(names))


def read(source: Source) -> Trace:
    """Reads the records; GPUs, CPUs and memory are what was requested, else what was allocated."""
    names = header_of(source, source.raw, "|")
    for wanted in (("jobid", "jobidraw"), ("submit",), ("elapsed", "elapsedraw", "end"), ("state",)):
        if not set(wanted) & set(names):
            raise source.error(f"the header lacks the column {wanted[0]!r}", line=1, remedy=f"export with {_COMMAND}")
    layout = layout_of(names, labels=tuple(_LABELS), times=("submit", "start", "end"), ids=("jobid", "jobidraw"))
    table = parse(source, source.raw, replace(layout, separator="|"))
    return jobs_of(_records(table), table.screen)


def _records(table: TraceTable) -> Records:
    submit, start, end = table.time("submit"), table.time("start"), table.time("end")
    raw = _first(_each(table, "elapsedraw", _count), _each(table, "elapsed", duration))
    limit = _first(_each(table, "timelimitraw", _count) * 60.0, _each(table, "timelimit", duration))
    tres = ("reqtres", "alloctres")
    nodes = _first(*(_each(table, n, _count) for n in ("reqnodes", "nnodes", "allocnodes")))
    nodes = _first(_positive(nodes), *(_each(table, t, _of("node")) for t in tres))
    cpus = _first(
        *(_positive(_each(table, n, _count)) for n in ("reqcpus", "ncpus", "alloccpus")),
        *(_each(table, t, _of("cpu")) for t in tres),
    )
    memory = _first(*(_each(table, t, _of("mem")) / 1024.0 for t in tres), _memory(table, nodes, cpus))
    gpu_columns = (*tres, "reqgres", "allocgres")
    gpus = _first(*(_positive(_each(table, n, lambda s: float(gpus_of(s)[0]))) for n in gpu_columns))
    text = "jobid" if "jobid" in table.ids else "jobidraw"
    raw_ids = table.ids.get("jobidraw")
    return Records(
        job_id=[str(i) for i in table.ids[text].tolist()],
        submit=submit,
        start=start,
        elapsed=_first(raw, end - start),
        limit=limit,
        nodes=nodes,
        cpus=cpus,
        mem_gb=memory,
        gpus=gpus,
        gpu_type=_types(table, ("reqtres", "reqgres")),
        user=table.label("user"),
        account=table.label("account"),
        partition=table.label("partition"),
        qos=table.label("qos"),
        # "CANCELLED by 1000" names who did it.
        state=renamed(table.label("state"), {n: n.partition(" ")[0] for n in table.label("state").names}),
        name=table.label("jobname"),
        priority=_each(table, "priority", _count),
        keys=_keys(table),
        number=None if raw_ids is None else whole_ids(raw_ids),
        unlimited=_first(_each(table, "timelimitraw", _endless), _each(table, "timelimit", _endless)) == 1.0,
    )


def _keys(table: TraceTable) -> dict[str, Labels]:
    """Those further columns that the export has; the array and the name it has anyway."""
    columns = {key: table.label(key.sacct.lower()) for key in KEYS if key.sacct.lower() in table.labels}
    return {key.name: renamed(labels, {n: key.value(n) for n in labels.names}) for key, labels in columns.items()
            if key.sacct not in ("JobName", "JobID")}  # fmt: skip


def _each(table: TraceTable, column: str, value: Callable[[str], float]) -> Floats:
    """A number for each row, worked out once for each different text."""
    labels = table.label(column)
    values = np.array([*(value(n) for n in labels.names), math.nan], dtype=np.float64)
    return values[labels.codes]


def _of(key: str) -> Callable[[str], float]:
    """What a TRES list counts of one thing; NaN where it does not."""
    return lambda text: tres_counts(text).get(key, math.nan)


def _count(text: str) -> float:
    match = re.match(r"\d+", text)
    return float(match[0]) if match else math.nan


def _endless(text: str) -> float:
    return float(text.upper() == "UNLIMITED")


def _first(*columns: Floats) -> Floats:
    """For each row the first known value."""
    result = columns[0]
    for column in columns[1:]:
        result = np.where(np.isnan(result), column, result)
    return result


def _positive(values: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        return np.where(values > 0, values, np.nan)


def _types(table: TraceTable, columns: tuple[str, ...]) -> Labels:
    for column in columns:
        if column in table.labels:
            labels = table.label(column)
            return renamed(labels, {n: gpus_of(n)[1] for n in labels.names})
    return Labels.blank(table.count)


def _memory(table: TraceTable, nodes: Floats, cpus: Floats) -> Floats:
    """ReqMem before 21.08 ends in n (per node) or c (per CPU); later it is the total per node."""
    per_cpu = _each(table, "reqmem", lambda s: gigabytes(s[:-1]) if s.endswith("c") else math.nan)
    per_node = _each(table, "reqmem", lambda s: gigabytes(s.removesuffix("n")))
    return _first(per_cpu * cpus, per_node * np.where(np.isnan(nodes), 1.0, nodes))
