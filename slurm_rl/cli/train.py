"""`slurm-rl train`: learns a policy and writes a model directory."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_rl.errors import EnvironmentMissing, InputError, unknown_name

if TYPE_CHECKING:
    from slurm_rl.train.ppo import Settings

_HELP = """Learn a policy from traces and generated workloads, and write it to OUT/model.

Training sees only the first part of each trace's time (--share). It starts from the heuristic sjf-age, learns what run
time estimates miss, searches over the linear part of the network, and then improves all of it by PPO on whole replays.
OUT/curve.csv has the course of the validation; --resume goes on after a stop, with the same result as without it.

Examples:

  slurm-rl train --trace history.csv --cluster cluster.json --out runs/mine

  slurm-rl train --out runs/generated --iterations 20        (generated workloads alone)

  slurm-rl train --trace history.csv --out runs/mine --resume --iterations 100
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=_HELP)
def train(
    out: Annotated[Path, typer.Option(help="Directory for the model, the curve and the state of the training.")],
    trace: Annotated[list[Path] | None, typer.Option(help="Trace to learn from; may be given several times.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: TRACE's NAME.cluster.json.")] = None,
    algo: Annotated[str, typer.Option(help="ppo")] = "ppo",
    iterations: Annotated[int, typer.Option(min=0, help="Of PPO; 0: imitation and search alone.")] = 60,
    scenes: Annotated[int, typer.Option(min=1, help="Workloads played in each iteration.")] = 12,
    jobs: Annotated[int, typer.Option(min=100, help="Jobs of a workload.")] = 2500,
    generations: Annotated[int, typer.Option(min=0, help="Of the search before PPO.")] = 30,
    generated: Annotated[float, typer.Option(min=0, max=1, help="Share of workloads that are made up.")] = 0.5,
    share: Annotated[float, typer.Option(min=0.05, max=1, help="Part of each trace's time to learn from.")] = 0.6,
    goals: Annotated[str, typer.Option(help="Weights of what is sought.")] = "bsld=1,wait=0.75,p99=0.75,max=0.5",
    starve_drain: Annotated[
        float, typer.Option(min=0.1, help="A job that waited so many times the backlog's time goes first.")
    ] = 3.0,
    init_from: Annotated[str | None, typer.Option(help="Start from this model (a name or a directory).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training in OUT.")] = False,
    executor: Annotated[str, typer.Option(help="local, or slurm: submit the training as a job.")] = "local",
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Trains; `_HELP` is what users see."""
    if algo != "ppo":
        raise unknown_name("algorithm", algo, ["ppo"])
    if executor not in ("local", "slurm"):
        raise unknown_name("executor", executor, ["local", "slurm"])
    need_torch()
    if executor == "slurm":
        value: dict[str, Any] = _submit(out, [a for a in sys.argv[1:] if a != "--json"])
        print(json.dumps(value) if as_json else f"submitted as job {value['job']}; log: {value['log']}")
        return
    from slurm_rl.policy.checkpoint import find_model, load_model
    from slurm_rl.train.ppo import Settings
    from slurm_rl.train.recipe import train_model
    from slurm_rl.train.search import SearchSettings

    settings = Settings(
        iterations=iterations,
        scenes=scenes,
        jobs=jobs,
        generated=1.0 if not trace else generated,
        search=SearchSettings(generations=generations),
        goals=read_goals(goals),
        starve_drain=starve_drain,
        seed=seed,
    )
    start = load_model(find_model(init_from)).net if init_from else None
    began = time.monotonic()
    model = train_model(
        settings,
        read_sources(trace or [], cluster),
        out,
        share=share,
        resume=resume,
        start=start,
        report=reporter(settings, began, as_json),
        say=lambda text: None if as_json else print(text, flush=True),
    )
    value = {
        "model": str(out / "model"),
        "sha256": model.digest,
        "scores": dict(model.manifest["scores"]),
        "wall_seconds": time.monotonic() - began,
    }
    print(
        json.dumps(value)
        if as_json
        else f"model: {out / 'model'}  (try: slurm-rl replay TRACE --policy rl:{out / 'model'})"
    )


def read_goals(text: str) -> dict[str, float]:
    """Weights of bsld, wait, p99 and max."""
    from slurm_rl.train.search import GOALS

    goals = {}
    for part in text.split(","):
        name, _, weight = part.partition("=")
        if name.strip() not in GOALS:
            raise unknown_name("goal", name.strip(), GOALS)
        try:
            goals[name.strip()] = float(weight)
        except ValueError:
            raise InputError(f"must be NAME=WEIGHT,…, got {part!r}", field="--goals") from None
    if not sum(goals.values()) > 0 or min(goals.values()) < 0:
        raise InputError("weights must not be negative, nor all 0", field="--goals")
    return goals


def read_sources(paths: list[Path], cluster: Path | None) -> list[Any]:
    """Traces with their clusters."""
    from slurm_rl.traces.read import read_trace
    from slurm_rl_sim.replay import find_cluster

    if cluster is not None and len(paths) > 1:
        raise InputError("goes with one trace", field="--cluster", remedy="write NAME.cluster.json beside each trace")
    sources = []
    for path in paths:
        trace = read_trace(path)
        sources.append((trace, find_cluster(trace, path, cluster)))
    return sources


def need_torch() -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise EnvironmentMissing("training needs torch: pip install 'slurm-rl[train]'")


def reporter(settings: Settings, began: float, quiet: bool) -> Any:
    """One line an iteration, with the time that is left."""
    first: dict[str, float] = {}

    def report(row: dict[str, float]) -> None:
        if quiet:
            return
        done = row["iteration"]
        first.setdefault("at", time.monotonic())
        first.setdefault("done", done)
        pace = (time.monotonic() - first["at"]) / max(done - first["done"], 1)
        left = f", {(settings.iterations - done) * pace / 60:.0f} min left" if done > first["done"] else ""
        print(
            f"iteration {done:.0f}/{settings.iterations}: BSLD {row['bsld']:.3f}, wait {row['wait']:.3f}, "
            f"p99 {row['p99']:.3f}, max {row['max']:.3f} of {settings.reference}; best {row['best']:.4f}; "
            f"{(time.monotonic() - began) / 60:.1f} min{left}",
            flush=True,
        )

    return report


def _submit(out: Path, arguments: list[str]) -> dict[str, Any]:
    """Runs the same command as a Slurm job."""
    import submitit

    kept = [a for i, a in enumerate(arguments) if a != "--executor" and (i == 0 or arguments[i - 1] != "--executor")]
    kept = [a for a in kept if not a.startswith("--executor=")]
    log = out / "slurm"
    log.mkdir(parents=True, exist_ok=True)
    manager = submitit.SlurmExecutor(folder=log)
    manager.update_parameters(job_name="slurm-rl-train", cpus_per_task=2, time=12 * 60)
    function = submitit.helpers.CommandFunction([sys.executable, "-m", "slurm_rl", *kept])
    job = manager.submit(function)
    return {"job": str(job.job_id), "log": str(job.paths.stdout)}
