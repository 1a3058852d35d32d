"""Results of paired runs of schedulers on regimes: standings by aim, winners by regime, gaps, and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from slurm_rl.bench.schedulers import ANCESTORS, BASE, JCT_GRID, LIMIT, fixed, reachable
from slurm_rl.bench.statistics import Interval, mean, ratio
from slurm_rl.bench.suite import Drawing, Findings, PageTable, Row, Settings
from slurm_rl.report.charts import Axis, Chart, Panel
from slurm_rl.report.figures import standalone
from slurm_rl.report.intervals import IntervalBar, draw_bars
from slurm_rl.report.text import plural
from slurm_rl.report.theme import BASELINE, COLOURS, SHAPES, Look

FIRST = (
    "workload_shape", "intensity", "gpu_count", "scheduler", "avg_jct", "slowdown", "makespan", "queue_len_max",
    "fairness_jain", "utilization", "energy", "oracle_gap",
)  # fmt: skip
# What is aimed at: column, what it is called, and whether less is better.
AIMS = {
    "avg_jct": ("mean completion time", True),
    "p95_jct": ("p95 completion time", True),
    "slowdown": ("mean bounded slowdown", True),
    "sla_missed": ("deadlines missed", True),
    "energy": ("energy", True),
    "fairness_jain": ("fairness over users (Jain)", False),
    "mixed": ("mixed objective", True),
}
Runs = dict[str, list[Row]]  # by scheduler, in the same order of workloads


@dataclass(frozen=True, slots=True)
class Winner:
    """Who is ahead in one aim, of whom, and by how much: below 1 is ahead."""

    name: str
    second: str
    lead: Interval

    @property
    def clear(self) -> bool:
        return self.lead.high < 1.0


def by_scheduler(rows: Sequence[Row]) -> Runs:
    """Rows of each scheduler."""
    found: Runs = {}
    for row in rows:
        found.setdefault(row["scheduler"], []).append(row)
    return found


def _values(rows: Sequence[Row], column: str) -> list[float]:
    """A column as costs: less is better."""
    less = AIMS[column][1]
    # Half a job is added to those that missed their deadline: a share of 0 has no logarithm.
    added = [0.5 / max(r["jobs"], 1) if column == "sla_missed" else 0.0 for r in rows]
    return [
        math.nan if r[column] is None else r[column] + plus if less else 1.0 / max(r[column], 1e-9)
        for r, plus in zip(rows, added, strict=True)
    ]


def compared(runs: Runs, mine: str, theirs: str, column: str, where: Callable[[Row], bool] | None = None) -> Interval:
    """The ratio of two schedulers' costs on the workloads that both met; whole regimes are drawn."""
    a, b = runs[mine], runs[theirs]
    pairs = [
        (x, y, row["regime"])
        for x, y, row in zip(_values(a, column), _values(b, column), a, strict=True)
        if not math.isnan(x) and (where is None or where(row))
    ]
    return ratio([p[0] for p in pairs], [p[1] for p in pairs], [p[2] for p in pairs])


def winner(runs: Runs, names: Sequence[str], column: str, where: Callable[[Row], bool] | None = None) -> Winner:
    """The best of some schedulers, against the second best."""
    score = {n: compared(runs, n, names[0], column, where).value for n in names}
    first, second = sorted(names, key=lambda n: score[n])[:2] if len(names) > 1 else (names[0], names[0])
    return Winner(first, second, compared(runs, first, second, column, where))


def percent(lead: Interval) -> str:
    """A ratio below 1 as `4.1% (2.0–6.3%)`."""
    value, low, high = (100 * (1 - v) for v in (lead.value, lead.high, lead.low))
    return f"{value:.1f}% ({low:.1f} to {high:.1f}%)"


def cell(found: Interval, digits: int = 2) -> str:
    """`0.62 (0.58–0.66)`."""
    return f"{found.value:.{digits}f} ({found.low:.{digits}f}–{found.high:.{digits}f})"


def find(rows: Sequence[Row], settings: Settings) -> Findings:
    """Tables, figures and words of `bench core`."""
    runs = by_scheduler(rows)
    names = [n for n in runs if reachable(n)]
    workloads = len(runs[names[0]])
    summary = [
        f"{len(rows):,} runs: {len({r['regime'] for r in rows})} regimes × {plural(settings['seeds'], 'seed')} × "
        f"{len(runs)} schedulers, {settings['jobs']:,} jobs each. A regime and a seed make one workload, which all "
        "schedulers meet with the same rules (EASY backfill, best-fit) and the same information; completion counts "
        "from submission. Differences are between runs on the same workload; intervals are 95%, and draw whole "
        "regimes.",
    ]
    winners = {aim: winner(runs, names, aim) for aim in AIMS}
    for aim, won in winners.items():
        to_base = compared(runs, won.name, BASE, aim)
        text = f"{AIMS[aim][0][0].upper()}{AIMS[aim][0][1:]}: {won.name}, ×{to_base.value:.3f} of {BASE}"
        if won.clear:
            text += f", ahead of the next, {won.second}, by {percent(won.lead)}."
        else:
            text += f"; not ahead of {won.second} beyond chance ({percent(won.lead)})."
        summary.append(text)
    everywhere = {w.name for w in winners.values()}
    if len(everywhere) > 1:
        summary.append(f"No scheduler wins everywhere: {len(everywhere)} of them win at least one of {len(AIMS)} aims.")
    cells, cell_rows = _cells(runs, names)
    undecided = [where for where, won in cells.items() if not won.clear]
    summary.append(
        f"By shape and intensity (mixed objective), {len(cells) - len(undecided)} of {len(cells)} groups have a "
        + ("clear winner." if not undecided else f"clear winner; nobody wins in {', '.join(undecided)}.")
    )
    summary += _about_choosing(runs, names)
    tables = [_standings(runs), PageTable("Winners by shape and intensity, mixed objective",
              ("regimes", "first", "second", "ahead by", "clear"), cell_rows), _gaps(runs)]  # fmt: skip
    figures = {
        "runs": len(rows),
        "workloads": workloads,
        "schedulers": len(runs),
        "winners": {a: {"first": w.name, "second": w.second, "ratio": w.lead.as_list(), "clear": w.clear}
                    for a, w in winners.items()},
        "mixed": {n: compared(runs, n, BASE, "mixed").as_list() for n in runs},
    }  # fmt: skip
    ordered = [{k: row[k] for k in (*FIRST, *(k for k in row if k not in FIRST))} for row in rows]
    return Findings(
        "Core: schedulers on 56 regimes", summary, figures, tables, _drawings(runs), {"core_sim_metrics.csv": ordered}
    )


def _cells(runs: Runs, names: Sequence[str]) -> tuple[dict[str, Winner], list[list[str]]]:
    """The winner of each shape and intensity."""
    groups = dict.fromkeys((r["workload_shape"], r["intensity"]) for r in runs[names[0]])
    found, table = {}, []
    for shape, intensity in groups:
        where = f"{shape} ×{intensity:g}"
        won = winner(runs, names, "mixed", partial(_within, shape, intensity))
        found[where] = won
        table.append([where, won.name, won.second, percent(won.lead), "yes" if won.clear else "no"])
    return found, table


def _within(shape: str, intensity: float, row: Row) -> bool:
    return bool(row["workload_shape"] == shape and row["intensity"] == intensity)


def _about_choosing(runs: Runs, names: Sequence[str]) -> list[str]:
    """What there is to win by choosing among fixed rules, and what those that choose win."""
    rules = [n for n in names if fixed(n)]
    said = []
    if len(rules) > 1:
        best = winner(runs, rules, "mixed").name
        hindsight = ratio(
            [min(runs[n][i]["mixed"] for n in rules) for i in range(len(runs[best]))],
            [r["mixed"] for r in runs[best]],
            [r["regime"] for r in runs[best]],
        )
        said.append(
            f"The best fixed rule over all regimes is {best} (mixed objective). Who knew the best rule of each run in "
            f"hindsight would be ahead of it by {percent(hindsight)}: that is all that choosing among rules can win."
        )
        for name in (n for n in names if not fixed(n)):
            own = compared(runs, name, best, "mixed")
            closed = math.log(own.value) / math.log(hindsight.value) if hindsight.value < 1 else math.nan
            verdict = "ahead of" if own.high < 1 else "behind" if own.low > 1 else "level with"
            said.append(
                f"{name} is {verdict} {best}: ×{cell(own, 3)}; it closes {100 * closed:.0f}% of the distance to the "
                "best rule of each run."
            )
    return said


def _standings(runs: Runs) -> PageTable:
    rows = []
    order = sorted(runs, key=lambda n: compared(runs, n, BASE, "mixed").value)
    for n in order:
        cells = [cell(compared(runs, n, BASE, a)) for a in AIMS]
        rows.append([f"{n}{'' if reachable(n) else ' (out of reach)'}", *cells])
    note = f"Ratios to {BASE}: below 1 is better in every column; the inverse of Jain's index is shown."
    return PageTable("Standings", ("scheduler", *(AIMS[a][0] for a in AIMS)), rows, note)


def _gaps(runs: Runs) -> PageTable:
    columns = {
        "oracle_gap": f"slowdown above {LIMIT}",
        "oracle_gap_jct": f"mean JCT above {LIMIT}",
        "best_fixed_gap": "slowdown above the best rule of the run",
        "best_fixed_gap_mixed": "mixed above it",
    }
    rows = []
    for n, own in runs.items():
        found = [mean([r[c] for r in own if r[c] is not None], [r["regime"] for r in own if r[c] is not None])
                 for c in columns]  # fmt: skip
        rows.append([n, *(f"{100 * f.value:.1f}% ({100 * f.low:.1f}–{100 * f.high:.1f})" for f in found)])
    return PageTable("Gaps", ("scheduler", *columns.values()), rows, "Means over runs; less is better.")


def shown(runs: Mapping[str, object], most: int = 9) -> list[str]:
    """Few enough schedulers to tell apart in one picture: the base, the limit, the learned ones, then others."""
    wished = [BASE, *(n for n in runs if ":" in n), "sjf-age@user", "saf@user", "sjf@user", *ANCESTORS, *runs]
    names = [n for n in dict.fromkeys(wished) if n in runs and n != LIMIT][: most - 1]
    return [*names, *([LIMIT] if LIMIT in runs else [])]


def looks_of(names: Sequence[str]) -> list[Look]:
    """How schedulers are drawn: the base in grey, what is out of reach dashed."""
    looks, used = [], 0
    for n in names:
        base = n == BASE
        light, dark = BASELINE if base else COLOURS[used % len(COLOURS)]
        used += not base
        shape = SHAPES[0] if base else SHAPES[1 + (used - 1) % (len(SHAPES) - 1)]
        looks.append(Look(n, light, dark, shape, not reachable(n), base))
    return looks


def _drawings(runs: Runs) -> list[Drawing]:
    names = shown(runs)
    looks = looks_of(names)
    gpus = sorted({r["gpu_count"] for r in runs[names[0]]})
    used = [[float(np.mean([r["utilization"] for r in runs[n] if r["gpu_count"] == g])) for g in gpus] for n in names]
    drawn = []
    if len(gpus) > 1:
        chart = Chart("utilization_gpus", "Utilization by GPUs of the cluster", "", "lines",
                      Axis("GPUs", "count", log=True, at=tuple(gpus)), Axis("utilization", "share", zero=False),
                      [float(g) for g in gpus],
                      [Panel("", [list(s) for s in used])])  # fmt: skip
        drawn.append(("Allocated GPU time over the makespan, mean over regimes and seeds.", chart))
    share = [np.sum([r["_jct"] for r in runs[n]], axis=0) / max(sum(r["completed"] + r["killed"] for r in runs[n]), 1)
             for n in names]  # fmt: skip
    last = next((i for i, v in enumerate(np.min(share, axis=0)) if v >= 0.9995), len(JCT_GRID) - 1)
    chart = Chart("jct_cdf", "Completion times", "", "lines", Axis("completed within", "s", log=True),
                  Axis("jobs", "share"), [float(x) for x in JCT_GRID[: last + 1]],
                  [Panel("", [[min(float(v), 1.0) for v in s[: last + 1]] for s in share])])  # fmt: skip
    drawn.append(("All jobs of all regimes, from submission to end: a higher line serves more jobs in time.", chart))
    made = [Drawing(c.id, caption, *standalone(c, looks)) for caption, c in drawn]
    order = sorted(runs, key=lambda n: compared(runs, n, BASE, "mixed").value)
    gap = {n: mean([1.0 + r["oracle_gap"] for r in runs[n] if r["oracle_gap"] is not None],
                   [r["regime"] for r in runs[n] if r["oracle_gap"] is not None]) for n in order}  # fmt: skip
    near = sorted(gap.items(), key=lambda item: item[1].value)
    bars = [IntervalBar(n, g.value, g.low, g.high, i, not reachable(n)) for i, (n, g) in enumerate(near)]
    if any(math.isfinite(b.value) for b in bars):
        made.append(Drawing(
            "oracle_gap", f"Mean slowdown as a multiple of {LIMIT}'s on the same jobs, mean over runs.",
            *draw_bars(f"Distance to {LIMIT}", bars, Axis("times the slowdown", "ratio", log=True), 1.0),
        ))  # fmt: skip
    bars = []
    for i, n in enumerate(order):
        own = compared(runs, n, BASE, "mixed")
        bars.append(IntervalBar(n, own.value, own.low, own.high, i, not reachable(n)))
    made.append(Drawing(
        "mixed_objective", f"Geometric mean of mean JCT, p95 JCT, deadlines missed and energy, as ratios to {BASE}.",
        *draw_bars("Mixed objective", bars, Axis(f"ratio to {BASE}", "count"), 1.0),
    ))  # fmt: skip
    return made
