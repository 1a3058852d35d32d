"""Building blocks of charts as SVG text: escaping, scales, ticks, axes and marks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape

from slurm_rl.report.charts import Axis

_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # XML has no way to write these

MINUTE, HOUR, DAY = 60, 3600, 86400
_TIMES = {
    1: "1 s", 10: "10 s", MINUTE: "1 min", 10 * MINUTE: "10 min", HOUR: "1 h", 6 * HOUR: "6 h", DAY: "1 d",
    7 * DAY: "7 d", 30 * DAY: "30 d", 365 * DAY: "1 y", 3650 * DAY: "10 y",
}  # fmt: skip
_FINE_TIMES = {
    s: f"{s // size:g} {unit}"
    for size, unit, counts in (
        (1, "s", (1, 2, 5, 10, 20, 30)),
        (MINUTE, "min", (1, 2, 5, 10, 20, 30)),
        (HOUR, "h", (1, 2, 4, 8, 12)),
        (DAY, "d", (1, 2, 4, 7, 14, 30, 60, 120, 240, 480)),
    )
    for s in (size * c for c in counts)
}


def text_of(value: str) -> str:
    """Any text, fit to stand in XML or HTML."""
    return escape(_UNFIT.sub("\ufffd", value), quote=True)


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to pixels; a value outside is drawn at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)


def nice_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 5 × 10^k that gives at most this many steps."""
    least = span / max(most, 1)
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def ticks(scale: Scale, unit: str, gap: float) -> list[tuple[float, str]]:
    """Values and labels of ticks at least `gap` pixels apart."""
    if scale.log:
        return _spread(scale, _log_ticks(scale, unit), gap)
    most = max(int(abs(scale.end - scale.start) / gap), 1)
    if unit == "s":
        steps = [s for s in _FINE_TIMES if (scale.high - scale.low) / s <= most]
        step: float = steps[0] if steps else nice_step((scale.high - scale.low) / DAY, most) * DAY
        per, name = next((p, n) for p, n in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s")) if step >= p)
        return [(v, f"{v / per:g} {name}" if v else "0") for v in _multiples(scale, step)]
    step = nice_step(scale.high - scale.low, most)
    if unit == "share":
        return [(v, f"{100 * v:g}%") for v in _multiples(scale, step)]
    return [(v, f"{v:,.10g}") for v in _multiples(scale, step)]


def _multiples(scale: Scale, step: float) -> list[float]:
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


def _log_ticks(scale: Scale, unit: str) -> dict[float, str]:
    if unit == "s":
        coarse = {float(v): n for v, n in _TIMES.items() if scale.low <= v <= scale.high}
        return (
            coarse if len(coarse) > 2 else {float(v): n for v, n in _FINE_TIMES.items() if scale.low <= v <= scale.high}
        )
    mark = "×" if unit == "ratio" else ""
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    values = [m * 10.0**p for p in powers for m in (1, 2, 5)]
    return {v: f"{mark}{v:g}" for v in values if scale.low <= v <= scale.high}


def _spread(scale: Scale, labels: dict[float, str], gap: float) -> list[tuple[float, str]]:
    kept: list[tuple[float, str]] = []
    # 1 is kept whatever stands beside it: it is where a ratio turns.
    for value, label in sorted(labels.items(), key=lambda item: (item[0] != 1, item[0])):
        if all(abs(scale(value) - scale(other)) >= gap for other, _ in kept):
            kept.append((value, label))
    return sorted(kept)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a chart's plot lies within its picture."""

    width: float
    height: float
    left: float
    top: float
    right: float
    bottom: float


def bottom_axis(frame: Frame, scale: Scale, axis: Axis, gap: float = 52) -> str:
    """Grid lines, labels below, and the axis' name."""
    parts = []
    for value, label in [(v, f"{v:g}") for v in axis.at] or ticks(scale, axis.unit, gap):
        x = scale(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {frame.top:g}V{frame.bottom:g}"/>')
        anchor = "start" if x < frame.left + 12 and frame.left < 20 else "end" if x > frame.right - 12 else "middle"
        parts.append(f'<text class="tick" x="{x:.1f}" y="{frame.bottom + 15:g}" text-anchor="{anchor}">{label}</text>')
    middle = (frame.left + frame.right) / 2
    name = text_of(axis.name)
    parts.append(f'<text class="name" x="{middle:.1f}" y="{frame.bottom + 31:g}" text-anchor="middle">{name}</text>')
    return "".join(parts)


def left_axis(frame: Frame, scale: Scale, axis: Axis, gap: float = 34) -> str:
    """Grid lines and labels on the left."""
    parts = []
    for value, label in ticks(scale, axis.unit, gap):
        y = scale(value)
        parts.append(f'<path class="grid" d="M{frame.left:g} {y:.1f}H{frame.right:g}"/>')
        parts.append(f'<text class="tick" x="{frame.left - 6:g}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    return "".join(parts)


def polyline(xs: list[float], ys: list[float | None]) -> str:
    """The path through the known points, interrupted where one is unknown."""
    parts, pen = [], "M"
    for x, y in zip(xs, ys, strict=True):
        if y is None:
            pen = "M"
            continue
        parts.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    return "".join(parts)


def mark(shape: str, x: float, y: float, r: float) -> str:
    """The outline of a marker as path data."""
    if shape == "square":
        s = r * 0.88
        return f"M{x - s:.1f} {y - s:.1f}h{2 * s:.1f}v{2 * s:.1f}h{-2 * s:.1f}z"
    if shape == "diamond":
        s = r * 1.25
        return f"M{x:.1f} {y - s:.1f}l{s:.1f} {s:.1f}l{-s:.1f} {s:.1f}l{-s:.1f} {-s:.1f}z"
    if shape in ("triangle", "down"):
        s = r * 1.15 * (1 if shape == "triangle" else -1)
        return f"M{x:.1f} {y - s:.1f}L{x + r * 1.15:.1f} {y + s * 0.8:.1f}H{x - r * 1.15:.1f}z"
    if shape == "cross":
        a, b = r * 1.15, r * 0.42
        return (
            f"M{x - b:.1f} {y - a:.1f}h{2 * b:.1f}v{a - b:.1f}h{a - b:.1f}v{2 * b:.1f}h{b - a:.1f}v{a - b:.1f}"
            f"h{-2 * b:.1f}v{b - a:.1f}h{b - a:.1f}v{-2 * b:.1f}h{a - b:.1f}z"
        )
    return f"M{x - r:.1f} {y:.1f}a{r:.1f} {r:.1f} 0 1 0 {2 * r:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {-2 * r:.1f} 0z"
