"""Writes the report: one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from slurm_rl import __version__
from slurm_rl.report import contenders, theme
from slurm_rl.report.charts import Chart, Heat
from slurm_rl.report.draw import NARROW, PAGE, WIDE, pictures, svg
from slurm_rl.report.gather import all_charts
from slurm_rl.report.inputs import ReportedRun, ReportedTrace
from slurm_rl.report.measured import Comparison, size_groups
from slurm_rl.report.summary import summarise
from slurm_rl.report.svg import mark
from slurm_rl.report.table import comparison
from slurm_rl.report.text import duration, plural
from slurm_rl_sim.metrics import METRICS

# Heading, what it is about, and its charts; a chart that spans the page is marked.
_SECTIONS = (
    ("How long jobs wait", "Each line shows all jobs: where it is higher, more jobs are served within that time.",
     ("wait_cdf", "jct_cdf")),
    ("Over time", "The same jobs arrive at the same moments under every policy.", ("queue", "utilization")),
    ("Who waits", "A mean hides who pays for it. Note the logarithmic axes.",
     ("by_size", "by_priority", "by_partition", "by_user")),
    ("Winners and losers", "Each user's mean wait under a policy, against the baseline.", ("users",)),
    ("The nodes", "Where the work runs, and how fragmented the free resources are.", ("occupancy", "fragmentation")),
)  # fmt: skip
_FULL = {"queue", "utilization", "users", "occupancy", "fragmentation"}
_ABSENT = {
    "by_priority": "The trace has neither priorities nor QOS, so there is no chart by priority.",
    "by_partition": "All jobs run in one partition, so there is no chart by partition.",
    "queue": "No job ever waits, so there is no queue to show.",
    "by_user": "The trace names no users, so there is no chart of gains and losses.",
    "occupancy": "No node has a countable resource, so there is no picture of them.",
    "fragmentation": "No job ever waits while another runs, so there is no fragmentation to show.",
}


@dataclass(frozen=True, slots=True)
class _Panel:
    name: str
    run: int | None
    sizes: list[Markup]  # the page shows the one that suits its width


@dataclass(frozen=True, slots=True)
class _Card:
    id: str
    title: str
    caption: str
    full: bool
    columns: int
    heat: bool
    height: float
    panels: list[_Panel]


def write_report(prepared: ReportedTrace, runs: Sequence[ReportedRun], path: Path) -> None:
    """Writes the comparison of replays as a self-contained page; the same replays give the same bytes."""
    page = render(prepared, runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(page.encode("utf-8", "replace"))
    temporary.replace(path)


def render(prepared: ReportedTrace, runs: Sequence[ReportedRun]) -> str:
    """The page as text."""
    measured = Comparison(prepared, runs)
    base = contenders.baseline(runs)
    looks = theme.looks(runs)
    charts = all_charts(measured, base)
    cards = {chart.id: _card(chart, looks) for chart in charts}
    sections = [
        {
            "title": title,
            "lead": lead,
            "missing": [_ABSENT[n] for n in names if n not in cards and n in _ABSENT],
            "stacks": _stacks([cards[n] for n in names if n in cards]),
        }
        for title, lead, names in _SECTIONS
        if any(n in cards for n in names)
    ]
    script = template_text("report.js")
    # Our own files and drawings, whose texts are escaped where they are drawn; all else the template escapes.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    return environment.from_string(template_text("report.html.j2")).render(
        version=__version__,
        trace=prepared.trace,
        facts=_facts(prepared),
        provenance=_provenance(prepared, runs),
        summary=summarise(measured, size_groups(measured)),
        glance=cards.get("glance"),
        runs=runs,
        looks=looks,
        base=base,
        swatch=[mark(look.shape, 13, 7, 4.2) for look in looks],
        table=comparison(runs, base),
        sections=sections,
        light=Markup(theme.variables(looks, dark=False)),  # noqa: S704
        dark=Markup(theme.variables(looks, dark=True)),  # noqa: S704
        styles=Markup(template_text("report.css") + template_text("chart.css") + theme.classes(looks)),  # noqa: S704
        data=Markup(_embedded(runs, looks, base, charts)),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
    )  # fmt: skip


def template_text(name: str) -> str:
    """A file of the template directory."""
    return files("slurm_rl.report").joinpath("template", name).read_text(encoding="utf-8")


def _card(chart: Chart | Heat, looks: list[theme.Look]) -> _Card:
    full = chart.id in _FULL
    drawn = {"wide": pictures(chart, looks, WIDE), "narrow": pictures(chart, looks, NARROW)}
    count = len(drawn["wide"])
    heat, scatter = isinstance(chart, Heat), isinstance(chart, Chart) and chart.kind == "scatter"
    if full and count == 1 and not scatter:
        drawn = {"page": pictures(chart, looks, PAGE)} | drawn
    panels = [
        _Panel(wide.name, wide.run, [Markup(svg(drawn[size][i], chart, size)) for size in drawn])  # noqa: S704
        for i, wide in enumerate(drawn["wide"])
    ]
    columns = min(count, 2 if heat or count == 4 else 3)
    if scatter or heat:  # a square as wide as the page would fill the screen
        columns = max(columns, 2)
    height = sum(p.frame.height for p in drawn["wide"]) + 100
    return _Card(chart.id, chart.title, chart.caption, full, columns, heat, height, panels)


def _stacks(cards: list[_Card]) -> list[list[_Card]]:
    """Cards that span the page, each alone; else two columns, or three where two would be of very unequal height."""
    if any(card.full for card in cards):
        return [[card] for card in cards]
    columns: tuple[list[_Card], list[_Card]] = ([], [])
    for card in sorted(cards, key=lambda c: -c.height):
        min(columns, key=lambda column: sum(c.height for c in column)).append(card)
    if len(cards) == 3 and abs(sum(c.height for c in columns[0]) - sum(c.height for c in columns[1])) > 200:
        return [[card] for card in cards]
    return [column for column in columns if column]


def _facts(prepared: ReportedTrace) -> str:
    first, last = prepared.trace.span()
    cluster = prepared.cluster
    return (
        f"{plural(len(prepared.trace), 'job')} submitted over {duration(last - first)}, on {cluster.name}"
        f" ({plural(cluster.nodes, 'node')}, {plural(cluster.gpus, 'GPU')})"
    )


def _provenance(prepared: ReportedTrace, runs: Sequence[ReportedRun]) -> str:
    digest = prepared.trace.meta.get("sha256")
    ways = sorted({f"{r.backfill} backfill, {r.placement} placement" for r in runs})
    return f"Replayed with {'; '.join(ways)}." + (f" SHA-256 of the trace: {digest}." if digest else "")


def _embedded(runs: Sequence[ReportedRun], looks: list[theme.Look], base: int, charts: list[Chart | Heat]) -> str:
    """What the page's script reads, as JSON that no text within can end."""
    heat = next((c for c in charts if isinstance(c, Heat)), None)
    reported = {m.name for m in METRICS if m.group}
    value = {
        "base": base,
        "runs": [
            {
                "label": look.label,
                "policy": run.policy,
                "backfill": run.backfill,
                "placement": run.placement,
                "metrics": {k: v for k, v in run.metrics.items() if k in reported},
            }
            for run, look in zip(runs, looks, strict=True)
        ],
        "charts": {c.id: _short(asdict(c)) for c in charts if isinstance(c, Chart)},
        "heat": heat
        and {
            "id": heat.id,
            "xs": _short(heat.xs),
            "rows": heat.rows,
            "cells": [base64.b64encode(c.tobytes()).decode("ascii") for c in heat.cells],
        },
    }
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _short(value: Any) -> Any:
    """The same value with six significant digits: more cannot be seen, and they are most of the file."""
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_short(v) for v in value]
    if isinstance(value, float):
        short = float(f"{value:.6g}") if math.isfinite(value) else None
        return int(short) if short is not None and short.is_integer() else short
    return value
