"""The comparison table: every figure of every replay, with its multiple of the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_rl.report import contenders
from slurm_rl.report.inputs import Run
from slurm_rl.report.text import ratio, shown

# Figures of this machine's speed, not of the schedule; they differ from run to run and stay out of the report.
SPEED = frozenset({"decision_p50_us", "decision_p99_us"})

# Name in `--json`, name for people, unit, which way is better (-1 less, 1 more, 0 neither), meaning.
FIGURES = (
    ("Waiting", (
        ("mean_wait", "mean wait", "s", -1, "from submission to start"),
        ("p50_wait", "median wait", "s", -1, "half of the jobs wait no longer"),
        ("p95_wait", "p95 wait", "s", -1, "1 job in 20 waits longer"),
        ("p99_wait", "p99 wait", "s", -1, "1 job in 100 waits longer"),
        ("max_wait", "longest wait", "s", -1, "of any job"),
        ("mean_jct", "mean completion", "s", -1, "from submission to end"),
        ("p95_jct", "p95 completion", "s", -1, ""),
        ("p99_jct", "p99 completion", "s", -1, ""),
    )),
    ("Slowdown", (
        ("mean_bsld", "mean slowdown", "count", -1, "bounded; short jobs that wait long weigh most"),
        ("geomean_bsld", "geometric mean", "count", -1, "what a typical job sees"),
        ("user_bsld", "mean over users", "count", -1, "each user counts once, whatever they submit"),
        ("mean_slowdown", "unbounded mean", "count", -1, "jobs of seconds weigh even more"),
        ("oracle_gap", "gap to the limit", "share", -1, "mean slowdown above SJF with true run times"),
    )),
    ("Fairness and outcome", (
        ("jain_users", "Jain index of users", "count", 1, "1: all users are slowed down alike"),
        ("sla_met", "deadlines met", "share", 1, "of jobs that have one"),
        ("jobs", "jobs measured", "count", 0, ""),
        ("completed", "completed", "count", 0, "jobs"),
        ("killed", "killed at limit", "count", 0, "jobs"),
        ("rejected", "never ran", "count", 0, "jobs"),
    )),
    ("Cluster", (
        ("makespan", "makespan", "s", -1, "first submission to last end"),
        ("utilization", "utilization", "share", 1, "allocated over the makespan"),
        ("flops_utilization", "utilization by speed", "share", 1, "faster GPUs count for more"),
        ("gpu_allocation_rate", "allocated while jobs wait", "share", 1, "share of GPUs"),
        ("fragmentation", "fragmentation", "share", -1, "of what is free while jobs wait, on partly used nodes"),
        ("queue_mean", "mean queue", "count", -1, "jobs"),
        ("queue_max", "longest queue", "count", -1, "jobs"),
        ("energy_kwh", "energy, kWh", "count", -1, "estimate from idle and busy watts"),
    )),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of one replay; `value` is exact, for machines."""

    value: str
    text: str
    ratio: str
    trend: str
    best: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of all replays."""

    key: str
    name: str
    meaning: str
    cells: list[Cell]


@dataclass(frozen=True, slots=True)
class Group:
    """Figures of one kind."""

    name: str
    rows: list[Row]


def comparison(runs: Sequence[Run], base: int) -> list[Group]:
    """All figures that at least one replay has."""
    groups = []
    for name, figures in FIGURES:
        rows = [
            Row(key, label, meaning, _cells(runs, base, key, unit, better))
            for key, label, unit, better, meaning in figures
            if any(r.metrics.get(key) is not None for r in runs)
        ]
        if rows:
            groups.append(Group(name, rows))
    return groups


def _cells(runs: Sequence[Run], base: int, key: str, unit: str, better: int) -> list[Cell]:
    values = [r.metrics.get(key) for r in runs]
    texts = [shown(v, unit) for v in values]
    reachable = [v for v, r in zip(values, runs, strict=True) if v is not None and not contenders.unreachable(r)]
    # No star where all look the same, and one for each that looks as good as the best.
    top = shown((max if better > 0 else min)(reachable), unit) if reachable and better else None
    differ = len({t for t, r in zip(texts, runs, strict=True) if not contenders.unreachable(r)}) > 1
    cells = []
    for i, (value, text) in enumerate(zip(values, texts, strict=True)):
        multiple, trend = "", ""
        theirs = values[base]
        # A multiple says nothing of a share that is itself a multiple, or of a count of outcomes.
        if i != base and better and key != "oracle_gap" and value is not None and theirs:
            multiple = ratio(value, theirs)
            if multiple != "×1.00":
                less = value < theirs
                trend = f"{'less' if less else 'more'} {'good' if less == (better < 0) else 'bad'}"
        best = differ and text == top and not contenders.unreachable(runs[i])
        cells.append(Cell("" if value is None else repr(value), text, multiple, trend, best))
    return cells
