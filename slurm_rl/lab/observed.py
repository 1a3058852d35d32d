"""A trace's jobs on a real Slurm: recorded in a CSV file, and as the result of a replay."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import LOG, Array
from slurm_rl.lab.cluster import evenly_fast
from slurm_rl.slurm.quantities import expand_hosts
from slurm_rl.traces.trace import Trace
from slurm_rl_sim import state as st
from slurm_rl_sim.replay import Prepared, prepare
from slurm_rl_sim.result import Result

COLUMNS = ("job_id", "submit_time", "start_time", "end_time", "state", "nodes", "scheduler", "first_submit")
_BLANK = ("", "None", "N/A")


@dataclass(frozen=True, slots=True)
class Observed:
    """One job; times in seconds since the first submission. `start` is None if it never ran."""

    job_id: str
    submit: float
    start: float | None
    end: float | None
    state: str
    nodes: tuple[str, ...] = ()
    scheduler: str = ""  # Main or Backfill, where it is known
    origin: int | None = None  # Unix time of the first submission: Slurm's backfill plans in whole minutes

    @property
    def ran(self) -> bool:
        return self.start is not None and self.end is not None


def write_observed(path: Path, rows: Iterable[Observed]) -> None:
    """Writes a recorded run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for r in rows:
            start, end, origin = ("" if t is None else t for t in (r.start, r.end, r.origin))
            writer.writerow([r.job_id, r.submit, start, end, r.state, " ".join(r.nodes), r.scheduler, origin])
    temporary.replace(path)


def read_observed(path: Path) -> list[Observed]:
    """Reads a recorded run."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not readable: {error}", file=str(path)) from None
    lacking = [name for name in COLUMNS[:5] if not rows or name not in rows[0]]
    if lacking:
        raise InputError(f"has no column {lacking[0]!r}", file=str(path), remedy=f"expected {','.join(COLUMNS)}")
    found = []
    for line, row in enumerate(rows, 2):
        try:
            start, end = (None if row[k] in _BLANK else float(row[k]) for k in ("start_time", "end_time"))
            nodes = expand_hosts((row.get("nodes") or "").replace(" ", ","))
            found.append(
                Observed(
                    row["job_id"],
                    float(row["submit_time"]),
                    start,
                    end,
                    row["state"],
                    nodes,
                    row.get("scheduler") or "",
                    int(row["first_submit"]) if row.get("first_submit") else None,
                )
            )
        except (TypeError, ValueError) as error:
            raise InputError(f"unreadable row: {error}", file=str(path), line=line) from None
    return found


def as_happened(trace: Trace, rows: Sequence[Observed], *, run_times: bool = True) -> Trace:
    """The trace with the submit times that were observed and, unless told otherwise, the run lengths.

    Jobs that were not observed are left out. The first submission keeps the trace's own time.
    """
    by_id = {r.job_id: r for r in rows}
    keep = np.array([i for i, name in enumerate(trace.job_id.tolist()) if str(name) in by_id], dtype=np.intp)
    trace = trace.take(keep)
    seen = [by_id[str(name)] for name in trace.job_id.tolist()]
    submit = trace.span()[0] + np.array([round(r.submit) for r in seen], dtype=np.int64)
    length = np.array([round(r.end - r.start) if r.start is not None and r.end is not None else -1 for r in seen])
    run = np.where(length >= 0, length, trace.run_time) if run_times else trace.run_time
    return replace(trace, submit_time=submit, run_time=run.astype(np.int64)).sorted()


def result_of_run(
    prepared: Prepared, rows: Sequence[Observed], names: Sequence[str], refused: Mapping[str, str]
) -> tuple[Prepared, Result]:
    """A real run as a result of the replay of what happened; `names` are the nodes in the order of the cluster file."""
    measured_ids = {str(prepared.trace.job_id[i]) for i in np.flatnonzero(prepared.measured)}
    missing = [Observed(i, _asked(prepared.trace, i), None, None, "REJECTED") for i in refused]
    happened = prepare(as_happened(prepared.trace, [*rows, *missing]), evenly_fast(prepared.cluster))
    ids = [str(name) for name in happened.trace.job_id.tolist()]
    by_id = {r.job_id: r for r in rows}
    first = prepared.trace.span()[0]
    count = len(ids)
    start, end = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    state = np.full(count, st.REJECTED, dtype=np.int8)
    rejected: dict[int, str] = {}
    log: list[tuple[int, int]] = []
    log_first, log_count = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    position = _positions(happened, names)
    units = happened.workload.requests["units"][happened.workload.jobs["request"]]
    for j, name in enumerate(ids):
        row = by_id.get(name)
        if row is None or row.start is None or row.end is None:
            rejected[j] = refused.get(name) or f"never started: {row.state if row else 'not submitted'}"
            continue
        start[j], end[j] = first + round(row.start), first + round(row.end)
        state[j] = st.KILLED if row.state == "TIMEOUT" else st.COMPLETED
        log_first[j] = len(log)
        log += _shares([position[n] for n in row.nodes if n in position], int(units[j]))
        log_count[j] = len(log) - log_first[j]
    result = Result(
        happened.trace,
        happened.workload,
        start,
        end,
        state,
        log_first,
        log_count,
        np.array(log, dtype=LOG),
        np.zeros(len(log), dtype=np.int64),
        np.array([name in measured_ids for name in ids], dtype=bool),
        rejected,
        0,
        (float("nan"), float("nan")),
    )
    return happened, result


def _asked(trace: Trace, job: str) -> float:
    at = [str(name) for name in trace.job_id.tolist()].index(job)
    return float(trace.submit_time[at] - trace.span()[0])


def _positions(prepared: Prepared, names: Sequence[str]) -> dict[str, int]:
    number: Array = prepared.workload.node_number
    return {names[int(n)]: at for at, n in enumerate(number)}


def _shares(nodes: list[int], units: int) -> list[tuple[int, int]]:
    """A job's units over its nodes, as evenly as they go."""
    if not nodes:
        return []
    each, more = divmod(units, len(nodes))
    return [(n, each + (i < more)) for i, n in enumerate(nodes) if each + (i < more)]
