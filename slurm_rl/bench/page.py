"""Writes a suite's results: CSV files, figures, summary.json, and one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from slurm_rl import __version__
from slurm_rl.bench.rows import FinishedUnit, finished, replace, write_csv
from slurm_rl.bench.suite import Findings, Settings, Suite
from slurm_rl.report.figures import write_drawings
from slurm_rl.report.text import duration


def write(suite: Suite, settings: Settings, out: Path) -> tuple[Findings, list[Path], str]:
    """Makes all files of a bench whose units are all there: (what was found, files, why PNGs lack or "")."""
    kept = finished(out)
    plan = suite.module.plan(settings)
    rows = [row for unit in plan for row in kept[unit.name].rows]
    found = suite.module.find(rows, settings)
    written = [write_csv(out / name, table) for name, table in found.files.items()]
    drawn = {d.name: (d.svg, d.width, d.height) for d in found.drawings}
    figures, lacking = write_drawings(drawn, out / "figures") if drawn else ([], "")
    mine = {unit.name: kept[unit.name] for unit in plan}
    times = [{"unit": name, "seconds": k.seconds} for name, k in mine.items()]
    written.append(write_csv(out / "timings.csv", times))
    summary = {"suite": suite.name, "settings": settings, "summary": list(found.summary), "figures": found.figures,
               "tables": [asdict(t) for t in found.tables]}  # fmt: skip
    written.append(replace(out / "summary.json", json.dumps(summary, indent=1).encode() + b"\n"))
    command = f"slurm-rl bench {suite.name} --seeds {settings['seeds']}"
    written.append(replace(out / "report.html", page(command, settings, found, mine).encode()))
    return found, [*written, *figures], lacking


def page(
    command: str, settings: Settings, found: Findings, kept: Mapping[str, FinishedUnit], *, sortable: bool = False
) -> str:
    """One page that needs nothing else; `sortable`: a click on a heading sorts, and a word filters the tables."""
    drawings: list[dict[str, Any]] = [
        {"uri": "data:image/svg+xml;base64," + base64.b64encode(d.svg.encode()).decode("ascii"), "name": d.name,
         "caption": d.caption, "width": round(d.width), "height": round(d.height)}
        for d in found.drawings
    ]  # fmt: skip
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    folder = files("slurm_rl.bench") / "template"
    template = (folder / "page.html.j2").read_text(encoding="utf-8")
    script = (folder / "tables.js").read_text(encoding="utf-8") if sortable else ""
    return environment.from_string(template).render(
        title=found.title,
        version=__version__,
        command=command,
        script=Markup(script),  # noqa: S704  # our own file
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        summary=found.summary,
        drawings=drawings,
        tables=found.tables,
        settings={k: ", ".join(v) if isinstance(v, list) else v for k, v in settings.items()},
        units=f"{len(kept):,}",
        seconds=duration(sum(k.seconds for k in kept.values())),
    )
