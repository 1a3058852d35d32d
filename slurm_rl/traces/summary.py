"""Figures that describe a trace, alone and against a cluster."""

from __future__ import annotations

import numpy as np

from slurm_rl.domain.cluster import Cluster
from slurm_rl.traces.trace import Floats, Labels, Trace

_SIZES = ((0, 0, "0"), (0, 1, "≤1"), (1, 2, "2"), (2, 4, "3–4"), (4, 8, "5–8"), (8, 16, "9–16"), (16, np.inf, ">16"))


def describe(trace: Trace, cluster: Cluster | None = None) -> dict[str, object]:
    """What a trace holds, as plain values."""
    first, last = trace.span()
    gpu_jobs = trace.num_gpus > 0
    known = trace.time_limit > 0
    value: dict[str, object] = {
        "name": trace.name,
        "format": trace.meta.get("format", ""),
        "sha256": trace.meta.get("sha256", ""),
        "jobs": len(trace),
        "gpu_jobs": int(gpu_jobs.sum()),
        "days": round((last - first) / 86_400, 3),
        "gpu_hours": round(float(np.sum(trace.num_gpus * trace.run_time)) / 3600, 1),
        "users": _used(trace.user),
        "groups": _used(trace.account),
        "partitions": _counts(trace.partition),
        "gpu_types": _counts(trace.gpu_type),
        "states": _counts(trace.status),
        "sizes": _sizes(trace.num_gpus),
        "largest": _largest(trace),
        "run_time": quantiles(trace.run_time.astype(np.float64)),
        "time_limits_known": int(known.sum()),
        "limit_used": quantiles(trace.run_time[known] / trace.time_limit[known]),
        "deadlines": int((trace.deadline >= 0).sum()),
        "notes": [{"what": n.what, "rows": n.rows, "lines": list(n.lines), "dropped": n.dropped} for n in trace.notes],
    }
    if cluster is not None:
        value |= {
            "cluster": cluster.name,
            "nodes": cluster.nodes,
            "gpus": cluster.gpus,
            "load": offered_load(trace, cluster),
        }
    return value


def offered_load(trace: Trace, cluster: Cluster) -> float | None:
    """Work submitted per second of the trace's span over what the cluster does in a second, by GPUs or else by CPUs."""
    first, last = trace.span()
    power = sum(c.count * c.gpus * c.speed for c in cluster.classes)
    # A run time belongs to the GPU type that the row names, or else to speed 1.
    speeds = {c.gpu_type.upper(): c.speed for c in cluster.classes if c.gpus and c.gpu_type}
    named = np.array([*(speeds.get(n.upper(), 1.0) for n in trace.gpu_type.names), 1.0])
    size: Floats = trace.num_gpus * named[trace.gpu_type.codes]
    if not power:
        power = sum(c.count * (c.cpus or 0) * c.speed for c in cluster.classes)
        size = np.nan_to_num(trace.cpus, nan=0.0)
    if last <= first or not power:
        return None
    return round(float(np.sum(size * trace.run_time)) / (power * (last - first)), 4)


def quantiles(values: Floats) -> dict[str, float] | None:
    """Mean and a few quantiles; None where there is nothing to measure."""
    if not len(values):
        return None
    marks = np.quantile(values, (0.1, 0.5, 0.9, 0.99))
    p10, p50, p90, p99 = marks.tolist()
    # A narrow line shows the first five.
    named = {"p50": p50, "p90": p90, "p99": p99, "max": float(values.max()), "p10": p10}
    return {k: round(v, 4) for k, v in {"mean": float(values.mean()), **named}.items()}


def _largest(trace: Trace) -> dict[str, float]:
    """The most that any job asks for, where it is known."""
    asked: dict[str, Floats] = {
        "gpus": trace.num_gpus,
        "nodes": trace.num_nodes.astype(np.float64),
        "cpus": trace.cpus,
        "mem_gb": trace.mem_gb,
        "time_limit": trace.time_limit.astype(np.float64),
    }
    known = {name: values[values > 0] for name, values in asked.items()}  # blank is NaN, or -1
    return {name: float(values.max()) for name, values in known.items() if len(values)}


def _used(labels: Labels) -> int:
    return int(np.unique(labels.codes[labels.codes >= 0]).size)


def _counts(labels: Labels) -> dict[str, int]:
    """Jobs by name, most first; blank is left out."""
    counts = np.bincount(labels.codes[labels.codes >= 0], minlength=len(labels.names))
    order = np.argsort(-counts, kind="stable")
    return {labels.names[i]: int(counts[i]) for i in order if counts[i]}


def _sizes(gpus: Floats) -> dict[str, int]:
    found = {"0": int((gpus == 0).sum())}
    for low, high, name in _SIZES[1:]:
        found[name] = int(((gpus > low) & (gpus <= high)).sum())
    return {k: v for k, v in found.items() if v}
