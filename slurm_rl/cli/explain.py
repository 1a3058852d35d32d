"""`slurm-rl explain JOBID`: where a pending job stands, why, and what would move it."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)


@app.command()
def explain(
    job_id: Annotated[int, typer.Argument(help="A pending job of yours.")],
    config: Annotated[Path | None, typer.Option(help="The configuration file, for the service's socket.")] = None,
    socket: Annotated[Path | None, typer.Option(help="The service's unix socket.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Say where a pending job stands, why, when it may start, and what would move it."""
    from slurm_rl.config import load
    from slurm_rl.serve.ask import ask, must

    path = socket or Path(load(config).config.socket)
    said = must(ask(path, "GET", f"/v1/jobs/{job_id}/explain"))
    print(json.dumps(said) if as_json else _text(said))


def _text(said: dict[str, Any]) -> str:
    job = said["job"]
    lines = [f"job {job['job_id']} ({job['name']}) of {job['user']} in {job['partition']}, waiting {span(job['wait'])}"]
    if not said["ordered"]:
        return "\n".join([*lines, f"  left to Slurm: {said['why']}"])
    start, estimate, factor = said["expected_start"], said["estimate"], said["site_factor"]
    low, high = estimate["range"]
    lines += [
        f"  place    {said['rank']} of {said['of']}"
        + ("  (promoted: it has waited too long)" if said["promoted"] else ""),
        f"  why      {said['policy']['name']} score {said['policy']['score']:.6g}"
        + "".join(f"\n             {_feature(c)}" for c in said["features"]),
        f"  run time about {span(estimate['seconds'])} ({span(low)} to {span(high)}), limit {span(job['time_limit'])}",
        f"  start    about {clock(start['time'])} ({clock(start['range'][0])} to {clock(start['range'][1])})"
        + (f"; Slurm says {clock(start['by_slurm'])}" if start["by_slurm"] else ""),
        f"  priority {said['slurm'].get('priority')} = "
        + " + ".join(f"{name} {value}" for name, value in said["slurm"].items() if value and name not in ("priority",)),
        f"  SiteFactor {factor['now']}, wanted {factor['wanted']}, bound ±{factor['bound']}, mode {said['mode']}",
    ]
    moves = said["what_would_move_it"]
    lines += [f"  with {m['what']}: place {m['rank']} instead of {m['from']}" for m in moves]
    return "\n".join(lines)


def _feature(c: dict[str, Any]) -> str:
    """What one thing about the job does to its place."""
    timed = c["feature"] in ("wait", "run time")
    value, usual = (span(v) if timed else f"{v:.3g}" for v in (c["value"], c["usual"]))
    effect = f"{'up' if c['places'] > 0 else 'down'} {abs(c['places'])}" if c["places"] else "no place"
    return f"{c['feature']} {value} (usual {usual}): {effect}"


def span(seconds: float) -> str:
    """A duration in the unit that fits."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


def clock(when: float) -> str:
    return datetime.datetime.fromtimestamp(when).astimezone().strftime("%a %H:%M:%S")
