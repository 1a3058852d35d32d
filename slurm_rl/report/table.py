"""The comparison table: every figure of every replay, with its multiple of the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_rl.report import contenders
from slurm_rl.report.inputs import ReportedRun
from slurm_rl.report.text import ratio, shown
from slurm_rl_sim.metrics import GROUPS, METRICS, Metric


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of one replay; `value` is exact, for machines."""

    value: str
    text: str
    ratio: str
    trend: str
    best: bool


@dataclass(frozen=True, slots=True)
class TableRow:
    """A figure of all replays."""

    key: str
    name: str
    meaning: str
    cells: list[Cell]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Figures of one kind."""

    name: str
    rows: list[TableRow]


def comparison(runs: Sequence[ReportedRun], base: int) -> list[RowGroup]:
    """All figures that at least one replay has."""
    groups = []
    for name in GROUPS:
        rows = [
            TableRow(m.name, m.label, m.meaning, _cells(runs, base, m))
            for m in METRICS
            if m.group == name and any(r.metrics.get(m.name) is not None for r in runs)
        ]
        if rows:
            groups.append(RowGroup(name, rows))
    return groups


def _cells(runs: Sequence[ReportedRun], base: int, metric: Metric) -> list[Cell]:
    key, unit, better = metric.name, metric.unit, metric.better
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
