"""Turns Slurm's accounting records, however they were read, into the jobs of a trace."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from slurm_rl.domain.tres import gres_gpus, lone_type, size_mb, typed_gpus
from slurm_rl.traces.assemble import assemble
from slurm_rl.traces.table import Screen
from slurm_rl.traces.trace import Floats, Labels, Trace

_NOT_DONE = ("RUNNING", "PENDING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT")


@dataclass(slots=True)
class Records:
    """Accounting records as columns, one row a record; times in Unix seconds, NaN and "" where unknown."""

    job_id: list[str]  # as sacct's JobID: 12, 12_3 (array task), 12+1 (part of a heterogeneous job), 12.batch (step)
    submit: Floats
    start: Floats
    elapsed: Floats
    limit: Floats  # seconds
    nodes: Floats
    cpus: Floats
    mem_gb: Floats  # of the whole job
    gpus: Floats
    gpu_type: Labels
    user: Labels
    account: Labels
    partition: Labels
    qos: Labels
    state: Labels
    name: Labels
    priority: Floats
    keys: dict[str, Labels] = field(default_factory=dict)  # further columns that tell jobs of one kind
    number: npt.NDArray[np.int64] | None = None  # JobIDRaw, unique where `job_id` of an array task is text
    unlimited: npt.NDArray[np.bool_] | None = None  # Slurm was told that there is no limit
    meta: dict[str, object] = field(default_factory=dict)


def jobs_of(records: Records, screen: Screen) -> Trace:
    """One job a row: steps and jobs that never ran are left out, requeued runs and heterogeneous parts merged.

    A requeued job counts once, from its first submission, with the run time and state of its last run: the earlier
    runs were cut short by Slurm and did not bring it nearer to its end. A heterogeneous job is one job that needs the
    sum of its parts. A resized job has a record for each size: it ran for their sum, and counts with its last size. An
    array task is a job of its own.
    """
    ids = records.job_id
    screen.skip(np.array(["." in i for i in ids], dtype=bool), "job steps belong to their job")
    state = records.state
    undone = np.isin(state.codes, [c for c, name in enumerate(state.names) if name in _NOT_DONE])
    screen.skip(undone, "not finished: its run time is unknown")
    with np.errstate(invalid="ignore"):
        screen.skip(np.isnan(records.start) & ~(records.elapsed > 0), "never started")
        screen.drop(records.elapsed < 0, "Elapsed is negative")
    _merge_sizes(records, screen)
    _merge_requeues(records, screen)
    cut_short = [c for c, name in enumerate(state.names) if name == "REQUEUED"]
    screen.skip(np.isin(state.codes, cut_short), "requeued and not finished since")
    _merge_parts(records, screen)
    if records.unlimited is not None:
        screen.note(records.unlimited, "no time limit (UNLIMITED): taken as unknown")
    texts = np.array(ids, dtype=object)
    numeric = records.number if records.number is not None else whole_ids(texts)
    limit = np.where(records.limit > 0, records.limit, -1.0)
    return assemble(
        screen,
        records.submit,
        records.elapsed,
        absolute=True,
        job_id=numeric if numeric is not None else texts,
        time_limit=limit,
        num_gpus=np.nan_to_num(records.gpus),
        gpu_type=records.gpu_type,
        num_nodes=np.nan_to_num(records.nodes),
        cpus=records.cpus,
        mem_gb=records.mem_gb,
        user=records.user,
        account=records.account,
        partition=records.partition,
        qos=records.qos,
        status=records.state,
        job_name=records.name,
        priority=records.priority,
        keys={name: labels for name, labels in records.keys.items() if (labels.codes >= 0).any()},
        meta=records.meta,
    )


def whole_ids(ids: npt.NDArray[np.int64] | npt.NDArray[np.object_]) -> npt.NDArray[np.int64] | None:
    """The ids as whole numbers, those of steps as their job's; None if one is no number."""
    if ids.dtype == np.int64:
        return ids.astype(np.int64, copy=False)
    heads = [i.partition(".")[0] for i in ids.tolist()]
    return np.array(heads, dtype=np.int64) if all(h.isdigit() and len(h) < 19 for h in heads) else None


def _merge_sizes(records: Records, screen: Screen) -> None:
    """Adds what a job ran for in earlier sizes, each a record of its own in state RESIZING, to its last record."""
    resizing = [c for c, name in enumerate(records.state.names) if name == "RESIZING"]
    earlier = np.isin(records.state.codes, resizing) & screen.keep
    if not earlier.any():
        return
    rows: dict[str, list[int]] = {}
    resized = {records.job_id[row] for row in np.flatnonzero(earlier).tolist()}
    for row in np.flatnonzero(screen.keep).tolist():
        if records.job_id[row] in resized:
            rows.setdefault(records.job_id[row], []).append(row)
    for sizes in rows.values():
        sizes.sort(key=lambda r: records.start[r])
        for before, after in itertools.pairwise(sizes):
            if earlier[before]:
                records.elapsed[after] += records.elapsed[before]
                records.start[after], records.submit[after] = records.start[before], records.submit[before]
        if earlier[sizes[-1]]:
            earlier[sizes[-1]] = False
            screen.skip(np.arange(len(earlier)) == sizes[-1], "resized and not finished since")
    screen.skip(earlier, "earlier sizes of resized jobs: added to their last")


def _merge_requeues(records: Records, screen: Screen) -> None:
    kept = np.flatnonzero(screen.keep).tolist()
    if len({records.job_id[row] for row in kept}) == len(kept):
        return
    rows: dict[str, list[int]] = {}
    for row in kept:
        rows.setdefault(records.job_id[row], []).append(row)
    earlier = np.zeros(len(screen.keep), dtype=bool)
    for runs in rows.values():
        if len(runs) > 1:
            runs.sort(key=lambda r: (records.submit[r], records.start[r]))
            records.submit[runs[-1]] = records.submit[runs[0]]
            earlier[runs[:-1]] = True
    screen.skip(earlier, "earlier runs of requeued jobs: the last run counts, from the first submission")


def _merge_parts(records: Records, screen: Screen) -> None:
    parts: dict[str, list[int]] = {}
    for row, job_id in enumerate(records.job_id):
        if "+" in job_id and screen.keep[row]:
            parts.setdefault(job_id.partition("+")[0], []).append(row)
    merged = np.zeros(len(screen.keep), dtype=bool)
    for rows in parts.values():
        leader, others = rows[0], rows[1:]
        for values in (records.gpus, records.nodes, records.cpus, records.mem_gb):
            values[leader] = np.nansum(values[rows])
        records.elapsed[leader] = np.max(records.elapsed[rows])
        kinds = {c for c in records.gpu_type.codes[rows].tolist() if c >= 0}
        records.gpu_type.codes[leader] = kinds.pop() if len(kinds) == 1 else -1
        merged[others] = True
    screen.skip(merged, "parts of heterogeneous jobs: added to their first part")


def gpus_of(text: str) -> tuple[int, str]:
    """The number of GPUs in a TRES or GRES list, and their type where one is named."""
    counts: dict[str, float] = {}
    for kind, count in gres_gpus(",".join(item for item in text.split(",") if item.startswith("gres"))):
        key = f"gres/gpu:{kind}" if kind else "gres/gpu"
        counts[key] = counts.get(key, 0.0) + count if kind else max(counts.get(key, 0.0), count)
    return gpus_in(counts)


def gpus_in(counts: Mapping[str, float]) -> tuple[int, str]:
    """The number of GPUs in TRES counts, and their type where one is named."""
    typed, others = typed_gpus(counts)
    return round(sum(typed.values()) + others), lone_type(typed)


def gigabytes(text: str) -> float:
    """`16G`, `1024M`, `500000K` or a plain number of megabytes, in GB; NaN where there is none."""
    return size_mb(text) / 1024.0


def duration(text: str) -> float:
    """Seconds in `D-HH:MM:SS`, `HH:MM:SS`, `MM:SS` (with fractions); NaN where there is no limit or no such text."""
    days, dash, clock = text.rpartition("-")
    try:
        parts = [int(p) for p in clock.partition(".")[0].split(":")]
        seconds = 86_400.0 * int(days) if dash else 0.0
    except ValueError:
        return float("nan")
    if len(parts) not in (2, 3):
        return float("nan")
    hours, minutes, rest = (0, *parts)[-3:]
    return seconds + hours * 3600 + minutes * 60 + rest
