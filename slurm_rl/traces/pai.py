"""Reads Alibaba's v2020 PAI tables: jobs made of tasks, each task of equal instances with a share of GPUs and CPUs."""

from __future__ import annotations

import numpy as np

from slurm_rl.traces.assemble import assemble
from slurm_rl.traces.files import Source
from slurm_rl.traces.jsonfile import entries_screen
from slurm_rl.traces.table import ColumnLayout, TraceTable, parse
from slurm_rl.traces.trace import Labels, Trace

_JOB = "job_name inst_id user status start_time end_time".split()
_TASK = "job_name task_name inst_num status start_time end_time plan_cpu plan_mem plan_gpu gpu_type".split()
_STATES = {"Terminated": "COMPLETED", "Failed": "FAILED", "Running": "RUNNING", "Waiting": "PENDING"}


def sniff(head: str) -> bool:
    """True for a task or job table, with or without a header."""
    fields = head.split("\n", 1)[0].strip().split(",")
    return fields in (_JOB, _TASK) or (len(fields) in (len(_JOB), len(_TASK)) and fields[3] in _STATES)


def sniff_files(files: dict[str, bytes]) -> bool:
    return any("pai_task_table" in name for name in files)


def read(source: Source) -> Trace:
    """Reads a directory with pai_task_table and pai_job_table, or a task table alone (then users are unknown).

    A job asks for the sum over its tasks of instances × plan, submits at the job's start time (else its first task's)
    and runs from its first task's start to its last task's end.
    """
    tasks = _table(source, _find(source, "pai_task_table", _TASK), _TASK)
    if tasks is None:
        raise source.error(
            "only the job table is there, and it holds no GPUs",
            remedy="give the directory with pai_job_table.csv and pai_task_table.csv",
        )
    import pandas as pd

    screen = tasks.screen
    number = {n: tasks.checked(n) for n in ("inst_num", "plan_cpu", "plan_mem", "plan_gpu", "start_time", "end_time")}
    screen.drop(np.isnan(number["inst_num"]), "inst_num is blank")
    status = tasks.label("status")
    screen.skip(np.isnan(number["start_time"]), "the task never started")
    screen.skip(np.isnan(number["end_time"]), "the task has no end: still running")
    notes = screen.finish()
    rows = np.flatnonzero(screen.keep)
    number = {n: v[rows] for n, v in number.items()}
    code, names = pd.factorize(tasks.ids["job_name"][rows])
    count = len(names)

    def total(plan: str, scale: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        amounts = np.nan_to_num(number[plan]) * number["inst_num"] * scale
        return np.round(np.bincount(code, amounts, minlength=count), 6)

    start, end = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(start, code, number["start_time"])
    np.maximum.at(end, code, number["end_time"])
    submit, users, states = _jobs(source, names, start, code, status.take(rows))
    jobs = entries_screen(source, count)
    jobs.notes += notes
    with np.errstate(invalid="ignore"):
        late = submit > start
    jobs.note(late, "it was submitted after its first task started: that start counts as the submit time")
    trace = assemble(
        jobs,
        np.where(late, start, submit),
        end - start,
        absolute=False,
        job_id=np.array(names.tolist(), dtype=object),
        num_gpus=total("plan_gpu", 0.01),
        gpu_type=_types(tasks.label("gpu_type").take(rows), code, count),
        cpus=total("plan_cpu", 0.01),
        mem_gb=total("plan_mem", 1.0),
        user=users,
        status=states,
    )
    return trace


def _find(source: Source, name: str, columns: list[str]) -> bytes | None:
    if source.is_directory:
        return next((raw for key, raw in source.files.items() if name in key), None)
    first = source.raw.split(b"\n", 1)[0]
    return source.raw if first.count(b",") == len(columns) - 1 else None


def _table(source: Source, raw: bytes | None, columns: list[str]) -> TraceTable | None:
    if raw is None:
        return None
    numbers = tuple(n for n in columns if n.startswith(("plan_", "inst_num")) or n.endswith("_time"))
    labels = tuple(n for n in columns if n in ("user", "status", "gpu_type"))
    header = raw.startswith(b"job_name,")
    return parse(
        source, raw, ColumnLayout(tuple(columns), numbers=numbers, labels=labels, ids=("job_name",), header=header)
    )


def _jobs(
    source: Source, names: object, start: object, code: object, task_status: Labels
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], list[str], list[str]]:
    """Submit times, users and states by job; from the tasks alone where there is no job table."""
    import pandas as pd

    index = pd.Index(names)  # type: ignore[call-overload]  # an array of strings
    submit = np.asarray(start, dtype=np.float64).copy()
    states = [""] * len(index)
    for job, status in zip(np.asarray(code).tolist(), task_status.strings(), strict=True):
        # One failed task is enough to fail a job.
        if states[job] != "FAILED":
            states[job] = _STATES.get(status, status.upper())
    users = [""] * len(index)
    table = _table(source, _find(source, "pai_job_table", _JOB) if source.is_directory else None, _JOB)
    if table is None:
        return submit, users, states
    where = index.get_indexer(pd.Index(table.ids["job_name"]))
    found = where >= 0
    times = table.number("start_time")[found]
    submit[where[found]] = np.where(np.isnan(times), submit[where[found]], times)
    for job, user, status in zip(
        where[found].tolist(),
        table.label("user").take(np.flatnonzero(found)).strings(),
        table.label("status").take(np.flatnonzero(found)).strings(),
        strict=True,
    ):
        users[job], states[job] = user, _STATES.get(status, status.upper())
    return submit, users, states


def _types(types: Labels, code: object, count: int) -> list[str]:
    """The GPU type of a job; tasks on different types make it "A|B"."""
    found: list[dict[str, None]] = [{} for _ in range(count)]
    for job, name in zip(np.asarray(code).tolist(), types.strings(), strict=True):
        if name and name != "CPU":
            found[job][name] = None
    return ["|".join(f) for f in found]
