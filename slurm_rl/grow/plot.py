"""Draws how policies of growth fare over budgets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_rl.grow.ranking import HINDSIGHT, OTHER_SEEDS, PolicyRanking
from slurm_rl.report.charts import Axis, Chart, Panel
from slurm_rl.report.figures import standalone
from slurm_rl.report.theme import BASELINE, COLOURS, SHAPES, Look


def draw(standings: Sequence[PolicyRanking], budgets: Sequence[float], directory: Path) -> list[Path]:
    """Writes accuracy.svg and regret.svg: how far each policy stays behind the best plan in hindsight."""
    standings = [s for s in standings if s.policy != OTHER_SEEDS]
    limit = next(s for s in standings if s.policy == HINDSIGHT)
    others = [s for s in standings if s is not limit]
    xs = sorted(budgets)
    x = Axis("budget, in epochs of the first network", "count")
    accuracy = Chart(
        "accuracy", "Final accuracy by budget", "", "lines", x, Axis("accuracy", "share"), xs,
        [Panel("", [[s.by_budget[b] for b in xs] for s in standings])],
    )  # fmt: skip
    regret = Chart(
        "regret", "Regret to the best plan in hindsight", "", "lines", x, Axis("accuracy lost", "share"), xs,
        [Panel("", [[max(limit.by_budget[b] - s.by_budget[b], 0.0) for b in xs] for s in others])],
    )  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for chart, shown in ((accuracy, standings), (regret, others)):
        file = directory / f"{chart.id}.svg"
        file.write_text(standalone(chart, _looks(shown))[0], encoding="utf-8")
        written.append(file)
    return written


def _looks(standings: Sequence[PolicyRanking]) -> list[Look]:
    """`never` is the baseline, the best in hindsight is out of reach."""
    looks, used = [], 0
    for s in standings:
        base = s.policy == "never"
        light, dark = BASELINE if base else COLOURS[used % len(COLOURS)]
        used += not base
        shape = SHAPES[0] if base else SHAPES[1 + (used - 1) % (len(SHAPES) - 1)]
        looks.append(Look(Path(s.policy).name, light, dark, shape, s.policy == HINDSIGHT, base))
    return looks
