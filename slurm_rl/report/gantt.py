"""Gantt charts of two schedules of the same jobs, one above the other on one axis of time, as a page of its own."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.report.svg import Scale, text_of, ticks

_WIDTH, _LEFT, _RIGHT = 1180.0, 90.0, 10.0
_LANE = 7.0  # pixels a GPU
_STYLE = """
:root{--ink:#1c2330;--paper:#fff;--line:#d5d9e0;--same:#8fb0d9;--early:#3c9d74;--late:#d0743c}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ef;--paper:#141a23;--line:#39424f;--same:#4a6c99}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;max-width:1200px;
padding:0 1rem}svg{width:100%;height:auto}text{fill:var(--ink);font-size:12px}line{stroke:var(--line)}
rect{stroke:var(--paper);stroke-width:.6}.same{fill:var(--same)}.early{fill:var(--early)}.late{fill:var(--late)}
table{border-collapse:collapse}td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid var(--line)}
td:first-child,th:first-child,td.t,th.t{text-align:left}.scroll{overflow-x:auto}
i{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em}
i.same{background:var(--same)}i.early{background:var(--early)}i.late{background:var(--late)}
"""


@dataclass(frozen=True, slots=True)
class JobBar:
    """A job on one node."""

    job: str
    node: str
    start: float
    end: float
    gpus: int
    kind: str  # same, early or late, of the simulated start to the real one
    tip: str


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A heading, the names of columns, and rows of cells."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def gantt_svg(bars: Sequence[JobBar], capacity: Mapping[str, int], span: float, label: str) -> str:
    """One chart: a band for each node, as high as it has GPUs."""
    scale = Scale(0.0, max(span, 1.0), _LEFT, _WIDTH - _RIGHT)
    top: dict[str, float] = {}
    y = 8.0
    for node, units in capacity.items():
        top[node] = y
        y += units * _LANE + 6
    height = y + 24
    parts = [f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{text_of(label)}">']
    for value, name in ticks(scale, "s", 80):
        x = scale(value)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{y:.1f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 8:.1f}" text-anchor="middle">{text_of(name)}</text>')
    for node, at in top.items():
        parts.append(f'<text x="4" y="{at + 11:.1f}">{text_of(node)}</text>')
    for bar, lane in _lanes(bars, capacity):
        x, end = scale(bar.start), scale(bar.end)
        parts.append(
            f'<rect class="{bar.kind}" x="{x:.1f}" y="{top[bar.node] + lane * _LANE:.1f}" '
            f'width="{max(end - x, 0.8):.1f}" height="{bar.gpus * _LANE:.1f}">'
            f"<title>{text_of(bar.tip)}</title></rect>"
        )
    return "".join([*parts, "</svg>"])


def _lanes(bars: Sequence[JobBar], capacity: Mapping[str, int]) -> list[tuple[JobBar, int]]:
    """Where in its node's band a bar lies: the lowest run of lanes that is free, else the top."""
    busy: dict[str, list[tuple[float, int, int]]] = {node: [] for node in capacity}
    placed = []
    for bar in sorted(bars, key=lambda b: (b.start, b.job)):
        if bar.node not in busy:
            continue
        heap = busy[bar.node]
        while heap and heap[0][0] <= bar.start + 1e-9:
            heapq.heappop(heap)
        taken = {lane for _, first, count in heap for lane in range(first, first + count)}
        room = capacity[bar.node]
        free = (at for at in range(max(room - bar.gpus, 0) + 1) if not taken & set(range(at, at + bar.gpus)))
        lane = next(free, 0)
        heapq.heappush(heap, (bar.end, lane, bar.gpus))
        placed.append((bar, lane))
    return placed


def write_page(
    path: Path, title: str, lead: str, charts: Sequence[tuple[str, str]], tables: Sequence[ReportTable]
) -> None:
    """A self-contained page: tables, then charts under their headings."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{text_of(title)}</title><style>{_STYLE}</style><h1>{text_of(title)}</h1><p>{text_of(lead)}</p>",
    ]
    for table in tables:
        head = "".join(f"<th>{text_of(c)}</th>" for c in table.columns)
        body = "".join("<tr>" + "".join(f"<td>{text_of(c)}</td>" for c in row) + "</tr>" for row in table.rows)
        parts.append(f"<h2>{text_of(table.title)}</h2><div class=scroll><table><tr>{head}</tr>{body}</table></div>")
    key = "".join(f"<i class={kind}></i>{text}" for kind, text in _KEY)
    parts.append(f"<p>{key}</p>" if charts else "")
    parts += [f"<h2>{text_of(heading)}</h2>{drawn}" for heading, drawn in charts]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(parts) + "</html>\n", encoding="utf-8")
    temporary.replace(path)


_KEY = (
    ("same", "starts within a minute of each other"),
    ("early", "the simulator starts it earlier"),
    ("late", "the simulator starts it later"),
)


def rounded(value: float) -> int:
    """GPUs as whole lanes; a job without GPUs is one lane high."""
    return max(1, math.ceil(value))
