"""`slurm-rl explain JOBID`: a pending job's place, its reasons and remedies; for other jobs, what held them back."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)


_EPILOG = """Examples:

slurm-rl explain 4211                            on the service's machine

slurm-rl explain 4211_7 --url https://ctl:8443   on a login node, with a munge credential"""


@app.command(epilog=_EPILOG)
def explain(
    job_id: Annotated[
        str,
        typer.Argument(help="Your job as squeue shows it: JOBID or JOBID_TASK. For a started job: its use of GPUs."),
    ],
    config: Annotated[Path | None, typer.Option(help="The configuration file, for the service's address.")] = None,
    socket: Annotated[Path | None, typer.Option(help="The service's unix socket.")] = None,
    url: Annotated[str | None, typer.Option(help="The service's address on TCP, https://HOST:PORT.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Explain a pending job: its place, the reasons, the expected start, and requests that would move it."""
    from slurm_rl.config import load
    from slurm_rl.serve.ask import ask_here_or_afar
    from slurm_rl.serve.jobid import parse

    path = f"/v1/jobs/{parse(job_id)}/explain"
    said = ask_here_or_afar(load(config).config, path, socket=socket, url=url or "")
    print(json.dumps(said) if as_json else _text(said))


def _text(said: dict[str, Any]) -> str:
    if "job" not in said:
        return _past(said)
    job = said["job"]
    lines = [f"job {job['job_id']} ({job['name']}) of {job['user']} in {job['partition']}, waiting {span(job['wait'])}"]
    if (slurm := said.get("slurm_reason")) and slurm["code"]:
        lines.append(f"  Slurm    {slurm['code']}: {slurm['meaning']} {slurm['remedy']}")
    lines += [f"           {limit['text']}" for limit in said.get("limits", [])]
    if not said["ordered"]:
        return "\n".join([*lines, f"  left to Slurm: {said['why']}", *_held_back(said)])
    start, estimate, factor = said["expected_start"], said["estimate"], said["site_factor"]
    low, high = estimate["range"]
    ruler = said.get("ruled_by")
    lines += [
        f"  place    {said['rank']} of {said['of']}"
        + ("  (promoted: it has waited too long)" if said["promoted"] else ""),
        *([f"  ruled by {ruler['policy']} since {clock(ruler['since'])}: {ruler['why']}"] if ruler else []),
        *_ahead(said.get("ahead") or {}),
        f"  why      {said['policy']['name']} score {said['policy']['score']:.6g}"
        + "".join(f"\n             {_feature(c)}" for c in said["features"]),
        f"  run time about {span(estimate['seconds'])} ({span(low)} to {span(high)}), limit {span(job['time_limit'])}",
        f"  start    about {clock(start['time'])} ({clock(start['range'][0])} to {clock(start['range'][1])})"
        + (f"; Slurm says {clock(start['by_slurm'])}" if start["by_slurm"] else ""),
        f"           {_skill(start)}",
        f"  priority {said['slurm'].get('priority')} = "
        + " + ".join(f"{name} {value}" for name, value in said["slurm"].items() if value and name not in ("priority",)),
        f"  SiteFactor {factor['now']}, wanted {factor['wanted']}, bound ±{factor['bound']}, mode {said['mode']}",
    ]
    moves = said["what_would_move_it"]
    lines += [f"  with {m['what']}: place {m['rank']} instead of {m['from']}" for m in moves]
    if (advice := said.get("limit_advice")) is not None:
        lines.append(f"  limit    {advice['text']}")
    lines += _held_back(said)
    return "\n".join(lines)


def _ahead(ahead: dict[str, Any]) -> list[str]:
    """Who goes before the job, by kind."""
    if not ahead or not ahead["jobs"]:
        return []
    kinds = ((ahead["yours"], "yours"), (ahead["same_account"], "of your account"), (ahead["others"], "of others"))
    who = ", ".join(f"{count} {kind}" for count, kind in kinds if count)
    return [f"  ahead    {who}: {counted(ahead['gpus'], 'GPUs')}, about {ahead['gpu_hours']:g} GPU hours"]


def _past(said: dict[str, Any]) -> str:
    """A job that is not pending any more."""
    lines = [f"job {said['job_id']} of {said['user']}"]
    if (used := said.get("measured")) is not None:
        from slurm_rl.telemetry.words import words

        state = "runs" if used["running"] else f"ended {clock(used['end'])}"
        lines = [f"{lines[0]}: {state}", *(f"  {w}" for w in words(used))]
    told = [f for f in said["forecasts"] if f["came"] is not None]
    if told:
        first = told[0]
        lines.append(
            f"  started {clock(first['came'])}; told first: about {clock(first['median'])} "
            f"({clock(first['low'])} to {clock(first['high'])})"
        )
    return "\n".join([*lines, *_held_back(said)])


def _held_back(said: dict[str, Any]) -> list[str]:
    rows = said.get("held_back") or []
    return ["  held back", *(f"    {span(c['seconds']):>9}  {c['code']}: {c['meaning']}" for c in rows)] if rows else []


def _skill(start: dict[str, Any]) -> str:
    if start.get("made") is None:
        return "not simulated yet: guessed by the work before it"
    return str(start.get("skill", {}).get("text", "forecasts are not scored yet"))


def _feature(c: dict[str, Any]) -> str:
    """What one thing about the job does to its place."""
    timed = c["feature"] in ("wait", "run time")
    unit = "" if timed else c.get("unit") or ""
    value, usual = (span(v) if timed else counted(v, unit) for v in (c["value"], c["usual"]))
    effect = f"{'up' if c['places'] > 0 else 'down'} {abs(c['places'])}" if c["places"] else "no place"
    return f"{c['feature']} {value} (usual {usual}): {effect}"


def counted(value: float, unit: str) -> str:
    """A number with its unit, which loses its s after 1."""
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{number} {unit.removesuffix('s') if value == 1 and unit == 'GPUs' else unit}".rstrip()


def span(seconds: float) -> str:
    """A duration in the unit that fits."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


def clock(when: float) -> str:
    return datetime.datetime.fromtimestamp(when).astimezone().strftime("%a %H:%M:%S")
