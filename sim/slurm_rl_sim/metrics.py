"""Figures of a replay, in seconds or ratios, over the measured jobs; one that never ran is counted, not averaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from slurm_rl.domain.arrays import UNLIMITED, Array
from slurm_rl.jit import kernel
from slurm_rl_sim import state as st
from slurm_rl_sim.result import Result

BOUND = 10.0  # seconds: the bound of bounded slowdown


def bounded_slowdown(wait: Array, run: Array) -> Array:
    """(wait + run) / max(run, 10 s), at least 1."""
    return np.maximum((wait + run) / np.maximum(run, BOUND), 1.0)


def some_metrics(result: Result, names: Collection[str]) -> dict[str, float | int | None]:
    """Metrics of these names alone, which is quicker; else as `metrics`."""
    picked = result.measured & result.ran
    if not set(names) <= _OF_TIMES or not picked.any():
        every = metrics(result)
        return {name: every[name] for name in names}
    return _times(result, picked, names)


def metrics(result: Result) -> dict[str, float | int | None]:
    """All metrics by their names; None where a trace has nothing to measure (no deadline, no job that ran)."""
    measured = result.measured
    picked = measured & result.ran
    figures: dict[str, float | int | None] = {
        "jobs": int(measured.sum()),
        "completed": int((measured & (result.state == st.COMPLETED)).sum()),
        "rejected": int((measured & (result.state == st.REJECTED)).sum()),
        "killed": int((measured & (result.state == st.KILLED)).sum()),
    }
    figures |= dict.fromkeys(_NAMES)
    if picked.any():
        figures |= _times(result, picked, _OF_TIMES) | _cluster(result, picked)
    figures["decision_p50_us"], figures["decision_p99_us"] = (_known(v) for v in result.latency_us)
    return figures


_NAMES = (
    "mean_wait p50_wait p95_wait p99_wait max_wait mean_jct p95_jct p99_jct mean_bsld geomean_bsld user_bsld "
    "mean_slowdown makespan utilization flops_utilization gpu_allocation_rate fragmentation queue_max queue_mean "
    "jain_users sla_met energy_kwh oracle_gap decision_p50_us decision_p99_us"
).split()


_OF_TIMES = frozenset(
    "mean_wait p50_wait p95_wait p99_wait max_wait mean_jct p95_jct p99_jct mean_bsld geomean_bsld user_bsld "
    "mean_slowdown makespan jain_users sla_met".split()
)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _times(result: Result, picked: Array, names: Collection[str]) -> dict[str, float | int | None]:
    submit, start, end = result.trace.submit_time[picked], result.start[picked], result.end[picked]
    wait, run, jct = (start - submit).astype(float), (end - start).astype(float), (end - submit).astype(float)
    slow = bounded_slowdown(wait, run)
    user = result.workload.jobs["user"][picked]
    count = np.bincount(user)
    per_user = np.bincount(user, weights=slow)[count > 0] / count[count > 0]
    deadline = result.trace.deadline[picked]
    due = deadline >= 0
    figures: dict[str, Callable[[], Any]] = {
        "mean_wait": wait.mean,
        "p50_wait": lambda: np.percentile(wait, 50),
        "p95_wait": lambda: np.percentile(wait, 95),
        "p99_wait": lambda: np.percentile(wait, 99),
        "max_wait": wait.max,
        "mean_jct": jct.mean,
        "p95_jct": lambda: np.percentile(jct, 95),
        "p99_jct": lambda: np.percentile(jct, 99),
        "mean_bsld": slow.mean,
        "geomean_bsld": lambda: np.exp(np.log(slow).mean()),
        "user_bsld": per_user.mean,
        "mean_slowdown": ((wait + run) / np.maximum(run, 1.0)).mean,
        "makespan": lambda: end.max() - submit.min(),
        "jain_users": lambda: per_user.sum() ** 2 / (len(per_user) * (per_user**2).sum()),
        "sla_met": (end[due] <= deadline[due]).mean,
    }
    return {n: float(f()) if n != "sla_met" or due.any() else None for n, f in figures.items() if n in names}


def _cluster(result: Result, picked: Array) -> dict[str, float | int | None]:
    """What the cluster did between the first measured submission and the last measured end, all jobs counted."""
    wl = result.workload
    first, last = int(result.trace.submit_time[picked].min()), int(result.end[picked].max())
    span = max(last - first, 1)
    nodes = wl.nodes
    gpus = nodes["gpu"].astype(np.float64)
    on_gpus = bool(gpus.sum() > 0)
    capacity = gpus if on_gpus else np.where(nodes["cpu"] >= UNLIMITED, 0, nodes["cpu"]).astype(np.float64)
    job, node, units = result.entries()
    per_unit = _per_unit(result, on_gpus)
    amount = units * per_unit[wl.jobs["request"][job]]
    begin, end = np.clip(result.start[job], first, last), np.clip(result.end[job], first, last)
    busy = np.bincount(node, weights=amount * (end - begin), minlength=len(nodes))  # amount-seconds of each node
    total = capacity.sum() * span
    speed = wl.speed[0, nodes["type"]]
    idle_watts = np.array([c.watts_idle for c in wl.cluster.classes])[wl.node_class]
    busy_watts = np.array([c.watts_busy for c in wl.cluster.classes])[wl.node_class]
    share = busy / np.maximum(capacity * span, 1e-9)
    energy = (idle_watts + (busy_watts - idle_watts) * np.minimum(share, 1.0)).sum() * span / 3.6e6
    submit, start = result.trace.submit_time[result.ran], result.start[result.ran]
    queue_max, queue_mean, waiting = _queue(submit, start, first, last)
    allocation, fragmentation = _occupancy(capacity, node, amount, result.start[job], result.end[job], waiting)
    return {
        "utilization": float(busy.sum() / total) if total else None,
        "flops_utilization": float((busy * speed).sum() / ((capacity * speed).sum() * span)) if total else None,
        "gpu_allocation_rate": _known(allocation) if on_gpus else None,
        "fragmentation": _known(fragmentation),
        "queue_max": queue_max,
        "queue_mean": queue_mean,
        "energy_kwh": float(energy),
    }


def _per_unit(result: Result, on_gpus: bool) -> Array:
    """GPUs (or, without any, CPUs) of one unit of each shape."""
    shapes = result.workload.shapes
    return shapes["gpu"] + shapes["share"] / 1000.0 if on_gpus else shapes["cpu"].astype(np.float64)


def _queue(submit: Array, start: Array, first: int, last: int) -> tuple[int, float, Array]:
    """Longest and mean queue, and the times at which somebody begins to wait or nobody waits any more."""
    waits = start > submit
    time = np.concatenate([submit[waits], start[waits]])
    change = np.concatenate([np.ones(int(waits.sum())), -np.ones(int(waits.sum()))])
    order = np.lexsort((change, time))
    time, change = time[order], change[order]
    length = np.cumsum(change)
    if not len(time):
        return 0, 0.0, np.zeros((0, 2), dtype=np.int64)
    # Instants count once, after all their changes.
    final = np.append(time[1:] != time[:-1], True)
    time, length = time[final], length[final]
    held = np.diff(np.append(time, max(last, int(time[-1]))))
    inside = (time >= first) & (time <= last)
    mean = float((length * held)[inside].sum() / max(last - first, 1))
    busy = np.concatenate([[0], (length > 0).astype(np.int8), [0]])
    turns = np.flatnonzero(np.diff(busy))
    edges = np.append(time, time[-1])[turns].reshape(-1, 2)
    return int(length.max()), mean, edges.astype(np.int64)


def _occupancy(
    capacity: Array, node: Array, amount: Array, start: Array, end: Array, waiting: Array
) -> tuple[float, float]:
    """While somebody waits: the mean share allocated, and of what is free, the share on partly used nodes."""
    if not len(waiting) or capacity.sum() == 0:
        return float("nan"), float("nan")
    by_start, by_end = np.argsort(start, kind="stable"), np.argsort(end, kind="stable")
    allocated, fragmented = _sweep(
        capacity, node, amount, start, end, by_start, by_end, waiting[:, 0].copy(), waiting[:, 1].copy()
    )
    return allocated, fragmented


@kernel
def _sweep(
    capacity: Array,
    node: Array,
    amount: Array,
    start: Array,
    end: Array,
    by_start: Array,
    by_end: Array,
    wait_from: Array,
    wait_to: Array,
) -> tuple[float, float]:
    free = capacity.copy()
    total = 0.0
    for n in range(len(capacity)):
        total += capacity[n]
    all_free, partial = total, 0.0
    allocated_time, fragmented_time, waited = 0.0, 0.0, 0.0
    i, k, p = 0, 0, 0
    now = start[by_start[0]]
    while k < len(end):
        later = end[by_end[k]]
        if i < len(start):
            later = min(later, start[by_start[i]])
        # The part of now … later in which somebody waits.
        while p < len(wait_from) and wait_to[p] <= now:
            p += 1
        q = p
        while q < len(wait_from) and wait_from[q] < later:
            span = min(later, wait_to[q]) - max(now, wait_from[q])
            waited += span
            allocated_time += span * (total - all_free) / total
            if all_free > 1e-9:
                fragmented_time += span * partial / all_free
            q += 1
        now = later
        while True:
            if k < len(end) and end[by_end[k]] == now:
                e, sign = by_end[k], 1.0
                if start[e] == end[e]:
                    k += 1  # an instant's job takes nothing for any time
                    continue
                k += 1
            elif i < len(start) and start[by_start[i]] == now:
                e, sign = by_start[i], -1.0
                i += 1
                if start[e] == end[e]:
                    continue
            else:
                break
            n = node[e]
            if 1e-9 < free[n] < capacity[n] - 1e-9:
                partial -= free[n]
            free[n] += sign * amount[e]
            all_free += sign * amount[e]
            if 1e-9 < free[n] < capacity[n] - 1e-9:
                partial += free[n]
    if waited == 0.0:
        return np.nan, np.nan
    return allocated_time / waited, fragmented_time / waited
