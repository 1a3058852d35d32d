"""Draws values with their intervals, one row each, as an SVG file of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_rl.report import theme
from slurm_rl.report.charts import Axis
from slurm_rl.report.html import template_text
from slurm_rl.report.svg import Frame, Scale, bottom_axis, mark, text_of
from slurm_rl.report.text import clipped

_ROW, _LEFT, _WIDTH = 24.0, 190.0, 720.0


@dataclass(frozen=True, slots=True)
class IntervalBar:
    """A row: a value from `zero` to here, with an interval where there is one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    colour: int = 0  # of the theme's
    dashed: bool = False  # out of reach


def draw_bars(title: str, bars: Sequence[IntervalBar], axis: Axis, zero: float = 0.0) -> tuple[str, float, float]:
    """The picture with its width and height; a log axis needs values above 0."""
    bars = [b for b in bars if math.isfinite(b.value) and (not axis.log or b.value > 0)]
    looks = [theme.Look(b.label, *theme.COLOURS[b.colour % len(theme.COLOURS)], "circle", b.dashed, False)
             for b in bars]  # fmt: skip
    top, bottom = 48.0, 48.0 + _ROW * len(bars)
    height = bottom + 44
    known = [v for b in bars for v in (b.value, b.low, b.high) if v is not None and math.isfinite(v)] or [1.0]
    low, high = min(*known, zero), max(*known, zero)
    if axis.log:
        low, high = max(low, 1e-9) / 1.05, max(high, low * 1.1) * 1.05
    else:
        air = 0.04 * (high - low or 1.0)
        low, high = low - (air if low < 0 or zero else 0.0), high + air
    frame = Frame(_WIDTH, height, _LEFT, top, _WIDTH - 24, bottom)
    x = Scale(low, high, frame.left, frame.right, axis.log)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{_WIDTH:g}" height="{height:g}"'
        f' viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{text_of(title)}">',
        f"<style>svg{{{theme.variables(looks, dark=False)}}}{theme.classes(looks)}{template_text('chart.css')}"
        ".chart .bar{fill:var(--c);opacity:.28}</style>",
        f'<rect width="{_WIDTH:g}" height="{height:g}" fill="var(--card)"/>',
        f'<text class="title" x="20" y="32">{text_of(title)}</text>',
        bottom_axis(frame, x, axis),
        f'<path class="one" d="M{x(zero):.1f} {top:g}V{bottom:g}"/>',
    ]
    for i, b in enumerate(bars):
        y = top + _ROW * (i + 0.5)
        begin, end = sorted((x(zero), x(b.value)))
        parts.append(
            f'<text class="label" x="{_LEFT - 10:g}" y="{y + 4:g}" text-anchor="end">'
            f"{text_of(clipped(b.label, 28))}</text>"
            f'<rect class="bar p{i}" x="{begin:.1f}" y="{y - 6:g}" width="{max(end - begin, 0.5):.1f}" height="12"/>'
        )
        if b.low is not None and b.high is not None:
            parts.append(f'<path class="line p{i}" d="M{x(b.low):.1f} {y:g}H{x(b.high):.1f}"/>')
        dashed = " dashed" if b.dashed else ""
        parts.append(f'<path class="dot p{i}{dashed}" d="{mark("circle", x(b.value), y, 3.8)}"/>')
    parts.append("</svg>\n")
    return "".join(parts), _WIDTH, height
