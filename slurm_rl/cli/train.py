"""`slurm-rl train`: learns a policy and writes a model directory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_rl.errors import EnvironmentMissing, InputError, SlurmError, unknown_name
from slurm_rl.train.algorithms.catalogue import algorithm_names, find_algorithm

if TYPE_CHECKING:
    from slurm_rl.train.settings import Settings

_HELP = """Learn a policy from traces and generated workloads, and write it to OUT/model.

Training sees only the first part of each trace's time (--share). It starts from the heuristic sjf-age, learns what run
time estimates miss, searches over the linear part of the network, and then improves all of it with --algo.
OUT/curve.csv and curve.svg have the validation curve, OUT/tensorboard all figures. --resume continues a stopped
training, with the same result as without the stop. An OUT that holds another training is refused.

Examples:

  slurm-rl train --trace history.csv --cluster cluster.json --out runs/mine

  slurm-rl train --out runs/generated --iterations 20        (generated workloads alone)

  slurm-rl train --trace history.csv --out runs/mine --resume --iterations 100

  slurm-rl train --algo metadqn --out runs/meta --candidates sjf@user,edf,wfp3   (which policy rules now)

  slurm-rl train --trace history.csv --out runs/mine --seeds 4 --executor slurm --slurm partition=gpu --slurm mem=16G
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=_HELP)
def train(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Directory for the model, the curve and the state of the training.")],
    trace: Annotated[list[Path] | None, typer.Option(help="Trace to learn from; may be repeated.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: TRACE's NAME.cluster.json.")] = None,
    algo: Annotated[str, typer.Option(help=f"{', '.join(algorithm_names())}.")] = "ppo",
    iterations: Annotated[
        int, typer.Option(min=0, help="Iterations of the algorithm; 0: lessons and search alone.")
    ] = 60,
    scenes: Annotated[int, typer.Option(min=1, help="Workloads played in each iteration.")] = 12,
    jobs: Annotated[int, typer.Option(min=100, help="Jobs in a workload.")] = 2500,
    lessons: Annotated[int, typer.Option(min=0, help="Workloads from which run times are learned first.")] = 400,
    generations: Annotated[int, typer.Option(min=0, help="Generations of the search before the algorithm.")] = 120,
    candidates: Annotated[
        str | None,
        typer.Option(help="With --algo metadqn: policies to choose from, POLICY,…; default: nine of them."),
    ] = None,
    options: Annotated[str, typer.Option("--set", help="The algorithm's own settings: NAME=NUMBER,…")] = "",
    generated: Annotated[float, typer.Option(min=0, max=1, help="Share of generated workloads.")] = 0.5,
    share: Annotated[float, typer.Option(min=0.05, max=1, help="Share of each trace's time to learn from.")] = 0.6,
    goals: Annotated[str, typer.Option(help="Weights of the goals.")] = "bsld=1,wait=1,p99=1,max=0.5",
    starve_drain: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="The model's cap: a job that waited this many backlogs goes first; default: 8, or as before."
        ),
    ] = None,
    init_from: Annotated[str | None, typer.Option(help="Start from this model (a name or a directory).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the training in OUT.")] = False,
    executor: Annotated[str, typer.Option(help="local, or slurm: submit each seed's training as a job.")] = "local",
    slurm: Annotated[list[str] | None, typer.Option(help="An option for sbatch, KEY=VALUE; may be repeated.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the jobs, then choose the best seed.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = 0,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, help="Number of seeds to train, from --seed on, in OUT/seed-N; the best becomes OUT/model."
        ),
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Trains; `_HELP` is what users see."""
    row = find_algorithm(algo)
    if executor not in ("local", "slurm"):
        raise unknown_name("executor", executor, ["local", "slurm"])
    need_torch()
    say: Callable[[str], None] = (lambda text: None) if as_json else (lambda text: print(text, flush=True))
    outs = {s: out / f"seed-{s}" if seeds > 1 else out for s in range(seed, seed + seeds)}
    from slurm_rl.domain.pairs import parse_pairs
    from slurm_rl.train.recipe import refuse_used, train_model

    own = parse_pairs(options, "--set", "NAME=NUMBER,…")
    row.settings(own)
    if not resume:
        refuse_used([out, *outs.values()], "--resume goes on with it; or give another --out")
    if executor == "slurm":
        read_sources(trace or [], cluster)  # what is wrong with them is said here, not in a job's log
        _in_jobs(context, outs, out, slurm_options(slurm or []), wait=wait, as_json=as_json, say=say)
        return
    from slurm_rl.policy.checkpoint import find_model, load_model
    from slurm_rl.train.settings import SearchSettings, Settings

    settings = Settings(
        algorithm=algo,
        options=own,
        iterations=iterations,
        scenes=scenes,
        jobs=jobs,
        generated=1.0 if not trace else generated,
        lessons=lessons,
        search=SearchSettings(generations=generations),
        goals=read_goals(goals),
        candidates=_candidates(row.name, candidates),
        seed=seed,
    )
    start = load_model(find_model(init_from)) if init_from else None
    began = time.monotonic()
    sources = read_sources(trace or [], cluster)
    for s, place in outs.items():
        if seeds > 1:
            say(f"seed {s}:")
        train_model(
            replace(settings, seed=s),
            sources,
            place,
            share=share,
            resume=resume,
            start=start,
            starve_drain=starve_drain,
            report=reporter(settings, began, as_json),
            say=say,
        )
    _tell_best(outs, out, as_json, {"wall_seconds": time.monotonic() - began})


def _candidates(algorithm: str, text: str | None) -> tuple[str, ...]:
    """What a meta-policy chooses from, checked before anything is trained."""
    if text is None:
        return ()
    if algorithm != "metadqn":
        raise InputError("goes with --algo metadqn", field="--candidates")
    from slurm_rl.policy.meta import parse_members

    return tuple(member.name for member in parse_members(text.split(",")))


def read_goals(text: str) -> dict[str, float]:
    """Weights of bsld, wait, p99 and max."""
    from slurm_rl.domain.pairs import parse_pairs
    from slurm_rl.evaluate.goals import GOALS

    goals = parse_pairs(text, "--goals", "NAME=WEIGHT,…", what="goal", known=tuple(GOALS))
    if not goals or not sum(goals.values()) > 0 or min(goals.values()) < 0:
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


def command_of(context: typer.Context, **changed: Any) -> list[str]:
    """This command's words again, with some options changed; where it runs does not matter to its paths."""
    words = ["train"]
    for option in context.command.params:
        value = changed.get(option.name or "", context.params.get(option.name or ""))
        if value is None or value is False:
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            words.append(option.opts[0])
            if one is not True:
                words.append(str(one.resolve()) if isinstance(one, Path) else str(one))
    return words


def slurm_options(pairs: list[str]) -> dict[str, str]:
    from slurm_rl.domain.pairs import read_pair

    remedy = "e.g. --slurm partition=gpu"
    found = dict(read_pair(pair.lstrip("-"), "--slurm", "KEY=VALUE", remedy) for pair in pairs)
    for name in ("time", "cpus-per-task", "cpus_per_task"):
        if name in found and not found[name].isdecimal():
            raise InputError(f"{name} must be a whole number (of minutes, of CPUs)", field="--slurm")
    return found


def _in_jobs(
    context: typer.Context,
    outs: Mapping[int, Path],
    out: Path,
    options: Mapping[str, str],
    *,
    wait: bool,
    as_json: bool,
    say: Callable[[str], None],
) -> None:
    """Runs the same command as a Slurm job for each seed; each resumes what it finds, so that it may be requeued."""
    from slurm_rl.train.submit import submit, wait_for

    alone = {"executor": "local", "slurm": None, "wait": False, "seeds": 1, "resume": True}
    commands = {
        seed: [sys.executable, "-m", "slurm_rl", *command_of(context, out=place, seed=seed, **alone, as_json=False)]
        for seed, place in outs.items()
    }
    jobs = submit(commands, outs, options)
    for j in jobs:
        say(f"seed {j.seed}: submitted as job {j.job}; log: {j.log}")
    told = [{"seed": j.seed, "job": j.job, "log": j.log} for j in jobs]
    if not wait:
        if as_json:
            print(json.dumps({"jobs": told}))
        elif len(jobs) > 1:
            say(f"when they have ended, the same command with --executor local --resume puts the best into {out}/model")
        return
    failed = wait_for(jobs, say)
    if len(failed) == len(jobs):
        raise SlurmError(f"no job left a model; see {failed[0].log.replace('.out', '.err')}")
    for j in failed:
        say(f"seed {j.seed}: job {j.job} left no model; see {j.log.replace('.out', '.err')}")
    _tell_best({j.seed: j.out for j in jobs if j not in failed}, out, as_json, {"jobs": told})


def _tell_best(outs: Mapping[int, Path], out: Path, as_json: bool, more: Mapping[str, Any]) -> None:
    """Chooses among the seeds, if there are several, and says what was made."""
    from slurm_rl.policy.meta import MetaModel, load_any
    from slurm_rl.train.submit import choose

    if out in outs.values():
        seed, model = next(iter(outs)), load_any(out / "model")
    else:
        seed, model = choose(outs, out / "model")
    if as_json:
        value = {"model": str(out / "model"), "sha256": model.digest, "scores": dict(model.manifest["scores"])}
        print(json.dumps(value | {"seed": seed, "seeds": dict(model.manifest.get("seeds", {}))} | dict(more)))
        return
    for s, score in dict(model.manifest.get("seeds", {})).items():
        print(f"seed {s}: validation {score:.4f}{'  <- best' if int(s) == seed else ''}")
    kind = "meta" if isinstance(model, MetaModel) else "rl"
    print(f"model: {out / 'model'}  (try: slurm-rl replay TRACE --policy {kind}:{out / 'model'})")
