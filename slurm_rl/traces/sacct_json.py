"""Reads `sacct --json` of Slurm 22.05 and newer, whose numbers may be plain or wrapped."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slurm_rl.domain.keys import BY_NAME, KEYS
from slurm_rl.traces.files import Source
from slurm_rl.traces.jsonfile import decode, entries_screen
from slurm_rl.traces.slurmjobs import Records, gpus_in, jobs_of
from slurm_rl.traces.trace import Floats, Labels, Trace

_KEYS = {"workdir": "working_directory", "container": "container", "submitline": "submit_line"}


def sniff(head: str) -> bool:
    text = head.lstrip()
    return text[:1] == "{" and ('"jobs"' in text or '"meta"' in text) and '"collection_id"' not in text


def read(source: Source) -> Trace:
    """Reads the jobs; GPUs, CPUs and memory are what was requested, else what was allocated."""
    document = decode(source, source.raw)
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list):
        raise source.error('must be an object with a list "jobs"', remedy="export with sacct --json")
    screen = entries_screen(source, len(jobs))
    rows: list[dict[str, Any]] = []
    unreadable = np.zeros(len(jobs), dtype=bool)
    for i, job in enumerate(jobs):
        try:
            rows.append(_row(job))
        except (KeyError, TypeError, ValueError, AttributeError):
            unreadable[i] = True
            rows.append({})
    screen.drop(unreadable, "the entry is unreadable")

    def column(name: str) -> Floats:
        return np.array([row.get(name, math.nan) for row in rows], dtype=np.float64)

    def labels(name: str) -> Labels:
        return Labels.of([row.get(name) or "" for row in rows])

    records = Records(
        job_id=[row.get("job_id", "") for row in rows],
        submit=column("submit"),
        start=column("start"),
        elapsed=column("elapsed"),
        limit=column("limit"),
        nodes=column("nodes"),
        cpus=column("cpus"),
        mem_gb=column("mem_gb"),
        gpus=column("gpus"),
        gpu_type=labels("gpu_type"),
        user=labels("user"),
        account=labels("account"),
        partition=labels("partition"),
        qos=labels("qos"),
        state=labels("state"),
        name=labels("name"),
        priority=column("priority"),
        keys={key.name: labels(key.name) for key in KEYS},
        number=np.array([row.get("number", -1) for row in rows], dtype=np.int64),
        unlimited=np.array([row.get("unlimited", False) for row in rows], dtype=bool),
    )
    return jobs_of(records, screen)


def _row(job: dict[str, Any]) -> dict[str, Any]:
    time = job["time"]
    start = _number(time.get("start"))
    requested, allocated = job["tres"].get("requested") or [], job["tres"].get("allocated") or []
    wanted = _tres(requested)
    given = wanted | {k: v for k, v in _tres(allocated).items() if k not in wanted}
    gpus, gpu_type = gpus_in(wanted)
    if not gpus:
        gpus, _ = gpus_in(given)
    state = job["state"]["current"]
    name = state[0] if isinstance(state, list) else state
    limit = _number(time.get("limit"))
    return {
        "job_id": _id(job),
        "number": int(job["job_id"]),
        "submit": _number(time["submission"]),
        "start": start if start > 0 else math.nan,
        "elapsed": _number(time["elapsed"]),
        "limit": limit * 60 if limit > 0 else math.nan,
        "unlimited": isinstance(time.get("limit"), dict) and bool(time["limit"].get("infinite")),
        "nodes": given.get("node", math.nan),
        "cpus": given.get("cpu", math.nan),
        "mem_gb": given.get("mem", math.nan) / 1024,
        "gpus": gpus,
        "gpu_type": gpu_type,
        "user": job.get("user") or (job.get("association") or {}).get("user"),
        "account": job.get("account"),
        "partition": job.get("partition"),
        "qos": job.get("qos"),
        "state": str(name).partition(" ")[0],
        "name": job.get("name"),
        "priority": _number(job.get("priority")),
    } | {name: BY_NAME[name].value(str(job.get(field) or "")) for name, field in _KEYS.items()}


def _tres(entries: list[dict[str, Any]]) -> dict[str, float]:
    """Counts as a TRES list names them: `gres/gpu:a100`, `mem` in MB …; the name of `gpu` itself may stand apart."""
    found: dict[str, float] = {}
    for entry in entries:
        kind, name, count = entry["type"], entry.get("name") or "", _number(entry.get("count"))
        if kind.startswith("gres") and name:
            kind += f"/{name}" if kind == "gres" else f":{name}"
        if count >= 0:
            found[kind] = count
    return found


def _number(value: Any) -> float:
    """A plain number, or `{"set": true, "infinite": false, "number": 5}` of later releases; NaN where not set."""
    if isinstance(value, dict):
        if value.get("infinite") or not value.get("set", True):
            return math.nan
        value = value.get("number")
    return math.nan if value is None else float(value)


def _id(job: dict[str, Any]) -> str:
    """The id as sacct prints it: array tasks and parts of heterogeneous jobs show their first job's."""
    array, het = job.get("array") or {}, job.get("het") or {}
    task = _number(array.get("task_id"))
    if _number(array.get("job_id")) > 0 and not math.isnan(task):
        return f"{int(array['job_id'])}_{int(task)}"
    leader = _number(het.get("job_id"))
    if leader > 0:
        offset = _number(het.get("job_offset"))
        return f"{int(leader)}+{0 if math.isnan(offset) else int(offset)}"
    return str(job["job_id"])
