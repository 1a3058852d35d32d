"""`slurm-rl bench`: suites of paired runs, with CSV files, figures and a page."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from slurm_rl.errors import EnvironmentMissing, InputError, unknown_name

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_HELP = """Compare schedulers, agents and placements, in pairs and with intervals.

core: all schedulers on 56 regimes. robust: on 160 distorted workloads. ablate: agents retrained without a part.
agents: learning algorithms at equal budgets. packing: placements that fill a cluster until nothing fits.

Each suite writes CSV files, figures (SVG, PNG) and OUT/report.html, which names the winner, the margin and the ties.
To resume a stopped bench, give the same command again.

Examples:

  slurm-rl bench core --out out/core

  slurm-rl bench core --seeds 1 --jobs 300 --policy fcfs,saf@user,rl:default --out out/quick

  slurm-rl bench agents --traces ~/traces --out out/agents

  slurm-rl bench robust --executor slurm --tasks 16 --slurm partition=cpu --out /shared/robust
"""


@app.command(help=_HELP)
def bench(
    suite: Annotated[str, typer.Argument(help="The suite.")],
    out: Annotated[Path, typer.Option(help="Directory for all output.")],
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions, each with its own workloads.")] = None,
    jobs: Annotated[int | None, typer.Option(min=50, help="Jobs in a workload.")] = None,
    policy: Annotated[str | None, typer.Option(help="Schedulers to compare instead of all.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Jobs, or pods, to train an agent on.")] = None,
    seconds: Annotated[int | None, typer.Option(min=0, help="agents: time budget in seconds; 0: none.")] = None,
    traces: Annotated[Path | None, typer.Option(help="Folder of public traces; default: $SLURM_RL_TRACES.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per processor.")] = None,
    executor: Annotated[str, typer.Option(help="local, or slurm: parts as tasks of a job array.")] = "local",
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks, with --executor slurm.")] = 8,
    retries: Annotated[int, typer.Option(min=0, help="Resubmissions of lost tasks, with --executor slurm.")] = 2,
    slurm: Annotated[list[str] | None, typer.Option(help="An option for sbatch, KEY=VALUE; may be repeated.")] = None,
    part: Annotated[str | None, typer.Option(help="K/N: run only the K-th of N parts, without a report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Runs a suite; `_HELP` is what users see."""
    from slurm_rl.bench.rows import begin, locked
    from slurm_rl.bench.running import part_of, processors, run_units
    from slurm_rl.cli.progress import counting

    row = _find(suite)
    if executor not in ("local", "slurm"):
        raise unknown_name("executor", executor, ["local", "slurm"])
    if executor == "slurm" and part is not None:
        raise InputError("is for --executor local", field="--part", remedy="--executor slurm makes the parts")
    if traces is None and "traces" in row.defaults and (folder := os.environ.get("SLURM_RL_TRACES")):
        traces = Path(folder)
    settings = _settings(
        row, {"seeds": seeds, "jobs": jobs, "policy": policy, "steps": steps, "seconds": seconds, "traces": traces}
    )
    cut = part_of(part) if part is not None else None
    row.module.plan(settings)  # what cannot be planned leaves nothing behind
    count = workers or processors()
    if cut is not None:  # its lock is the file of its own that it writes
        begin(out, suite, settings)
        with counting(suite, as_json) as told:
            run_units(row, settings, out, workers=count, part=cut, told=told)
        _say(as_json, {"out": str(out), "part": part}, f"part {part} of {suite} is in {out}")
        return
    began = time.monotonic()
    with locked(out):
        begin(out, suite, settings)
        if executor == "slurm":
            from slurm_rl.bench.on_slurm import run_on_slurm
            from slurm_rl.cli.train import slurm_options

            say = (lambda text: None) if as_json else (lambda text: print(text, flush=True))
            run_on_slurm(row, settings, out, slurm_options(slurm or []), tasks=tasks, retries=retries, say=say)
        else:
            with counting(suite, as_json) as told:
                run_units(row, settings, out, workers=count, part=None, told=told)
        _tell(row, settings, out, as_json, time.monotonic() - began)


def _find(name: str) -> Any:
    from slurm_rl.bench.suites import SUITES

    if name not in SUITES:
        raise unknown_name("suite", name, SUITES)
    row = SUITES[name]
    import importlib.util

    lacking = [p for p in row.needs if importlib.util.find_spec(p) is None]
    if lacking:
        raise EnvironmentMissing(f"bench {name} needs {', '.join(lacking)}: pip install 'slurm-rl[all]'")
    return row


def _settings(row: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What the suite is to do; an option that it does not take is an error, not ignored."""
    from slurm_rl.bench.schedulers import chosen

    for name, value in given.items():
        if value is not None and name not in row.defaults:
            taken = ", ".join(_flag(n) for n in row.defaults)
            raise InputError(f"bench {row.name} has no such option", field=_flag(name), remedy=f"it takes {taken}")
    settings = {n: default if given.get(n) is None else given[n] for n, default in row.defaults.items()}
    if "policy" in settings:
        settings["policy"] = chosen(settings["policy"])
    return {n: str(v.resolve()) if isinstance(v, Path) else v for n, v in settings.items()}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _say(as_json: bool, value: dict[str, Any], text: str) -> None:
    print(json.dumps(value) if as_json else text)


def _tell(row: Any, settings: dict[str, Any], out: Path, as_json: bool, seconds: float) -> None:
    from slurm_rl.bench.page import write

    found, files, lacking = write(row, settings, out)
    if as_json:
        print(json.dumps({"suite": row.name, "out": str(out), "settings": settings, "summary": list(found.summary),
                          "figures": found.figures, "files": [str(f.relative_to(out)) for f in files],
                          "wall_seconds": round(seconds, 1)}))  # fmt: skip
        return
    for text in found.summary:
        print(f"- {text}")
    if lacking:
        print(lacking)
    print(f"{out / 'report.html'}, {out / row.csv} and {len(files) - 2} further files")
