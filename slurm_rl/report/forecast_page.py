"""The page of `forecast-report`: how well ranges hold, and forecasts beside outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_rl.report.svg import Scale, text_of

_SIZE, _EDGE = 420.0, 56.0
_TICKS = ((60, "1 min"), (600, "10 min"), (3600, "1 h"), (21600, "6 h"), (86400, "1 d"), (604800, "7 d"))
_STYLE = (
    ":root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--soft:#8a929c;--a:#1f6feb;--b:#c2410c}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--paper:#14171a;--a:#6ea8fe;--b:#fb923c}}"
    "body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:70rem;margin:2rem auto;"
    "padding:0 1rem}svg{max-width:100%;height:auto;margin-right:1rem}text{fill:var(--ink);font-size:12px}"
    ".axis{stroke:var(--soft);fill:none}.same{stroke:var(--soft);stroke-dasharray:4 4}.a{stroke:var(--a);fill:none}"
    ".b{stroke:var(--b);fill:none}.dot{fill:var(--a);stroke:none}.dotb{fill:var(--b);stroke:none}.range{stroke:var(--a);"
    "stroke-opacity:.25}.scroll{overflow-x:auto}table{border-collapse:collapse}td,th{padding:.2rem .8rem;"
    "text-align:right}td:first-child,th:first-child{text-align:left}figure{display:inline-block;margin:0 1rem 1rem 0}"
)


def _svg(body: str, label: str) -> str:
    low, high = _EDGE, _SIZE - 12
    axes = f'<path class=axis d="M{low} 12V{high - 30}H{high}"/>'
    head = f'<svg viewBox="0 0 {_SIZE:g} {_SIZE:g}" width={_SIZE:g} role=img aria-label="{text_of(label)}">'
    return f"{head}{axes}{body}</svg>"


def calibration_svg(told: Sequence[tuple[float, float]], futures: Sequence[tuple[float, float]]) -> str:
    """Nominal shares across, shares of the starts up: on the diagonal, a forecast means what it says."""
    x = Scale(0.0, 1.0, _EDGE, _SIZE - 12)
    y = Scale(0.0, 1.0, _SIZE - 42, 12)
    body = [f'<line class=same x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}"/>']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        body.append(f'<text x="{x(share):.0f}" y="{_SIZE - 24:.0f}" text-anchor=middle>{share:.0%}</text>')
        body.append(f'<text x="{_EDGE - 6:.0f}" y="{y(share) + 4:.0f}" text-anchor=end>{share:.0%}</text>')
    line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in futures)
    body.append(f'<polyline class=b points="{line}"/>')
    body += [f'<circle class=dot cx="{x(a):.1f}" cy="{y(b):.1f}" r=5 />' for a, b in told]
    body.append(f'<text x="{x(0.5):.0f}" y="{_SIZE - 6:.0f}" text-anchor=middle>forecast share of starts</text>')
    return _svg("".join(body), "calibration: forecast share against real share of starts")


def scatter_svg(rows: Sequence[tuple[float, float, float, float]]) -> str:
    """Waits that were told (median and range) across, waits that came up; both in logarithms."""
    x = Scale(30.0, 2e6, _EDGE, _SIZE - 12, log=True)
    y = Scale(30.0, 2e6, _SIZE - 42, 12, log=True)
    body = [f'<line class=same x1="{x(30)}" y1="{y(30)}" x2="{x(2e6)}" y2="{y(2e6)}"/>']
    for seconds, label in _TICKS:
        body.append(f'<text x="{x(seconds):.0f}" y="{_SIZE - 24:.0f}" text-anchor=middle>{label}</text>')
        body.append(f'<text x="{_EDGE - 6:.0f}" y="{y(seconds) + 4:.0f}" text-anchor=end>{label}</text>')
    for median, low, high, wait in rows:
        up = y(max(wait, 30.0))
        body.append(
            f'<line class=range x1="{x(max(low, 30)):.1f}" x2="{x(max(high, 30)):.1f}" y1="{up:.1f}" y2="{up:.1f}"/>'
        )
        body.append(f'<circle class=dot cx="{x(max(median, 30)):.1f}" cy="{up:.1f}" r=2 />')
    body.append(
        f'<text x="{x(8000):.0f}" y="{_SIZE - 6:.0f}" text-anchor=middle>forecast wait (line: the 80% range)</text>'
    )
    return _svg("".join(body), "forecast waits against real waits")


def write_forecast_page(
    path: Path,
    title: str,
    lead: str,
    columns: Sequence[str],
    table: Sequence[Sequence[str]],
    pictures: Sequence[tuple[str, str]],
) -> None:
    """One self-contained page."""
    head = "".join(f"<th>{text_of(c)}</th>" for c in columns)
    body = "".join("<tr>" + "".join(f"<td>{text_of(c)}</td>" for c in row) + "</tr>" for row in table)
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{text_of(title)}</title><style>{_STYLE}</style><h1>{text_of(title)}</h1><p>{text_of(lead)}</p>",
        f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>",
        *(f"<figure><figcaption>{text_of(name)}</figcaption>{drawn}</figure>" for name, drawn in pictures),
        "</html>\n",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(parts), encoding="utf-8")
    temporary.replace(path)
