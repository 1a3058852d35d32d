"""What the dashboard shows of the machine as a whole: counts, GPUs by type, partitions, nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_rl.controller.explain.recent_waits import middle_and_tail
from slurm_rl.slurm.model import SlurmNode, SlurmState

UNTYPED = "gpu"  # how a GPU without a type is called


def overview(state: SlurmState, week: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The machine in counts: nothing here names a job or a user."""
    pending = [job for job in state.jobs if job.pending]
    running = [job for job in state.jobs if job.running]
    waits: dict[str, list[int]] = defaultdict(list)
    for job in pending:
        if job.eligible(state.taken):
            since = job.eligible_time or job.submit_time or int(state.taken)
            for name in job.partitions[:1]:
                waits[name].append(max(0, int(state.taken) - since))
    runs = Counter(name for job in running for name in job.partitions[:1])
    waiting = Counter(name for job in pending for name in job.partitions[:1])
    names = [p.name for p in state.partitions] or sorted(waiting | runs)
    return {
        "pending": len(pending),
        "pending_tasks": sum(job.array_task_count for job in pending),
        "running": len(running),
        "nodes": dict(Counter(_condition(node) for node in state.nodes)),
        "gpus": gpus_by_type(state.nodes),
        "partitions": [
            {
                "name": name,
                "pending": waiting[name],
                "running": runs[name],
                "now": middle_and_tail(waits[name]),
                "week": dict(week.get(name, {})),
            }
            for name in names
        ],
    }


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
