"""`slurm-rl retrain`: learns from a site's own history and writes a candidate; promoting it is another step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_rl.errors import InputError

if TYPE_CHECKING:
    from slurm_rl.domain.cluster import Cluster
    from slurm_rl.domain.keys import Key
    from slurm_rl.traces.trace import Trace

_HELP = """Learn from a site's own history: split it by time, train on the first part, evaluate on the rest.

The candidate takes the style that suits the first part best, and is written with its scores; nothing is switched on.
`slurm-rl models promote DIR` switches it on, after a gate.

Examples:

  slurm-rl retrain --from-slurm --days 60 --out runs/november

  slurm-rl retrain --trace history.csv --cluster cluster.json --out runs/november --json
"""

_JOBS = 200  # of a history, at least
_A_WAIT = 60  # seconds
_WAITING = 20  # jobs that wait so long, at least, or a hundredth of all

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=_HELP)
def retrain(
    out: Annotated[Path, typer.Option(help="Directory for the candidate.")],
    from_slurm: Annotated[bool, typer.Option("--from-slurm", help="Take the history from Slurm's accounting.")] = False,
    trace: Annotated[Path | None, typer.Option(help="… or from a trace file.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: TRACE's NAME.cluster.json.")] = None,
    days: Annotated[float, typer.Option(min=0.01, help="Days of history to read.")] = 60.0,
    slurm_conf: Annotated[Path | None, typer.Option(help="slurm.conf; default: Slurm's own.")] = None,
    init_from: Annotated[str, typer.Option(help="Model to start from; 'none': from scratch.")] = "default",
    generations: Annotated[
        int, typer.Option(min=0, help="Generations of the search over the linear path, before PPO.")
    ] = 20,
    iterations: Annotated[int, typer.Option(min=0, help="Iterations of PPO.")] = 20,
    scenes: Annotated[int, typer.Option(min=1, help="Workloads played in each iteration.")] = 24,
    jobs: Annotated[int, typer.Option(min=100, help="Jobs in a workload.")] = 2500,
    share: Annotated[float, typer.Option(min=0.05, max=0.95, help="Share of the time to learn from.")] = 0.6,
    backfill: Annotated[str, typer.Option(help="Replicates of the evaluation.")] = "slurm",
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Retrains; `_HELP` is what users see."""
    if from_slurm == (trace is not None):
        raise InputError("give either --from-slurm or --trace FILE")
    from slurm_rl.cli.train import need_torch, read_sources, reporter

    need_torch()
    history, site = pull(days, slurm_conf) if trace is None else read_sources([trace], cluster)[0]
    from slurm_rl.evaluate.fit import fit, save_fitted
    from slurm_rl.evaluate.paired import before, compare, tuned_weights
    from slurm_rl.evaluate.promotion import better_than
    from slurm_rl.policy.checkpoint import find_model, load_model, save_model, unflatten
    from slurm_rl.policy.registry import learned
    from slurm_rl.train.recipe import refuse_used, train_model
    from slurm_rl.train.settings import SearchSettings, Settings
    from slurm_rl_sim.replay import parse_contenders, prepare, window_of

    refuse_used([out], "give another --out")
    window = window_of(history, f"{share}:1")
    enough_queueing(history, site, window, backfill)
    start = None if init_from == "none" else load_model(find_model(init_from))
    settings = Settings(
        iterations=iterations,
        scenes=scenes,
        jobs=min(jobs, max(len(history) // 2, 100)),
        generated=0.25,
        search=SearchSettings(generations=generations),
        seed=seed,
    )
    began = time.monotonic()
    say: Callable[[str], None] = (lambda text: None) if as_json else (lambda text: print(text, flush=True))
    made = train_model(
        settings,
        [(history, site)],
        out,
        share=share,
        start=start,
        report=reporter(settings, began, as_json),
        say=say,
    )
    model = load_model(made.path)
    early, weights = before(history, window), None
    if early is not None:
        weights = tuned_weights(prepare(early, site, seed=seed), backfill, "best-fit")
        model = save_fitted(model, fit(learned(model), early, site, backfill=backfill, seed=seed), out / "model")
        say(f"style that suits the site best: {model.manifest['fitted']['style']}")
    incumbent = [] if init_from == "none" else [f"rl:{init_from}"]
    standings = compare(
        history,
        site,
        parse_contenders([f"rl:{out / 'model'}", *incumbent, "sjf@user", "fcfs"], backfill),
        base=parse_contenders("multifactor", backfill)[0],
        window=window,
        replicates=3,
        weights=weights,
        seed=seed,
    )
    ratios: dict[str, Any] = {s.policy: s.ratio for s in standings}
    (out / "evaluation.json").write_text(json.dumps(ratios, indent=1), encoding="utf-8")
    mine = ratios[f"rl:{out / 'model'}"]
    scores = {f"test_{k}": round(mine[k], 4) for k in ("mean_bsld", "mean_wait", "p99_wait", "max_wait")}
    manifest = dict(model.manifest) | {"init_from": init_from, "scores": dict(model.manifest["scores"]) | scores}
    save_model(out / "model", unflatten(model.net), manifest, **model.policy)
    better = better_than(mine, {name: ratios[name] for name in ("multifactor", *incumbent)})
    if as_json:
        value = {"model": str(out / "model"), "jobs": len(history), "ratios": ratios, "better_than": better}
        print(json.dumps(value))
        return
    print(f"on the last {100 * (1 - share):.0f}% of the time, as ratios to multifactor (tuned on what came before):")
    for name, r in ratios.items():
        print(f"  {name:<30.30} BSLD {r['mean_bsld']:.3f}  wait {r['mean_wait']:.3f}  p99 {r['p99_wait']:.3f}")
    for name, is_better in better.items():
        print(f"  the candidate is {'better' if is_better else 'NOT better'} than {name} in slowdown and wait together")
    print(f"candidate: {out / 'model'}  (switch it on with: slurm-rl models promote {out / 'model'})")


def enough_queueing(history: Trace, site: Cluster, window: tuple[int, int] | None, backfill: str) -> None:
    """Refuses a history in which too few jobs wait: an order that nobody waits for cannot be learned, nor judged."""
    from slurm_rl_sim.replay import parse_contenders, prepare, replay

    (run,) = replay(prepare(history, site), parse_contenders("multifactor", backfill))
    jobs = run.result.trace.submit_time
    waits = run.result.ran & (run.result.start - jobs >= _A_WAIT)
    first = jobs < window[0] if window is not None else jobs < 0
    for part, what in ((first, "to learn from"), (~first, "to be judged by")):
        waited, of = int(waits[part].sum()), int(part.sum())
        if waited < max(_WAITING, of // 100):
            raise InputError(
                f"of the {of} jobs {what}, {waited} wait for {_A_WAIT} s or more when the history is replayed: "
                f"too little queueing, {max(_WAITING, of // 100)} would do",
                remedy="give more --days, or another --share; without queues any order will do",
            )


def pull(days: float, conf: Path | None, keys: Sequence[Key] = ()) -> tuple[Trace, Cluster]:
    """The history, with these keys, and the nodes of a live Slurm."""
    from slurm_rl.slurm.cli import CliClient
    from slurm_rl.traces.site import history_trace, site_cluster

    client = CliClient(conf)
    client.keys = keys
    state = client.snapshot()
    now = time.time()
    rows = client.history(now - days * 86_400, now)
    finished = sum(1 for row in rows if row.start_time and row.end_time)
    trace = history_trace(rows, state.cluster, keys=keys) if finished else None
    if trace is None or len(trace) < _JOBS:
        found = len(trace) if trace is not None else 0
        raise InputError(
            f"Slurm's accounting has {found} finished jobs of the last {days:g} days, training needs {_JOBS}",
            remedy="give more --days",
        )
    return trace, site_cluster(state.nodes, state.cluster)[0]
