"""Exports the report's charts as files: SVG always, PNG where Chromium is there to draw them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_rl.report import contenders, theme
from slurm_rl.report.charts import Chart, Heat
from slurm_rl.report.chromium import chromium, find_chromium
from slurm_rl.report.draw import NARROW, WIDE, Picture, pictures
from slurm_rl.report.gather import all_charts
from slurm_rl.report.html import template_text
from slurm_rl.report.inputs import ReportedRun, ReportedTrace
from slurm_rl.report.measured import Comparison
from slurm_rl.report.svg import mark, text_of

_NAMESPACE = "http://www.w3.org/2000/svg"
_MARGIN, _GAP = 20.0, 18.0
_LETTER = 7.4  # pixels, the mean width of a 12-pixel letter, generously


def write_figures(prepared: ReportedTrace, runs: Sequence[ReportedRun], directory: Path) -> tuple[list[Path], str]:
    """Writes each chart as NAME.svg and, if this machine has Chromium, NAME.png: (files, why PNGs lack, or "")."""
    measured = Comparison(prepared, runs)
    looks = theme.looks(runs)
    charts = all_charts(measured, contenders.baseline(runs))
    drawn = {chart.id: standalone(chart, looks) for chart in charts}
    return write_drawings(drawn, directory)


def write_drawings(drawn: Mapping[str, tuple[str, float, float]], directory: Path) -> tuple[list[Path], str]:
    """Writes drawings (SVG text, width, height) by name, as SVG and PNG: (files, why PNGs lack, or "")."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (text, _, _) in drawn.items():
        written.append(_write(directory / f"{name}.svg", text.encode("utf-8")))
    if find_chromium() is None:
        return written, "PNG files need Chromium (apt install chromium); SVG files are complete"
    with chromium() as page, tempfile.TemporaryDirectory(prefix="slurm-rl-figures-") as scratch:
        for name, (text, width, height) in drawn.items():
            file = Path(scratch) / f"{name}.svg"
            file.write_text(text, encoding="utf-8")
            page.open(file, width=round(width), height=round(height), scale=2)
            written.append(_write(directory / f"{name}.png", page.picture(whole=False)))
    return written, ""


def _write(path: Path, content: bytes) -> Path:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
    return path


def standalone(chart: Chart | Heat, looks: list[theme.Look]) -> tuple[str, float, float]:
    """A chart with title, legend and all panels as an SVG file of its own, in light colours: (text, width, height)."""
    panels = pictures(chart, looks, WIDE)
    columns = 1
    if len(panels) > 1:
        columns = 2 if isinstance(chart, Heat) or len(panels) in (2, 4) else 3
        panels = pictures(chart, looks, NARROW if columns == 3 else WIDE)
    wide, tall = panels[0].frame.width, panels[0].frame.height
    titled = any(p.name for p in panels)
    step = tall + (22 if titled else 0) + _GAP
    width = 2 * _MARGIN + columns * wide + (columns - 1) * _GAP
    shown, top = ("", 48.0) if isinstance(chart, Heat) else legend(looks, width)
    rows = -(-len(panels) // columns)
    height = top + rows * step + _MARGIN - _GAP
    parts = [
        f'<svg xmlns="{_NAMESPACE}" class="chart" width="{width:g}" height="{height:g}"'
        f' viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{text_of(chart.title)}">',
        f"<style>svg{{{theme.variables(looks, dark=False)}}}{theme.classes(looks)}{template_text('chart.css')}</style>",
        f'<rect width="{width:g}" height="{height:g}" fill="var(--card)"/>',
        f'<text class="title" x="{_MARGIN:g}" y="32">{text_of(chart.title)}</text>',
        shown,
    ]
    for i, panel in enumerate(panels):
        x, y = _MARGIN + i % columns * (wide + _GAP), top + i // columns * step
        parts.append(_placed(panel, x, y, titled))
    parts.append("</svg>\n")
    return "".join(parts), width, height


def _placed(panel: Picture, x: float, y: float, titled: bool) -> str:
    title = f'<text class="panel" x="4" y="12">{text_of(panel.name)}</text>' if titled else ""
    shift = 22 if titled else 0
    return f'<g transform="translate({x:g} {y:g})">{title}<g transform="translate(0 {shift})">{panel.body}</g></g>'


def legend(looks: list[theme.Look], width: float) -> tuple[str, float]:
    """Every replay's mark and name, in as many lines as they need: (SVG, where the panels may begin)."""
    parts, x, y = [], _MARGIN, 56.0
    for i, look in enumerate(looks):
        note = " (baseline)" if look.base and len(looks) > 1 else " (out of reach)" if look.dashed else ""
        need = 34 + _LETTER * len(look.label + note) + 14
        if x > _MARGIN and x + need > width - _MARGIN:
            x, y = _MARGIN, y + 20
        dashed = " dashed" if look.dashed else ""
        parts.append(
            f'<g class="p{i}"><path class="line{dashed}" d="M{x:g} {y:g}h26"/>'
            f'<path class="dot{dashed}" d="{mark(look.shape, x + 13, y, 4.2)}"/></g>'
            f'<text class="label" x="{x + 32:g}" y="{y + 4:g}">{text_of(look.label + note)}</text>'
        )
        x += need
    return "".join(parts), y + 22
