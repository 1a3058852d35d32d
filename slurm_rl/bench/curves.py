"""Draws learning curves, each on its own points, on a common axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slurm_rl.bench.suite import Drawing
from slurm_rl.report.charts import Axis, Chart, Panel, Series
from slurm_rl.report.figures import standalone
from slurm_rl.report.theme import COLOURS, SHAPES, Look

_POINTS = 60


def draw_curves(
    name: str, title: str, x: str, y: str, unit: str, lines: Mapping[str, Sequence[tuple[float, float]]], note: str = ""
) -> Drawing:
    """Curves of (x, y) points; between points a line, nothing before the first and after the last."""
    last = max((p[0] for points in lines.values() for p in points), default=1.0)
    xs = np.linspace(0.0, last, _POINTS)
    series: list[Series] = []
    for points in lines.values():
        at, value = [p[0] for p in points], [p[1] for p in points]
        inside = [(at[0] <= v <= at[-1]) if at else False for v in xs]
        found = np.interp(xs, at, value) if at else np.zeros(_POINTS)
        series.append([float(v) if ok else None for v, ok in zip(found, inside, strict=True)])
    looks = [Look(n, *COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)], False, False) for i, n in enumerate(lines)]
    chart = Chart(
        name,
        f"{title}: {y}",
        "",
        "lines",
        Axis(x, "count"),
        Axis(y, unit, zero=False),
        xs.tolist(),
        [Panel("", series)],
    )
    return Drawing(name, f"{title}: {y} by {x}.{note and ' '}{note}", *standalone(chart, looks))
