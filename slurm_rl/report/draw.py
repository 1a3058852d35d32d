"""Draws charts as SVG: the same pictures serve the HTML report and the exported files."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slurm_rl.report.charts import Axis, Chart, Heat, Panel
from slurm_rl.report.image import data_uri, grey_png
from slurm_rl.report.svg import Frame, Scale, bottom_axis, left_axis, mark, polyline, text_of
from slurm_rl.report.text import clipped, plural
from slurm_rl.report.theme import Look

# Pixels: a desktop page, half of it, and a phone or a third of a page.
PAGE, WIDE, NARROW = 1140.0, 560.0, 344.0


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn panel: the content of its `<svg>`, and the values that a script shows under the pointer."""

    name: str
    run: int | None  # the replay it belongs to alone
    frame: Frame
    body: str
    x: Scale | None
    kind: str
    panel: int = 0
    label: str = ""


def pictures(chart: Chart | Heat, looks: list[Look], width: float) -> list[Picture]:
    """All panels of a chart at one width."""
    if isinstance(chart, Heat):
        return [_heat(chart, look, i, width) for i, look in enumerate(looks)]
    if chart.kind == "scatter":
        base = next(i for i, look in enumerate(looks) if look.base)
        return [_scatter(chart, looks, i, base, width) for i in range(len(looks)) if i != base]
    draw = _lines if chart.kind == "lines" else _rows
    return [draw(chart, panel, i, looks, width) for i, panel in enumerate(chart.panels)]


def svg(picture: Picture, chart: Chart | Heat, size: str) -> str:
    """The panel as an inline element of a page; `size` is its class."""
    f, x = picture.frame, picture.x
    where = f' data-run="{picture.run}"' if picture.run is not None else ""
    domain = f' data-domain="{x.low!r} {x.high!r} {int(x.log)}"' if x is not None else ""
    label = f"{chart.title}{': ' + picture.name if picture.name else ''}. Arrow keys read the values."
    return (
        f'<svg class="chart {size}" viewBox="0 0 {f.width:g} {f.height:g}" tabindex="0" role="img"'
        f' aria-label="{text_of(label)}" data-chart="{chart.id}" data-kind="{picture.kind}"'
        f' data-panel="{picture.panel}" data-plot="{f.left:g} {f.top:g} {f.right:g} {f.bottom:g}"{where}{domain}>'
        f"{picture.body}</svg>"
    )


def _style(look: Look, i: int) -> str:
    return f"p{i}{' dashed' if look.dashed else ''}"


def _lines(chart: Chart, panel: Panel, index: int, looks: list[Look], width: float) -> Picture:
    height = {PAGE: 300.0, WIDE: 260.0}.get(width, 220.0)
    frame = Frame(width, height, 48, 10, width - 10, height - 40)
    xs = [float(x) for x in chart.xs]
    x = Scale(xs[0] if chart.x.log else 0.0, xs[-1], frame.left, frame.right, chart.x.log)
    known = [v for s in panel.series for v in s if v is not None]
    low, high = 0.0, max(known, default=1.0) or 1.0
    if not chart.y.zero:
        air = 0.08 * (high - min(known, default=0.0)) or 0.05 * high
        low, high = min(known, default=0.0) - air, high + air
    elif chart.y.unit == "share":
        high = 1.0 if high > 0.5 else high * 1.05
        if chart.x.log:  # a distribution: most jobs may not wait at all, and the picture would be empty below
            low = min(math.floor(min(known, default=0.0) * 10 - 1e-9) / 10, 0.9)
            low, high = max(low, 0.0), 1.0
    else:
        high *= 1.05
    y = Scale(low, high, frame.bottom, frame.top)
    body = [left_axis(frame, y, chart.y), bottom_axis(frame, x, chart.x)]
    across = [x(v) for v in xs]
    # The baseline lies below the others.
    for i in sorted(range(len(looks)), key=lambda i: not looks[i].base):
        points = [None if v is None else y(v) for v in panel.series[i]]
        body.append(f'<path class="line {_style(looks[i], i)}" d="{polyline(across, points)}"/>')
        if chart.x.at:
            dots = "".join(
                mark(looks[i].shape, a, p, 3.6) for a, p in zip(across, points, strict=True) if p is not None
            )
            body.append(f'<path class="dot {_style(looks[i], i)}" d="{dots}"/>')
    return Picture(panel.name, None, frame, "".join(body), x, "lines", index)


def _log_domain(values: list[float], unit: str) -> tuple[float, float]:
    """A domain that holds the positive values with some air; waits below a second count as one."""
    positive = [max(v, 1.0) if unit == "s" else v for v in values if v > 0]
    if unit == "s" and any(v <= 0 for v in values):
        positive.append(1.0)
    low, high = min(positive, default=1.0), max(positive, default=10.0)
    if unit == "ratio":
        low, high = min(low, 1.0), max(high, 1.0)
    air = max((high / low) ** 0.06, 1.12)
    return (max(low / air, 1.0) if unit == "s" and low <= 2 else low / air), high * air


def _rows(chart: Chart, panel: Panel, index: int, looks: list[Look], width: float) -> Picture:
    names = [str(x) for x in chart.xs]
    lane = 5.0
    row = max(len(looks) * lane + 9, 30)
    left = 136.0 if width > 400 else 116.0
    frame = Frame(width, row * len(names) + 8 + 42, left, 8, width - 14, 8 + row * len(names))
    known = [v for s in panel.series for v in s if v is not None]
    x = Scale(*_log_domain(known, chart.y.unit), frame.left + 6, frame.right, True)
    name = Axis(chart.y.name, chart.y.unit, True)
    body = [bottom_axis(frame, x, name, 44)]
    if chart.y.unit == "ratio":
        body.append(f'<path class="one" d="M{x(1):.1f} {frame.top:g}V{frame.bottom:g}"/>')
    for r, label in enumerate(names):
        top = frame.top + r * row
        middle = top + row / 2
        if r:
            body.append(f'<path class="grid" d="M0 {top:g}H{frame.right:g}"/>')
        shown = text_of(clipped(label, 18 if width > 400 else 16))
        if chart.counts:
            count = plural(chart.counts[r], "job")
            body.append(f'<text class="label" x="{left - 8:g}" y="{middle - 1:g}" text-anchor="end">{shown}</text>')
            body.append(f'<text class="count" x="{left - 8:g}" y="{middle + 11:g}" text-anchor="end">{count}</text>')
        else:
            body.append(f'<text class="label" x="{left - 8:g}" y="{middle + 4:g}" text-anchor="end">{shown}</text>')
        for i, look in enumerate(looks):
            value = panel.series[i][r]
            if value is None:
                continue
            y = middle + (i - (len(looks) - 1) / 2) * lane
            begin = x(1.0) if chart.y.unit == "ratio" else frame.left
            body.append(f'<path class="stem p{i}" d="M{begin:.1f} {y:.1f}H{x(value):.1f}"/>')
            body.append(f'<path class="dot {_style(look, i)}" d="{mark(look.shape, x(value), y, 3.6)}"/>')
    return Picture(panel.name, None, frame, "".join(body), x, "rows", index)


def _scatter(chart: Chart, looks: list[Look], run: int, base: int, width: float) -> Picture:
    side = width
    frame = Frame(width, side * 0.86, 52, 10, width - 12, side * 0.86 - 40)
    series = chart.panels[0].series
    known = [v for s in series for v in s if v is not None]
    low, high = _log_domain(known, "s")
    x, y = Scale(low, high, frame.left, frame.right, True), Scale(low, high, frame.bottom, frame.top, True)
    body = [
        f'<path class="worse" d="M{frame.left:g} {frame.bottom:g}L{frame.right:g} {frame.top:g}H{frame.left:g}z"/>',
        left_axis(frame, y, chart.y),
        bottom_axis(frame, x, Axis(f"mean wait under {looks[base].label}", "s", True)),
        f'<path class="one" d="M{frame.left:g} {frame.bottom:g}L{frame.right:g} {frame.top:g}"/>',
        f'<text class="corner" x="{frame.left + 8:g}" y="{frame.top + 16:g}">waits longer</text>',
        f'<text class="corner" x="{frame.right - 8:g}" y="{frame.bottom - 8:g}" text-anchor="end">waits less</text>',
    ]
    most = math.sqrt(max(chart.counts, default=1) or 1)
    for i, (a, b) in enumerate(zip(series[base], series[run], strict=True)):
        if a is not None and b is not None:  # users come with most jobs first: small points lie on top
            r = 2.2 + 8 * math.sqrt(chart.counts[i]) / most
            place = f'cx="{x(a):.1f}" cy="{y(b):.1f}" r="{r:.1f}"'
            body.append(f'<circle class="point {_style(looks[run], run)}" data-i="{i}" {place}/>')
    return Picture(looks[run].label, run, frame, "".join(body), x, "scatter")


def _heat(chart: Heat, look: Look, run: int, width: float) -> Picture:
    rows = len(chart.rows)
    tall = min(max(rows * 2.0, 120.0), 260.0)
    frame = Frame(width, tall + 50, 64, 8, width - 10, 8 + tall)
    x = Scale(0.0, chart.xs[-1] + chart.xs[0], frame.left, frame.right)  # xs are middles of slices
    each = tall / rows
    body = []
    last = -1e9
    for label, first, end in chart.groups:
        top, middle = frame.top + first * each, frame.top + (first + end) / 2 * each
        if middle - last >= 11:
            body.append(
                f'<text class="tick" x="{frame.left - 6:g}" y="{middle + 4:.1f}" text-anchor="end">'
                f"{text_of(clipped(label, 9))}</text>"
            )
            last = middle
        if first:
            body.append(f'<path class="cut" d="M{frame.left:g} {top:.1f}H{frame.right:g}"/>')
    grey = (chart.cells[run].astype(np.uint16) * 255 // 100).astype(np.uint8)
    name = f"{chart.id}-{run}-{width:g}"
    box = f'x="{frame.left:g}" y="{frame.top:g}" width="{frame.right - frame.left:g}" height="{tall:g}"'
    # The picture is a mask over the theme's colour, so one picture serves light and dark.
    picture = (
        f'<rect class="track" {box}/><mask id="{name}"><image {box} preserveAspectRatio="none"'
        f' style="image-rendering:pixelated" href="{data_uri(grey_png(grey))}"/></mask>'
        f'<rect class="heat" {box} mask="url(#{name})"/>'
    )
    axis = bottom_axis(frame, x, Axis("time since the first submission", "s"))
    return Picture(look.label, run, frame, axis + picture + "".join(body), x, "heat")
