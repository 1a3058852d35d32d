"""`slurm-rl retrain`: learns from a site's own history and writes a candidate; promoting it is another step."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_rl.errors import InputError

if TYPE_CHECKING:
    from slurm_rl.domain.cluster import Cluster
    from slurm_rl.traces.trace import Trace

_HELP = """Learn from a site's own history: split it by time, train on the first part, evaluate on the rest.

Writes a candidate model with its scores; nothing is switched on. `slurm-rl models promote DIR` does that, after a gate.

Examples:

  slurm-rl retrain --from-slurm --days 60 --out runs/november

  slurm-rl retrain --trace history.csv --cluster cluster.json --out runs/november --json
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=_HELP)
def retrain(
    out: Annotated[Path, typer.Option(help="Directory for the candidate.")],
    from_slurm: Annotated[bool, typer.Option("--from-slurm", help="Take the history from Slurm's accounting.")] = False,
    trace: Annotated[Path | None, typer.Option(help="… or from a trace file.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: TRACE's NAME.cluster.json.")] = None,
    days: Annotated[float, typer.Option(min=0.01, help="Of history to pull.")] = 60.0,
    slurm_conf: Annotated[Path | None, typer.Option(help="slurm.conf; default: Slurm's own.")] = None,
    init_from: Annotated[str, typer.Option(help="Model to start from; 'none': from scratch.")] = "default",
    iterations: Annotated[int, typer.Option(min=0, help="Of PPO.")] = 30,
    scenes: Annotated[int, typer.Option(min=1, help="Workloads played in each iteration.")] = 12,
    jobs: Annotated[int, typer.Option(min=100, help="Jobs of a workload.")] = 2500,
    share: Annotated[float, typer.Option(min=0.05, max=0.95, help="Part of the time to learn from.")] = 0.6,
    backfill: Annotated[str, typer.Option(help="Of the evaluation.")] = "slurm",
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Retrains; `_HELP` is what users see."""
    if from_slurm == (trace is not None):
        raise InputError("give either --from-slurm or --trace FILE")
    from slurm_rl.cli.train import need_torch, read_sources, reporter

    need_torch()
    history, site = pull(days, slurm_conf) if trace is None else read_sources([trace], cluster)[0]
    from slurm_rl.policy.checkpoint import find_model, load_model
    from slurm_rl.train.evaluation import before, compare, tuned_weights
    from slurm_rl.train.ppo import Settings
    from slurm_rl.train.recipe import train_model
    from slurm_rl.train.search import SearchSettings
    from slurm_rl_sim.replay import parse_contenders, prepare, window_of

    start = None if init_from == "none" else load_model(find_model(init_from)).net
    settings = Settings(
        iterations=iterations,
        scenes=scenes,
        jobs=min(jobs, max(len(history) // 2, 100)),
        generated=0.25,
        search=SearchSettings(generations=0 if start is not None else 20),
        seed=seed,
    )
    began = time.monotonic()
    say = (lambda text: None) if as_json else (lambda text: print(text, flush=True))
    train_model(
        settings, [(history, site)], out, share=share, start=start, report=reporter(settings, began, as_json), say=say
    )
    window = window_of(history, f"{share}:1")
    early = before(history, window)
    weights = tuned_weights(prepare(early, site, seed=seed), backfill, "best-fit") if early is not None else None
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
    if as_json:
        print(json.dumps({"model": str(out / "model"), "jobs": len(history), "ratios": ratios}))
        return
    print(f"on the last {100 * (1 - share):.0f}% of the time, as ratios to multifactor (tuned on what came before):")
    for name, r in ratios.items():
        print(f"  {name:<30.30} BSLD {r['mean_bsld']:.3f}  wait {r['mean_wait']:.3f}  p99 {r['p99_wait']:.3f}")
    print(f"candidate: {out / 'model'}  (switch it on with: slurm-rl models promote {out / 'model'})")


def pull(days: float, conf: Path | None) -> tuple[Trace, Cluster]:
    """The history and the nodes of a live Slurm."""
    from slurm_rl.slurm.cli import CliClient
    from slurm_rl.traces.site import history_trace, site_cluster

    client = CliClient(conf)
    state = client.snapshot()
    now = time.time()
    trace = history_trace(client.history(now - days * 86_400, now), state.cluster)
    if len(trace) < 200:
        raise InputError(
            f"Slurm's accounting has {len(trace)} finished jobs of the last {days:g} days, training needs 200",
            remedy="give more --days",
        )
    return trace, site_cluster(state.nodes, state.cluster)[0]
