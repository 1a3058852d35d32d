"""Charts of waits, over all jobs and by group."""

from __future__ import annotations

import itertools

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.report.charts import Axis, Chart, Panel, Series
from slurm_rl.report.measured import Comparison, largest, size_groups

POINTS = 160  # of a distribution
TOP_USERS = 12
MOST_ROWS = 16  # partitions, priorities
MOST_USERS = 400  # points of the scatter
MEAN_WAIT = Axis("mean wait", "s", log=True)


def glance(m: Comparison, base: int) -> Chart | None:
    """The main figures as multiples of the base replay's."""
    if len(m.runs) < 2:
        return None
    names = {
        "mean_wait": "mean wait",
        "p99_wait": "p99 wait",
        "max_wait": "max wait",
        "mean_jct": "mean completion",
        "mean_bsld": "slowdown",
        "user_bsld": "user slowdown",
    }
    known = [k for k in names if m.runs[base].metrics[k]]
    if not known:
        return None
    series: list[Series] = []
    for run in m.runs:
        values = [(run.metrics[k], m.runs[base].metrics[k]) for k in known]
        series.append([None if v is None or not b else v / b for v, b in values])
    return Chart(
        "glance",
        "At a glance",
        "Multiples of the baseline: left of the line is better.",
        "rows",
        Axis("figure", "name"),
        Axis("multiple of the baseline", "ratio", log=True),
        [names[k] for k in known],
        [Panel("", series)],
    )


def distribution(m: Comparison, what: str) -> Chart | None:
    """Share of jobs that wait (or take from submission to end) at most so long."""
    values = [
        np.sort((r.result.wait if what == "wait" else r.result.end - m.trace.submit_time)[p])
        for r, p in zip(m.runs, m.picked, strict=True)
    ]
    if not any(len(v) for v in values):
        return None
    low = max(min(float(v[0]) for v in values if len(v)), 1.0)
    high = max(*(float(v[-1]) for v in values if len(v)), low * 10)
    xs = np.geomspace(low, high, POINTS)
    xs[-1] = high  # rounding must not lose the last job
    series: list[Series] = [(np.searchsorted(v, xs, side="right") / max(len(v), 1)).tolist() for v in values]
    title = "Wait" if what == "wait" else "Completion time"
    caption = {
        "wait": "Share of jobs that start within so long of their submission: higher is better."
        " At the left end, those that start at once.",
        "jct": "Share of jobs that are done within so long of their submission, run time included: higher is better.",
    }[what]
    names = {"wait": "wait", "jct": "completion time"}
    axis = Axis(names[what], "s", log=True)
    return Chart(
        f"{what}_cdf", f"{title}: distribution", caption, "lines", axis, Axis("jobs", "share"), xs.tolist(),
        [Panel("", series)],
    )  # fmt: skip


def _rows(m: Comparison, id: str, title: str, caption: str, x: str, code: Array, names: list[str]) -> Chart:
    panel, counts = Panel("", m.mean_waits(code, len(names))), m.jobs_of(code, len(names))
    return Chart(id, title, caption, "rows", Axis(x, "name"), MEAN_WAIT, names, [panel], counts=counts)


def by_size(m: Comparison) -> Chart:
    """Mean wait by job size."""
    code, names = size_groups(m)
    return _rows(m, "by_size", "Wait by job size", "Mean wait of jobs of each size.", "size", code, names)


def by_partition(m: Comparison) -> Chart | None:
    """Mean wait by partition; None if there is one only."""
    part = m.workload.jobs["partition"].astype(np.int64)
    names = list(m.workload.partition_names)
    weight = np.bincount(part[m.prepared.measured], minlength=len(names))
    code, chosen = largest(part, names, weight, MOST_ROWS, "others")
    if len(chosen) < 2:
        return None
    caption = "Mean wait in each partition, the busiest first."
    return _rows(m, "by_partition", "Wait by partition", caption, "partition", code, chosen)


def by_priority(m: Comparison) -> Chart | None:
    """Mean wait by the priority in the trace, else by QOS; None if the trace has neither."""
    values = m.trace.priority
    known = m.prepared.measured & ~np.isnan(values)
    if known.any():
        levels, inverse = np.unique(values[known], return_inverse=True)
        code = np.full(len(values), -1, dtype=np.int64)
        if len(levels) <= MOST_ROWS:
            code[known], names = len(levels) - 1 - inverse, [f"priority {v:g}" for v in levels[::-1]]
        else:  # quarters of the jobs
            cuts = np.unique(np.quantile(values[known], [0, 0.25, 0.5, 0.75, 1]))
            place = np.clip(np.searchsorted(cuts, values[known], side="right") - 1, 0, len(cuts) - 2)
            code[known] = len(cuts) - 2 - place
            names = [f"{a:g} … {b:g}" for a, b in itertools.pairwise(cuts)][::-1]
        caption = "Mean wait by the priority that the trace gives, highest first."
        return _rows(m, "by_priority", "Wait by priority", caption, "priority", code, names)
    qos = m.trace.qos
    if not (qos.codes[m.prepared.measured] >= 0).any():
        return None
    weight = np.bincount(qos.codes[m.prepared.measured & (qos.codes >= 0)], minlength=len(qos.names))
    table, names = largest(np.arange(len(qos.names)), list(qos.names), weight, MOST_ROWS, "others")
    code = np.where(qos.codes >= 0, table[qos.codes], -1)
    caption = "The trace has no priorities; mean wait by QOS instead."
    return _rows(m, "by_priority", "Wait by QOS", caption, "QOS", code, names)


def by_user(m: Comparison) -> Chart | None:
    """Mean wait of the users who ask for most."""
    user = m.trace.user
    if not user.names:
        return None
    mine = m.prepared.measured & (user.codes >= 0)
    volume = m.workload.requests["volume"][m.workload.jobs["request"]] * np.maximum(m.trace.run_time, 0)
    weight = np.bincount(user.codes[mine], weights=volume[mine] + 1e-9, minlength=len(user.names))
    order = np.argsort(-weight, kind="stable")[: min(TOP_USERS, int((weight > 0).sum()))]
    table = np.full(len(user.names) + 1, -1, dtype=np.int64)
    table[order] = np.arange(len(order))
    caption = f"Mean wait of the {len(order)} users with most {m.resource.removesuffix('s')}-hours, largest first."
    return _rows(
        m, "by_user", "Wait by user", caption, "user", table[user.codes], [user.names[u] for u in order.tolist()]
    )


def users(m: Comparison) -> Chart | None:
    """Mean wait of every user, for who gained and who lost; None without users or with one replay only."""
    user = m.trace.user
    if not user.names or len(m.runs) < 2:
        return None
    jobs = np.bincount(user.codes[m.prepared.measured & (user.codes >= 0)], minlength=len(user.names))
    order = np.argsort(-jobs, kind="stable")[: min(MOST_USERS, int((jobs > 0).sum()))]
    table = np.full(len(user.names) + 1, -1, dtype=np.int64)
    table[order] = np.arange(len(order))
    code = table[user.codes]
    left = int((jobs > 0).sum()) - len(order)
    caption = (
        "One point a user, its area the number of jobs. Upwards: mean wait under the policy; below the line, less than"
        " under the baseline." + (f" The {left:,} users with fewest jobs are left out." if left else "")
    )
    return Chart(
        "users",
        "Who gained, who lost",
        caption,
        "scatter",
        Axis("user", "name"),
        MEAN_WAIT,
        [user.names[u] for u in order.tolist()],
        [Panel("", m.mean_waits(code, len(order)))],
        counts=m.jobs_of(code, len(order)),
    )
