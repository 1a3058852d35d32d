"""Draws several series on axes around a point, as a separate SVG file."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_rl.report.figures import legend
from slurm_rl.report.html import template_text
from slurm_rl.report.svg import mark, nice_step, text_of
from slurm_rl.report.theme import Look, classes, variables

_WIDTH, _RADIUS = 720.0, 190.0


def draw_radar(
    title: str, axes: Sequence[str], series: Sequence[Sequence[float]], looks: list[Look], rim: str = "×{:g}"
) -> tuple[str, float, float]:
    """The picture with its width and height; values grow outwards from 0, `rim` writes those on the rings."""
    shown, top = legend(looks, _WIDTH)
    cx, cy = _WIDTH / 2, top + 34 + _RADIUS
    height = cy + _RADIUS + 44
    most = max((v for s in series for v in s if math.isfinite(v)), default=1.0) or 1.0
    step = nice_step(most, 5)
    rings = math.ceil(most / step - 1e-9)
    high = rings * step

    def at(axis: int, value: float) -> tuple[float, float]:
        angle = 2 * math.pi * axis / len(axes) - math.pi / 2
        r = _RADIUS * min(max(value, 0.0), high) / high
        return cx + r * math.cos(angle), cy + r * math.sin(angle)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{_WIDTH:g}" height="{height:g}"'
        f' viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{text_of(title)}">',
        f"<style>svg{{{variables(looks, dark=False)}}}{classes(looks)}{template_text('chart.css')}</style>",
        f'<rect width="{_WIDTH:g}" height="{height:g}" fill="var(--card)"/>',
        f'<text class="title" x="20" y="32">{text_of(title)}</text>',
        shown,
    ]
    for ring in range(1, rings + 1):
        points = [at(i, ring * step) for i in range(len(axes))]
        parts.append(f'<path class="grid" d="{_path(points)}"/>')
        x, y = at(0, ring * step)
        parts.append(f'<text class="tick" x="{x + 4:.1f}" y="{y + 11:.1f}">{rim.format(ring * step)}</text>')
    for i, name in enumerate(axes):
        x, y = at(i, high)
        parts.append(f'<path class="grid" d="M{cx:.1f} {cy:.1f}L{x:.1f} {y:.1f}"/>')
        anchor = "middle" if abs(x - cx) < 20 else "start" if x > cx else "end"
        below = 16 if y > cy + 20 else -8 if y < cy - 20 else 4
        side = 8 if anchor == "start" else -8 if anchor == "end" else 0
        parts.append(
            f'<text class="label" x="{x + side:.1f}" y="{y + below:.1f}" text-anchor="{anchor}">{text_of(name)}</text>'
        )
    for k, values in enumerate(series):
        points = [at(i, v) for i, v in enumerate(values)]
        dashed = " dashed" if looks[k].dashed else ""
        parts.append(f'<path class="line p{k}{dashed}" d="{_path(points)}"/>')
        parts += [f'<path class="dot p{k}{dashed}" d="{mark(looks[k].shape, x, y, 3.4)}"/>' for x, y in points]
    parts.append("</svg>\n")
    return "".join(parts), _WIDTH, height


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "z"
