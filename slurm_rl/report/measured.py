"""The jobs and nodes that all replays share, and groups of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_rl.kernel.arrays import UNLIMITED, Array
from slurm_rl.report.charts import Series
from slurm_rl.report.inputs import ReportedRun, ReportedTrace
from slurm_rl.report.series import Grid
from slurm_rl.report.text import plural
from slurm_rl_sim.metrics import per_unit

SLICES = 168  # of time, in the heat map and for queues
SMOOTH = 56  # of time, where days go up and down under every policy alike


class Comparison:
    """The jobs and nodes that all replays have in common, and what each replay made of them."""

    def __init__(self, prepared: ReportedTrace, runs: Sequence[ReportedRun]) -> None:
        self.prepared, self.runs = prepared, runs
        self.trace, self.workload = prepared.trace, prepared.workload
        self.picked = [prepared.measured & r.result.ran for r in runs]
        submit = self.trace.submit_time[prepared.measured]
        first = int(submit.min()) if len(submit) else 0
        ends = [int(r.result.end[p].max()) for r, p in zip(runs, self.picked, strict=True) if p.any()]
        span = max(max(ends, default=first + 1) - first, 1)
        self.grid, self.smooth = Grid(first, span / SLICES, SLICES), Grid(first, span / SMOOTH, SMOOTH)
        nodes = self.workload.nodes
        self.on_gpus = bool(nodes["gpu"].sum() > 0)
        cpus = np.where(nodes["cpu"] >= UNLIMITED, 0, nodes["cpu"]).astype(np.float64)
        self.capacity: Array = nodes["gpu"].astype(np.float64) if self.on_gpus else cpus
        self.resource = "GPUs" if self.on_gpus else "CPUs"
        self.per_unit: Array = per_unit(self.workload, self.on_gpus)

    def amounts(self, run: ReportedRun) -> tuple[Array, Array, Array]:
        """Pieces of jobs on nodes: (job, node, GPUs or CPUs held)."""
        job, node, units = run.result.entries()
        return job, node, units * self.per_unit[self.workload.jobs["request"][job]]

    def mean_waits(self, group: Array, groups: int) -> list[Series]:
        """Mean wait of the measured jobs of each group (code -1: in none), one series a replay."""
        series = []
        for run, picked in zip(self.runs, self.picked, strict=True):
            mine = picked & (group >= 0)
            count = np.bincount(group[mine], minlength=groups)
            total = np.bincount(group[mine], weights=run.result.wait[mine], minlength=groups)
            series.append([float(t / c) if c else None for t, c in zip(total, count, strict=True)])
        return series

    def jobs_of(self, group: Array, groups: int) -> list[int]:
        mine = self.prepared.measured & (group >= 0)
        counts: list[int] = np.bincount(group[mine], minlength=groups).tolist()
        return counts


def largest(code: Array, names: list[str], weight: Array, most: int, rest: str) -> tuple[Array, list[str]]:
    """The same groups, heaviest first, without empty ones; beyond `most`, the lightest become one."""
    order = [g for g in np.argsort(-weight, kind="stable").tolist() if weight[g] > 0]
    kept = order if len(order) <= most else order[: most - 1]
    table = np.full(len(names), -1, dtype=np.int64)
    table[kept] = np.arange(len(kept))
    chosen = [names[g] for g in kept]
    if len(kept) < len(order):
        table[order[most - 1 :]] = len(kept)
        chosen.append(f"{rest} ({len(order) - len(kept)})")
    return table[code], chosen


def size_groups(m: Comparison) -> tuple[Array, list[str]]:
    """Jobs by GPUs (by CPUs on a cluster without GPUs) in powers of two: (group of each job, names in order)."""
    gpus, cpus = np.nan_to_num(m.trace.num_gpus, nan=0.0), np.nan_to_num(m.trace.cpus, nan=1.0)
    size = gpus if m.on_gpus else np.maximum(cpus, 1)
    # -2: none, -1: a share of one, k: more than 2^(k-1) and at most 2^k.
    power = np.where(size <= 0, -2, np.where(size < 1, -1, np.ceil(np.log2(np.maximum(size, 1)) - 1e-9)))
    present, code = np.unique(power.astype(np.int64)[m.prepared.measured], return_inverse=True)
    group = np.full(len(size), -1, dtype=np.int64)
    group[m.prepared.measured] = code
    what = m.resource
    return group, [_size_name(int(p), what) for p in present]


def _size_name(power: int, what: str) -> str:
    if power < 0:
        return "no GPU" if power == -2 else f"under 1 {what.removesuffix('s')}"
    high, low = 2**power, 2 ** (power - 1) + 1 if power > 1 else 2**power
    return plural(high, what.removesuffix("s")) if low == high else f"{low:,}–{high:,} {what}"
