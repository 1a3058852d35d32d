"""The dashboard's overview of the machine: counts, GPUs by type, partitions, nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_rl.controller.explain.recent_waits import middle_and_tail
from slurm_rl.slurm.model import SlurmNode, SlurmState

UNTYPED = "gpu"  # how a GPU without a type is called


@dataclass(frozen=True, slots=True)
class Counts:
    """The machine in counts; made once a tick."""

    told: dict[str, Any]
    partitions: Sequence[dict[str, Any]]


def counts(state: SlurmState) -> Counts:
    """What `overview` shows of a state: nothing here names a job or a user."""
    waits: dict[str, list[int]] = defaultdict(list)
    waiting: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    pending = running = tasks = 0
    now = int(state.taken)
    for job in state.jobs:
        name = job.partitions[0] if job.partitions else None
        if job.state == "PENDING":
            pending += 1
            tasks += job.array_task_count
            if name is not None:
                waiting[name] += 1
                if job.eligible(now):
                    waits[name].append(max(0, now - (job.eligible_time or job.submit_time or now)))
        elif job.running:
            running += 1
            if name is not None:
                runs[name] += 1
    names = [p.name for p in state.partitions] or sorted(waiting | runs)
    return Counts(
        {
            "pending": pending,
            "pending_tasks": tasks,
            "running": running,
            "nodes": dict(Counter(_condition(node) for node in state.nodes)),
            "gpus": gpus_by_type(state.nodes),
        },
        [
            {"name": name, "pending": waiting[name], "running": runs[name], "now": middle_and_tail(waits[name])}
            for name in names
        ],
    )


def overview(found: Counts, week: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The counts, with how long jobs of each partition waited in the last week."""
    rows = [row | {"week": dict(week.get(row["name"], {}))} for row in found.partitions]
    return {**found.told, "partitions": rows}


def gpus_by_type(nodes: Iterable[SlurmNode]) -> list[dict[str, Any]]:
    """GPUs of each type: in use, idle, and on nodes that take no jobs."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        for kind, count in node.gpus.items():
            used = min(node.gpus_allocated.get(kind, 0), count)
            of_kind = found[kind or UNTYPED]
            of_kind["used"] += used
            of_kind["idle" if node.usable else "down"] += count - used
    rows = [{"type": kind, **{name: c[name] for name in ("used", "idle", "down")}} for kind, c in found.items()]
    return sorted(rows, key=lambda row: (-(row["used"] + row["idle"] + row["down"]), row["type"]))


def _condition(node: SlurmNode) -> str:
    if not node.usable:
        return "down"
    return "idle" if node.cpus_allocated == 0 else "full" if node.cpus_allocated >= node.cpus else "mixed"


def nodes(state: SlurmState, own: str | None) -> list[dict[str, Any]]:
    """Every node with what is used of it and who uses it; `own`: other users' jobs are counted, not named."""
    on: dict[str, list[Any]] = defaultdict(list)
    for job in state.jobs:
        if job.running:
            for name in job.node_list:
                on[name].append(job)
    return [
        {
            "name": node.name,
            "state": node.state,
            "condition": _condition(node),
            "partitions": list(node.partitions),
            "gpus": [
                {"type": kind or UNTYPED, "count": count, "used": node.gpus_allocated.get(kind, 0)}
                for kind, count in node.gpus.items()
            ],
            "cpus": node.cpus,
            "cpus_used": node.cpus_allocated,
            "mem_mb": node.mem_mb,
            "mem_mb_used": node.mem_mb_allocated,
            "jobs": _named(on[node.name], own),
            "others": sum(own is not None and job.user != own for job in on[node.name]),
        }
        for node in state.nodes
    ]


def _named(jobs: Sequence[Any], own: str | None) -> list[dict[str, Any]]:
    return [{"job_id": j.job_id, "user": j.user, "name": j.name} for j in jobs if own is None or j.user == own]
