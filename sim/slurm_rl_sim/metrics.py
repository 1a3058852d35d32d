"""Figures of a replay, in seconds or ratios, over the measured jobs; a job that never ran is counted, not averaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from slurm_rl.kernel.arrays import UNLIMITED, Array
from slurm_rl.kernel.build import Workload
from slurm_rl_sim import state as st
from slurm_rl_sim.fragments import queue_lengths, waiting_spans, while_waiting
from slurm_rl_sim.result import Result

BOUND = 10.0  # seconds: the bound of bounded slowdown
Value = float | int | None


def bounded_slowdown(wait: Array, run: Array) -> Array:
    """(wait + run) / max(run, 10 s), at least 1."""
    return np.maximum((wait + run) / np.maximum(run, BOUND), 1.0)


class Measures:
    """What metrics are made of: of the measured jobs that ran, and of the cluster meanwhile; each computed once."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.picked = result.measured & result.ran

    def in_state(self, state: int) -> int:
        """How many measured jobs came to this end."""
        return int((self.result.measured & (self.result.state == state)).sum())

    @cached_property
    def submit(self) -> Array:
        return self.result.trace.submit_time[self.picked]

    @cached_property
    def end(self) -> Array:
        return self.result.end[self.picked]

    @cached_property
    def wait(self) -> Array:
        return (self.result.start[self.picked] - self.submit).astype(float)

    @cached_property
    def run(self) -> Array:
        return (self.end - self.result.start[self.picked]).astype(float)

    @cached_property
    def jct(self) -> Array:
        return (self.end - self.submit).astype(float)

    @cached_property
    def slow(self) -> Array:
        return bounded_slowdown(self.wait, self.run)

    @cached_property
    def slow_by_user(self) -> Array:
        """Each user's mean bounded slowdown."""
        user = self.result.workload.jobs["user"][self.picked]
        count = np.bincount(user)
        found: Array = np.bincount(user, weights=self.slow)[count > 0] / count[count > 0]
        return found

    @property
    def jain(self) -> float:
        each = self.slow_by_user
        return float(each.sum() ** 2 / (len(each) * (each**2).sum()))

    @property
    def deadlines_met(self) -> float | None:
        deadline = self.result.trace.deadline[self.picked]
        due = deadline >= 0
        return float((self.end[due] <= deadline[due]).mean()) if due.any() else None

    @cached_property
    def cluster(self) -> dict[str, Value]:
        return _cluster(self.result, self.picked)


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table: JSON, report, evaluation, rewards of the environment and docs come from it."""

    name: str  # in JSON
    label: str  # for people
    unit: str  # s, share, count or us
    better: int  # -1: less is better, 1: more is, 0: neither
    group: str  # of the report; "": not in it
    meaning: str
    of: Callable[[Measures], Any]  # None: nothing to measure
    of_any: bool = False  # known even if no job ran
    reward: str = ""  # the name by which the environment rewards it
    compared: bool = False  # by `slurm-rl evaluate`


def _percentile(name: str, q: int) -> Callable[[Measures], Any]:
    return lambda m: np.percentile(getattr(m, name), q)


def _of_cluster(name: str) -> Callable[[Measures], Any]:
    return lambda m: m.cluster[name]


_WAITING, _SLOWDOWN, _OUTCOME, _CLUSTER = GROUPS = ("Waiting", "Slowdown", "Fairness and outcome", "Cluster")
METRICS = (
    Metric("jobs", "jobs measured", "count", 0, _OUTCOME, "", lambda m: int(m.result.measured.sum()), of_any=True),
    Metric("completed", "completed", "count", 0, _OUTCOME, "jobs", lambda m: m.in_state(st.COMPLETED), of_any=True),
    Metric("rejected", "never ran", "count", 0, _OUTCOME, "jobs", lambda m: m.in_state(st.REJECTED), of_any=True),
    Metric("killed", "killed at limit", "count", 0, _OUTCOME, "jobs", lambda m: m.in_state(st.KILLED), of_any=True),
    Metric("mean_wait", "mean wait", "s", -1, _WAITING, "from submission to start",
           lambda m: m.wait.mean(), reward="wait", compared=True),
    Metric("p50_wait", "median wait", "s", -1, _WAITING, "half of the jobs wait no longer", _percentile("wait", 50)),
    Metric("p95_wait", "p95 wait", "s", -1, _WAITING, "1 job in 20 waits longer", _percentile("wait", 95)),
    Metric("p99_wait", "p99 wait", "s", -1, _WAITING, "1 job in 100 waits longer",
           _percentile("wait", 99), reward="tail", compared=True),
    Metric("max_wait", "longest wait", "s", -1, _WAITING, "of any job", lambda m: m.wait.max(), compared=True),
    Metric("mean_jct", "mean completion", "s", -1, _WAITING, "from submission to end",
           lambda m: m.jct.mean(), reward="turnaround"),
    Metric("p95_jct", "p95 completion", "s", -1, _WAITING, "", _percentile("jct", 95)),
    Metric("p99_jct", "p99 completion", "s", -1, _WAITING, "", _percentile("jct", 99)),
    Metric("mean_bsld", "mean slowdown", "count", -1, _SLOWDOWN, "bounded; short jobs that wait long weigh most",
           lambda m: m.slow.mean(), reward="bsld", compared=True),
    Metric("geomean_bsld", "geometric mean", "count", -1, _SLOWDOWN, "the slowdown of a typical job",
           lambda m: np.exp(np.log(m.slow).mean()), reward="typical", compared=True),
    Metric("user_bsld", "mean over users", "count", -1, _SLOWDOWN, "each user counts once",
           lambda m: m.slow_by_user.mean(), reward="users", compared=True),
    Metric("mean_slowdown", "unbounded mean", "count", -1, _SLOWDOWN, "jobs of seconds weigh even more",
           lambda m: ((m.wait + m.run) / np.maximum(m.run, 1.0)).mean(), reward="slowdown"),
    Metric("makespan", "makespan", "s", -1, _CLUSTER, "first submission to last end",
           lambda m: m.end.max() - m.submit.min()),
    Metric("utilization", "utilization", "share", 1, _CLUSTER, "allocated over the makespan",
           _of_cluster("utilization"), reward="utilization", compared=True),
    Metric("flops_utilization", "utilization by speed", "share", 1, _CLUSTER, "faster GPUs count for more",
           _of_cluster("flops_utilization")),
    Metric("gpu_allocation_rate", "allocated while jobs wait", "share", 1, _CLUSTER, "share of GPUs",
           _of_cluster("gpu_allocation_rate")),
    Metric("fragmentation", "fragmentation", "share", -1, _CLUSTER,
           "share of the free resources on partly used nodes while jobs wait", _of_cluster("fragmentation")),
    Metric("queue_max", "longest queue", "count", -1, _CLUSTER, "jobs", _of_cluster("queue_max")),
    Metric("queue_mean", "mean queue", "count", -1, _CLUSTER, "jobs", _of_cluster("queue_mean")),
    Metric("jain_users", "Jain index of users", "count", 1, _OUTCOME, "1: all users are slowed down alike",
           lambda m: m.jain, reward="fairness", compared=True),
    Metric("sla_met", "deadlines met", "share", 1, _OUTCOME, "of jobs that have one",
           lambda m: m.deadlines_met, reward="deadline"),
    Metric("energy_kwh", "energy, kWh", "count", -1, _CLUSTER, "estimate from idle and busy watts",
           _of_cluster("energy_kwh"), reward="energy"),
    # Of several replays side by side: `replay` fills it in.
    Metric("oracle_gap", "gap to the limit", "share", -1, _SLOWDOWN, "mean slowdown above SJF with true run times",
           lambda m: None),
    # Of this machine's speed, not of the schedule: they differ from run to run and stay out of the report.
    Metric("decision_p50_us", "median pass", "us", -1, "", "", lambda m: _known(m.result.latency_us[0]), of_any=True),
    Metric("decision_p99_us", "p99 pass", "us", -1, "", "", lambda m: _known(m.result.latency_us[1]), of_any=True),
)  # fmt: skip


def metrics(result: Result) -> dict[str, Value]:
    """All metrics by their names; None where a trace has nothing to measure (no deadline, no job that ran)."""
    return some_metrics(result, {m.name for m in METRICS})


def some_metrics(result: Result, names: Collection[str]) -> dict[str, Value]:
    """Metrics of these names alone, which is quicker."""
    measures = Measures(result)
    ran = bool(measures.picked.any())
    return {m.name: _plain(m.of(measures)) if ran or m.of_any else None for m in METRICS if m.name in names}


def _plain(value: Any) -> Value:
    return value if value is None or isinstance(value, int) else float(value)


def as_markdown() -> str:
    """The table as docs/report.md has it."""
    better = {-1: "less", 0: "", 1: "more"}
    rows = [f"| `{m.name}` | {m.label} | {m.unit} | {better[m.better]} | {m.meaning} |" for m in METRICS]
    return "\n".join(["| name | label | unit | better | meaning |", "|---|---|---|---|---|", *rows])


def share_of_the_way(base: float, own: float, limit: float) -> float | None:
    """How far a policy goes from a baseline's slowdown to the limit's, in shares of the way; None if there is none.

    The way is measured in logarithms: from 100 to 10 is as far as from 10 to 1, as with all ratios of slowdowns.
    """
    if not base > limit > 0.0 or own <= 0.0:
        return None
    return math.log(base / own) / math.log(base / limit)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _cluster(result: Result, picked: Array) -> dict[str, Value]:
    """What the cluster did between the first measured submission and the last measured end, all jobs counted."""
    wl = result.workload
    first, last = int(result.trace.submit_time[picked].min()), int(result.end[picked].max())
    span = max(last - first, 1)
    nodes = wl.nodes
    gpus = nodes["gpu"].astype(np.float64)
    on_gpus = bool(gpus.sum() > 0)
    capacity = gpus if on_gpus else np.where(nodes["cpu"] >= UNLIMITED, 0, nodes["cpu"]).astype(np.float64)
    job, node, units = result.entries()
    amount = units * per_unit(wl, on_gpus)[wl.jobs["request"][job]]
    begin, end = np.clip(result.start[job], first, last), np.clip(result.end[job], first, last)
    busy = np.bincount(node, weights=amount * (end - begin), minlength=len(nodes))  # amount-seconds of each node
    total = capacity.sum() * span
    speed = wl.node_speed
    idle_watts = np.array([c.watts_idle for c in wl.cluster.classes])[wl.node_class]
    busy_watts = np.array([c.watts_busy for c in wl.cluster.classes])[wl.node_class]
    share = busy / np.maximum(capacity * span, 1e-9)
    energy = (idle_watts + (busy_watts - idle_watts) * np.minimum(share, 1.0)).sum() * span / 3.6e6
    submit, start = result.trace.submit_time[result.ran], result.start[result.ran]
    queue_max, queue_mean, waiting = _queue(submit, start, first, last)
    all_of_it = (float(result.start[job].min()), float(result.end[job].max() - result.start[job].min() + 1), 1)
    waited, allocated, fragmented = while_waiting(
        capacity, node, amount, result.start[job], result.end[job], waiting, all_of_it
    )[:, 0].tolist()
    return {
        "utilization": float(busy.sum() / total) if total else None,
        "flops_utilization": float((busy * speed).sum() / ((capacity * speed).sum() * span)) if total else None,
        "gpu_allocation_rate": allocated / waited if on_gpus and waited else None,
        "fragmentation": fragmented / waited if waited else None,
        "queue_max": queue_max,
        "queue_mean": queue_mean,
        "energy_kwh": float(energy),
    }


def per_unit(workload: Workload, on_gpus: bool) -> Array:
    """GPUs (or, without any, CPUs) of one unit of each request."""
    requests = workload.requests
    return requests["gpu"] + requests["share"] / 1000.0 if on_gpus else requests["cpu"].astype(np.float64)


def _queue(submit: Array, start: Array, first: int, last: int) -> tuple[int, float, Array]:
    """Longest and mean queue, and the times at which somebody begins to wait or nobody waits any more."""
    time, length = queue_lengths(submit, start)
    if not len(time):
        return 0, 0.0, waiting_spans(time, length)
    held = np.diff(np.append(time, max(last, int(time[-1]))))
    inside = (time >= first) & (time <= last)
    mean = float((length * held)[inside].sum() / max(last - first, 1))
    return int(length.max()), mean, waiting_spans(time, length)
