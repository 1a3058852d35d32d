"""Reads Google's cluster traces of 2011 (task_events, job_events) and 2019 (instance_events, collection_events).

They hold no GPUs, so the user declares how much requested CPU, in the trace's own unit, counts as one GPU.
"""

from __future__ import annotations

import ast
import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from slurm_rl.traces.assemble import assemble
from slurm_rl.traces.files import Source
from slurm_rl.traces.jsonfile import entries_screen
from slurm_rl.traces.table import KEPT_LINES
from slurm_rl.traces.trace import Note, Trace

_TASK_2011 = (
    "time missing collection_id instance_index machine type user scheduling_class priority cpus memory disk different"
).split()
_JOB_2011 = "time missing collection_id type user scheduling_class name logical_name".split()
_TYPES_2011 = "SUBMIT SCHEDULE EVICT FAIL FINISH KILL LOST UPDATE_PENDING UPDATE_RUNNING".split()
_TYPES_2019 = "SUBMIT QUEUE ENABLE SCHEDULE EVICT FAIL FINISH KILL LOST UPDATE_PENDING UPDATE_RUNNING".split()
_ENDS = {"EVICT": "NODE_FAIL", "FAIL": "FAILED", "FINISH": "COMPLETED", "KILL": "CANCELLED", "LOST": "NODE_FAIL"}
_BEYOND = 2**63 - 1  # "after the trace"
_MICRO = 1e6


@dataclass(slots=True)
class _Job:
    """What the events say about one job so far; times in seconds."""

    submit: float = math.nan
    start: float = math.nan
    end: float = math.nan
    running: set[int] = field(default_factory=set)
    cpus: dict[int, float] = field(default_factory=dict)
    user: str = ""
    name: str = ""
    state: str = ""  # as the job's own events say it
    task_state: str = ""  # as its last task ended
    priority: float = math.nan
    before: bool = False


def sniff(head: str) -> bool:
    """True for event rows of either year."""
    first = head.lstrip().split("\n", 1)[0].strip()
    if first.startswith("{"):
        return '"collection_id"' in first and '"type"' in first
    fields = first.split(",")
    if "collection_id" in fields:
        return "time" in fields and "type" in fields
    at = {len(_TASK_2011): 5, len(_JOB_2011): 3}.get(len(fields))
    return at is not None and fields[0].isdigit() and fields[2].isdigit() and fields[at] in set("012345678")


def sniff_files(files: dict[str, bytes]) -> bool:
    return any(part in name for name in files for part in ("task_events", "instance_events"))


def read(source: Source, cpus_per_gpu: float | None = None) -> Trace:
    """Reads jobs: from the first task's start to the last task's end, on ⌈requested CPU / `cpus_per_gpu`⌉ GPUs.

    With `cpus_per_gpu` 0 the jobs have no GPUs. Jobs from before the trace, and those without an end in it, are left
    out and counted.
    """
    if cpus_per_gpu is None or not 0 <= cpus_per_gpu < math.inf:
        raise source.error(
            "Google's traces hold no GPUs, so the mapping must be declared",
            remedy="give --cpus-per-gpu X: this much requested CPU (the largest machine has 1) is one GPU; 0: none",
        )
    jobs: dict[str, _Job] = {}
    bad: list[int] = []
    events = 0
    for raw in source.files.values():
        for line, row in _rows(raw):
            events += 1
            try:
                _apply(jobs, row)
            except (KeyError, TypeError, ValueError, IndexError, SyntaxError):
                bad.append(line)
    if len(bad) * 2 > events:
        raise source.error(
            f"{len(bad)} of {events} events are unreadable", line=bad[0], remedy="is this an event table?"
        )
    if not any(job.cpus for job in jobs.values()):
        raise source.error(
            "no event has the requested CPU",
            remedy="give task_events (2011) or instance_events (2019), or the directory that holds them",
        )
    return _trace(source, jobs, bad, cpus_per_gpu)


def _trace(source: Source, jobs: dict[str, _Job], bad: list[int], cpus_per_gpu: float) -> Trace:
    found = list(jobs.values())
    screen = entries_screen(source, len(found))
    if bad:
        screen.notes.append(Note("the event is unreadable", len(bad), tuple(bad[:KEPT_LINES]), dropped=True))
    start, end = (np.array([getattr(j, n) for j in found], dtype=np.float64) for n in ("start", "end"))
    asked = np.array([sum(j.cpus.values()) for j in found], dtype=np.float64)
    open_end = np.array([bool(j.running) for j in found], dtype=bool)
    screen.skip(np.array([j.before for j in found], dtype=bool), "submitted before the trace begins")
    screen.skip(np.isnan(start), "never started")
    screen.skip(open_end | np.isnan(end), "still running when the trace ends: its run time is unknown")
    screen.drop(asked <= 0, "no CPU was requested")
    gpus = np.ceil(np.round(asked / cpus_per_gpu, 9)) if cpus_per_gpu else np.zeros(len(found))
    return assemble(
        screen,
        np.array([j.submit for j in found], dtype=np.float64),
        end - start,
        absolute=True,
        job_id=np.array(list(jobs), dtype=object),
        num_gpus=gpus,
        user=[j.user for j in found],
        status=[j.state or j.task_state for j in found],
        job_name=[j.name for j in found],
        priority=np.array([j.priority for j in found], dtype=np.float64),
        meta={"cpus_per_gpu": cpus_per_gpu},
    )


def _rows(raw: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and events; the year shows in the shape."""
    if raw.lstrip()[:1] == b"{":
        yield from _json_rows(raw.split(b"\n"))
        return
    lines = io.StringIO(raw.decode("utf-8", errors="replace"), newline=None)
    first = lines.readline()
    if "collection_id" in first:
        names, offset = [n.strip() for n in first.strip().split(",")], 1
        year = 2019
    else:
        names, offset, year = (_TASK_2011 if first.count(",") > 8 else _JOB_2011), 0, 2011
        lines.seek(0)
    for line, fields in enumerate(csv.reader(lines), 1 + offset):
        if fields:
            row: dict[str, Any] = dict(zip(names, fields, strict=False)) if len(fields) == len(names) else {}
            row["year"] = year
            yield line, row


def _json_rows(lines: list[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(lines, 1):
        if text.strip():
            try:
                row = msgspec.json.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError):
                row = {}
            yield line, {**row, "year": 2019} if isinstance(row, dict) else {"year": 2019}


def _apply(jobs: dict[str, _Job], row: dict[str, Any]) -> None:
    """Takes one event into its job."""
    time = int(row["time"])
    kind = _kind(row["type"], row["year"])
    index = None if row.get("instance_index") in (None, "") else int(row["instance_index"])
    asked = _cpus(row)
    priority = math.nan if row.get("priority") in (None, "") else float(row["priority"])
    if str(row.get("collection_type") or 0) not in ("0", "JOB"):
        return  # an alloc set is a reservation, not a job
    job = jobs.setdefault(str(row["collection_id"]), _Job())
    job.user = job.user or str(row.get("user") or "")
    job.name = job.name or str(row.get("collection_logical_name") or row.get("logical_name") or "")
    job.priority = job.priority if math.isnan(priority) else priority
    now = time / _MICRO if time < _BEYOND else math.nan
    if kind == "SUBMIT":
        job.before |= time == 0
        job.submit = now if math.isnan(job.submit) else min(job.submit, now)
    if index is None:  # the job's own event
        job.state = _ENDS.get(kind, job.state)
        return
    if asked is not None:
        job.cpus[index] = asked
    if kind == "SCHEDULE":
        job.running.add(index)
        job.start = now if math.isnan(job.start) else min(job.start, now)
    elif kind in _ENDS and index in job.running and not math.isnan(now):
        job.running.discard(index)
        job.end = now if math.isnan(job.end) else max(job.end, now)
        job.task_state = _ENDS[kind]


def _kind(value: Any, year: int) -> str:
    text = str(value)
    if text.isdigit():
        return (_TYPES_2019 if year == 2019 else _TYPES_2011)[int(text)]
    if text not in _TYPES_2019:
        raise ValueError
    return text


def _cpus(row: dict[str, Any]) -> float | None:
    request = row.get("resource_request")
    if isinstance(request, str) and request.startswith("{"):
        request = ast.literal_eval(request)
    value = request.get("cpus") if isinstance(request, dict) else None
    for name in ("cpus", "resource_request.cpus", "resource_request_cpus"):
        value = row.get(name) if value in (None, "") else value
    return None if value in (None, "") else float(value)
