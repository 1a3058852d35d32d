"""Charts of what the cluster does over time: queues, utilization, fragmentation, and each node."""

from __future__ import annotations

import math

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.report.charts import Axis, Chart, Heat, Panel, Series
from slurm_rl.report.measured import Comparison, largest
from slurm_rl.report.series import fragmentation, integrals

MOST_TYPES = 6
NODE_ROWS = 160  # of the heat map; larger clusters share rows
TIME = Axis("time since the first submission", "s")


def _asked_type(m: Comparison) -> tuple[Array, list[str]]:
    """The GPU type that each job asks for, of types that anybody waits for, the longest waits first."""
    labels = m.trace.gpu_type
    names = [*labels.names, "any GPU", "no GPU"]
    code = np.where(labels.codes >= 0, labels.codes, len(names) - 2)
    code = np.where(m.trace.num_gpus > 0, code, len(names) - 1)
    waited = np.sum([np.maximum(r.result.wait, 0) for r in m.runs], axis=0)
    return largest(code, names, np.bincount(code, weights=waited, minlength=len(names)), MOST_TYPES, "other types")


def queue(m: Comparison) -> Chart | None:
    """Jobs waiting, by the GPU type they ask for; None if nobody ever waits."""
    code, names = _asked_type(m)
    if not names:
        return None
    if not m.on_gpus:
        names = ["all jobs"]
    means = []
    for run in m.runs:
        waits = run.result.ran & (run.result.start > m.trace.submit_time) & (code >= 0)
        begin, end = m.trace.submit_time[waits], run.result.start[waits]
        means.append(integrals(m.grid, begin, end, np.ones(len(begin)), code[waits], len(names)) / m.grid.width)
    return Chart(
        "queue",
        "Queue",
        "Jobs waiting, by the requested GPU type: lower is better.",
        "lines",
        TIME,
        Axis("jobs waiting", "count"),
        m.grid.middles.tolist(),
        [Panel(n, [s[g].tolist() for s in means]) for g, n in enumerate(names)],
        facet="GPU type asked for",
    )


def utilization(m: Comparison) -> Chart | None:
    """Share allocated, by the nodes' GPU type."""
    types = [n or m.resource.removesuffix("s") for n in m.workload.type_names]
    names = list(dict.fromkeys(types))  # one name at two speeds is one type to people
    kind = np.array([names.index(t) for t in types])[m.workload.nodes["type"]]
    capacity = np.bincount(kind, weights=m.capacity, minlength=len(names))
    present = np.flatnonzero(capacity > 0)
    if not len(present):
        return None
    shares = []
    for run in m.runs:
        job, node, amount = m.amounts(run)
        held = integrals(m.smooth, run.result.start[job], run.result.end[job], amount, kind[node], len(names))
        shares.append(held / np.maximum(capacity[:, None] * m.smooth.width, 1e-9))
    return Chart(
        "utilization",
        "Utilization",
        f"Share of {m.resource} allocated, by the nodes' GPU type: the work is the same, so early is better than late.",
        "lines",
        TIME,
        Axis(f"{m.resource} allocated", "share"),
        m.smooth.middles.tolist(),
        [Panel(f"{names[g]} ({capacity[g]:,.0f})", [s[g].tolist() for s in shares]) for g in present.tolist()],
        facet="GPU type",
    )


def fragmented(m: Comparison) -> Chart | None:
    """Share of what stands free on partly used nodes, while somebody waits."""
    series: list[Series] = []
    for run in m.runs:
        job, node, amount = m.amounts(run)
        ran = run.result.ran
        values = fragmentation(
            m.smooth, m.capacity, node, amount, run.result.start[job], run.result.end[job],
            m.trace.submit_time[ran], run.result.start[ran],
        )  # fmt: skip
        series.append([None if math.isnan(v) else v for v in values.tolist()])
    if not any(v is not None for s in series for v in s):
        return None
    return Chart(
        "fragmentation",
        "Fragmentation",
        f"Of the {m.resource} that stand free while somebody waits, the share on partly used nodes, where large jobs"
        " cannot use them: lower is better. Gaps: nobody waits.",
        "lines",
        TIME,
        Axis(f"free {m.resource} on partly used nodes", "share"),
        m.smooth.middles.tolist(),
        [Panel("", series)],
    )


def occupancy(m: Comparison) -> Heat | None:
    """Which nodes were how busy when, in the order of the cluster file."""
    order = np.argsort(m.workload.node_number, kind="stable")
    order = order[m.capacity[order] > 0]
    if not len(order):
        return None
    classes = m.workload.cluster.classes
    several = len({c.gpu_type for c in classes}) > 1
    label = [(c.gpu_type or "CPU") if several else c.partition for c in classes]
    of_node = [label[c] for c in m.workload.node_class[order].tolist()]
    each = -(-len(order) // NODE_ROWS)
    row = np.full(len(m.capacity), -1, dtype=np.int64)
    names: list[str] = []
    groups: list[tuple[str, int, int]] = []
    i = 0
    while i < len(order):
        # A row's nodes are neighbours of one label.
        until = i
        while until < len(order) and until - i < each and of_node[until] == of_node[i]:
            until += 1
        row[order[i:until]] = len(names)
        low, high = int(m.workload.node_number[order[i]]), int(m.workload.node_number[order[until - 1]])
        names.append(f"{of_node[i]}, node {low}" if low == high else f"{of_node[i]}, nodes {low}–{high}")
        if groups and groups[-1][0] == of_node[i]:
            groups[-1] = (groups[-1][0], groups[-1][1], len(names))
        else:
            groups.append((of_node[i], len(names) - 1, len(names)))
        i = until
    known = row >= 0
    capacity = np.bincount(row[known], weights=m.capacity[known], minlength=len(names))
    cells = []
    for run in m.runs:
        job, node, amount = m.amounts(run)
        mine = known[node]
        job, node, amount = job[mine], node[mine], amount[mine]
        held = integrals(m.grid, run.result.start[job], run.result.end[job], amount, row[node], len(names))
        percent = np.round(100 * held / (capacity[:, None] * m.grid.width))
        cells.append(np.clip(percent, 0, 100).astype(np.uint8))
    caption = (
        f"Each line is {'a node' if each == 1 else f'up to {each} neighbouring nodes'}, time runs to the right;"
        f" the stronger the colour, the more of its {m.resource} are allocated."
    )
    return Heat("occupancy", "Occupancy of nodes", caption, m.grid.middles.tolist(), names, groups, cells)
