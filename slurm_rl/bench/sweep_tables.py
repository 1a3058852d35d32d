"""Results of a sweep: each combination against the first, in pairs, and the effect of each axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from slurm_rl.bench.standings import cell
from slurm_rl.bench.statistics import Interval, ratio
from slurm_rl.bench.suite import Drawing, Findings, PageTable, Row, Settings
from slurm_rl.bench.sweep_file import AXES
from slurm_rl.report.charts import Axis
from slurm_rl.report.intervals import IntervalBar, draw_bars
from slurm_rl.report.text import duration, number, plural, share

COMBINED = tuple(AXES.values())[:4]  # what is compared; seeds and windows are what is compared on
ON = ("seed", "window")
# What is compared: column, what it is called, how it is shown.
AIMS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "mean_wait": ("mean wait", duration),
    "p99_wait": ("p99 wait", duration),
    "max_wait": ("longest wait", duration),
    "mean_bsld": ("mean bounded slowdown", number),
    "geomean_bsld": ("its geometric mean", number),
}
_MOST_BARS = 40
Way = tuple[Any, ...]  # one combination: policy, backfill, placement, influence
Runs = dict[Way, dict[tuple[Any, ...], Row]]  # by combination, then by seed and window


def by_combination(rows: Sequence[Row]) -> Runs:
    """Rows of each combination, by what they were run on."""
    found: Runs = {}
    for row in rows:
        found.setdefault(tuple(row[c] for c in COMBINED), {})[tuple(row[c] for c in ON)] = row
    return found


def baseline(runs: Runs) -> Way:
    """Slurm's own order, where it was run; else the first."""
    return next((way for way in runs if way[0] == "multifactor"), next(iter(runs)))


def reachable(way: Way) -> bool:
    """Whether it uses nothing that only the future knows."""
    return not str(way[0]).endswith("@oracle")


def compared(runs: Runs, mine: Way, theirs: Way, column: str) -> Interval:
    """The ratio of two combinations' costs, on the seeds and windows of both; a second is added to waits of nothing."""
    pairs = [(own[column], other[column]) for on, own in runs[mine].items()
             if (other := runs[theirs].get(on)) and own[column] is not None and other[column] is not None]  # fmt: skip
    plus = 1.0 if column.endswith("wait") else 0.0
    return ratio([a + plus for a, _ in pairs], [b + plus for _, b in pairs])


def with_oracle_gap(rows: Sequence[Row]) -> list[Row]:
    """How far each run's slowdown is above SJF's with true run times, where that was run under the same rules."""
    same = ("backfill", "placement", "influence", *ON)
    best = {tuple(r[c] for c in same): r["mean_bsld"] for r in rows if r["policy"] == "sjf@oracle"}
    found = []
    for row in rows:
        theirs = best.get(tuple(row[c] for c in same))
        known = theirs is not None and row["mean_bsld"] is not None
        found.append(row | {"oracle_gap": row["mean_bsld"] / theirs - 1.0 if known else None})
    return found


def find(rows: Sequence[Row], settings: Settings) -> Findings:
    """Tables, a drawing and words."""
    rows = with_oracle_gap(rows)
    runs = by_combination(rows)
    base, label = baseline(runs), _labels(runs)
    count = len({tuple(r[c] for c in ON) for r in rows})
    summary = [
        f"{plural(len(rows), 'run')} of {settings['name']}: {plural(len(runs), 'combination')} on "
        f"{plural(count, 'pair')} of seed and window. Ratios are to {label[base]} on the same seed and window; "
        + ("intervals are 95%." if count > 1 else "there is one, so no interval says what chance does."),
        *(_winner(runs, aim, label) for aim in ("mean_wait", "p99_wait", "mean_bsld")),
    ]
    figures: dict[str, Any] = {
        "runs": len(rows),
        "combinations": len(runs),
        "baseline": dict(zip(COMBINED, base, strict=True)),
        "compared": [
            dict(zip(COMBINED, way, strict=True)) | {aim: compared(runs, way, base, aim).as_list() for aim in AIMS}
            for way in runs
        ],
    }
    tables = [_combinations(runs, base), *_axes(runs, rows)]
    return Findings(f"Sweep of {settings['name']}", summary, figures, tables, _drawing(runs, base, label))


def _labels(runs: Runs) -> dict[Way, str]:
    """Short names: what differs between combinations, the policy always."""
    differs = [len({way[i] for way in runs}) > 1 for i in range(len(COMBINED))]
    return {way: " ".join(_shown(value) for i, value in enumerate(way) if differs[i] or not i) for way in runs}


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _winner(runs: Runs, aim: str, label: dict[Way, str]) -> str:
    """The smallest mean of those that can be reached, and whether the next is behind beyond chance."""
    known = {way: value for way in runs if reachable(way) and (value := _mean(runs[way], aim)) is not None}
    if not known:
        return f"No run has a {AIMS[aim][0]}."
    first, *others = sorted(known, key=lambda way: known[way])
    text = f"Smallest {AIMS[aim][0]}: {label[first]}, {AIMS[aim][1](known[first])}"
    if not others:
        return text + "."
    lead = compared(runs, first, others[0], aim)
    if known[first] == known[others[0]]:
        return text + f", level with {label[others[0]]}."
    beyond = "" if len(runs[first]) < 2 or lead.high < 1.0 else ", which is not beyond chance"
    return text + f"; next {label[others[0]]}, {AIMS[aim][1](known[others[0]])} (×{cell(lead, 3)}){beyond}."


def _mean(own: dict[tuple[Any, ...], Row], column: str) -> float | None:
    values = [row[column] for row in own.values() if row[column] is not None]
    return math.fsum(values) / len(values) if values else None


def _combinations(runs: Runs, base: Way) -> PageTable:
    columns = [*COMBINED, "runs"]
    for name, _ in AIMS.values():
        columns += [name, "×"]
    columns += ["utilization", "jobs/s"]
    rows = []
    for way in sorted(runs, key=lambda w: _mean(runs[w], "mean_bsld") or math.inf):
        own = runs[way]
        cells = [_shown(v) for v in way] + [str(len(own))]
        if not reachable(way):
            cells[0] += " *"
        for aim, (_, show) in AIMS.items():
            found = compared(runs, way, base, aim)
            cells += [show(_mean(own, aim)), "1" if way == base else _times(found, len(own))]
        rows.append([*cells, share(_mean(own, "utilization")), number(_mean(own, "jobs_per_second"))])
    note = "Means over seeds and windows; ×: to the baseline, in pairs, below 1 is better. Smallest slowdown first."
    if not all(map(reachable, runs)):
        note += " *: knows true run times, a limit that no scheduler can reach."
    return PageTable("Combinations", tuple(columns), rows, note)


def _times(found: Interval, count: int) -> str:
    if math.isnan(found.value):
        return "–"
    return f"{found.value:.3f}" if count < 2 else cell(found)


def _axes(runs: Runs, rows: Sequence[Row]) -> list[PageTable]:
    """For each axis: its values against its first one, all else equal."""
    tables = []
    every = tuple(AXES.values())
    for axis in every:
        values = list(dict.fromkeys(row[axis] for row in rows))
        if len(values) < 2:
            continue
        others = [a for a in every if a != axis]
        cells: dict[Any, dict[tuple[Any, ...], Row]] = {}
        for row in rows:
            cells.setdefault(row[axis], {})[tuple(row[a] for a in others)] = row
        found = []
        for value in values:
            pairs = [(row, cells[values[0]][where]) for where, row in cells[value].items()
                     if where in cells[values[0]]]  # fmt: skip
            found.append([_shown(value), str(len(pairs)), *(_pairs(pairs, aim) for aim in AIMS)])
        note = f"Ratios to {axis} {_shown(values[0])}, all else equal; below 1 is better."
        tables.append(PageTable(f"By {axis}", (axis, "pairs", *(name for name, _ in AIMS.values())), found, note))
    return tables


def _pairs(pairs: Sequence[tuple[Row, Row]], column: str) -> str:
    plus = 1.0 if column.endswith("wait") else 0.0
    known = [(a[column] + plus, b[column] + plus) for a, b in pairs if None not in (a[column], b[column])]
    return _times(ratio([a for a, _ in known], [b for _, b in known]), len(known))


def _drawing(runs: Runs, base: Way, label: dict[Way, str]) -> list[Drawing]:
    """The best combinations by slowdown, with their intervals."""
    found = {way: compared(runs, way, base, "mean_bsld") for way in runs}
    order = sorted((w for w in runs if not math.isnan(found[w].value)), key=lambda w: found[w].value)[:_MOST_BARS]
    bars = [IntervalBar(label[w], found[w].value, found[w].low, found[w].high, i, not reachable(w))
            for i, w in enumerate(order)]  # fmt: skip
    if not bars:
        return []
    caption = f"Mean bounded slowdown as a ratio to {label[base]}, with 95% intervals over seeds and windows."
    if len(runs) > len(order):
        caption += f" The best {len(order)} of {len(runs)}."
    picture = draw_bars("Mean bounded slowdown", bars, Axis(f"ratio to {label[base]}", "count", log=True), 1.0)
    return [Drawing("slowdown", caption, *picture)]
