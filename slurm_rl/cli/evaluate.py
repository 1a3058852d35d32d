"""`slurm-rl evaluate`: compares policies in pairs, with replicates and confidence intervals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_rl.backfill.catalogue import RULES

if TYPE_CHECKING:
    from slurm_rl.domain.cluster import Cluster
    from slurm_rl.evaluate.auto import Auto
    from slurm_rl.traces.trace import Trace
    from slurm_rl_sim.replay import Contender, Prepared

_HELP = """Compare policies on a trace: same jobs, cluster, backfill and information for all, several replicates.

Replicate 0 is the trace; in the others the gaps between submissions vary by a tenth. Ratios are to the base policy,
with 95% intervals from a bootstrap over replicates and stretches of time. With --window, multifactor's weights are
first tuned on the jobs before the window, and the styles of models are chosen there. --windows N compares on N random
stretches of --window-jobs jobs instead, each on a cluster that the preceding jobs have filled. sjf@oracle knows true
run times: it is a limit, not a contender.

Examples:

  slurm-rl evaluate --policy rl:default --trace traces/hetero.csv.gz

  slurm-rl evaluate --policy rl:default,sjf@user --trace venus.csv.gz --window 0.6:1 --backfill slurm --json

  slurm-rl evaluate --policy auto,rl:default --trace traces/hetero.csv.gz --window 0.3:1

  slurm-rl evaluate --policy rl:default --trace traces/hetero.csv.gz --windows 40 --window-jobs 512
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=_HELP)
def evaluate(
    trace: Annotated[Path, typer.Option(help="Trace file.")],
    policy: Annotated[str, typer.Option(help="Policies, separated by commas.")] = "rl:default",
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: TRACE's NAME.cluster.json.")] = None,
    backfill: Annotated[str, typer.Option(help=f"{RULES.listed()}.")] = "easy",
    placement: Annotated[
        str | None, typer.Option(help="Where jobs go. Default: best-fit; slurm with --backfill slurm.")
    ] = None,
    starvation: Annotated[
        str, typer.Option(help="For jobs that wait long: cap, lane or none; not for --base.")
    ] = "cap",
    window: Annotated[str | None, typer.Option(help="Measure A:B only (shares of the span, or seconds).")] = None,
    keys: Annotated[str | None, typer.Option(help="Keys of the trace that estimates use; all unless given.")] = None,
    base: Annotated[str, typer.Option(help="Policy that ratios refer to.")] = "multifactor",
    opponents: Annotated[bool, typer.Option(help="Add the usual baselines.")] = True,
    replicates: Annotated[int, typer.Option(min=1, help="Number of replicates.")] = 3,
    windows: Annotated[int, typer.Option(min=0, help="Random stretches instead of replicates; 0: none.")] = 0,
    window_jobs: Annotated[int, typer.Option(min=10, help="Jobs in each stretch.")] = 1024,
    tune: Annotated[bool, typer.Option(help="Tune multifactor and fit models on the time before the window.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of replicates and limits.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Compares and prints; `_HELP` is what users see."""
    from slurm_rl.cli.auto import AUTO, told
    from slurm_rl.cli.progress import progress
    from slurm_rl.evaluate.auto import replay_auto
    from slurm_rl.evaluate.paired import OPPONENTS, PairedWindows, compare, gap_closed
    from slurm_rl.evaluate.settle import settle
    from slurm_rl.policy.registry import guarded
    from slurm_rl.report.fairness import as_value
    from slurm_rl.report.fairness import told as told_fairness
    from slurm_rl.traces.read import chosen_keys, read_trace
    from slurm_rl_sim.replay import find_cluster, parse_contenders, prepare, window_of

    jobs = chosen_keys(read_trace(trace), keys)
    where = find_cluster(jobs, trace, cluster)
    span = window_of(jobs, window)
    asked = [name.strip() for name in policy.split(",")]
    wants_auto = AUTO in asked
    names = [*(n for n in asked if n != AUTO), *(OPPONENTS if opponents else ())] or ["multifactor"]
    placement = placement or RULES[backfill].placement
    contenders = parse_contenders(names, backfill)
    contenders = [replace(c, policy=guarded(c.policy, starvation)) for c in contenders]
    (first,) = parse_contenders(base, backfill)
    with progress(as_json) as on_progress:
        ready = settle(
            jobs, where, first, contenders, span, backfill, placement, tune=tune, seed=seed, on_progress=on_progress
        )
    first, contenders, weights, styles = ready.base, list(ready.contenders), ready.weights, ready.styles
    own_way, chosen = {}, None
    if wants_auto:
        chosen, marker = _chosen(ready.early, where, backfill, placement, weights, seed, as_json)
        contenders.insert(0, marker)
        own_way[AUTO] = lambda prepared: replay_auto(prepared, chosen, backfill, placement)
    with progress(as_json) as on_progress:
        standings = compare(
            jobs,
            where,
            contenders,
            base=first,
            replicates=replicates,
            window=span,
            windows=PairedWindows(windows, window_jobs) if windows else None,
            placement=placement,
            weights=weights,
            seed=seed,
            own_way=own_way,
            on_progress=on_progress,
        )
    fair = _fairness(prepare(jobs, where, window=span, seed=seed), first, contenders[0], placement, weights, own_way)
    closed = {c.policy.name: gap_closed(standings, c.policy.name, first.policy.name) for c in contenders}
    if as_json:
        value = {
            "trace": str(trace),
            "base": first.policy.name,
            "backfill": backfill,
            "replicates": 0 if windows else replicates,
            "windows": windows,
            "multifactor_weights": weights,
            "styles": styles,
            "auto": [c.as_dict() for c in chosen.choices] if chosen is not None else None,
            "fairness": {"policy": contenders[0].policy.name} | as_value(fair),
            "standings": [
                {
                    "policy": s.policy,
                    "backfill": s.backfill,
                    "mean": s.mean,
                    "ratio": s.ratio,
                    "low": s.low,
                    "high": s.high,
                    "gap_closed": closed.get(s.policy),
                }
                for s in standings
            ],
        }
        print(json.dumps(value))
        return
    _show(standings, first.policy.name, closed, weights, styles)
    print(f"\n{contenders[0].policy.name} against {first.policy.name}, who loses most:\n{told_fairness(fair)}")
    if chosen is not None:
        print("\n" + told(chosen))


def _fairness(
    prepared: Prepared,
    base: Contender,
    contender: Contender,
    placement: str,
    weights: dict[str, float] | None,
    own_way: dict[str, Any],
) -> dict[str, Any]:
    """Groups of jobs under the first policy against the base, on the trace itself."""
    from slurm_rl.policy.catalogue import MULTIFACTOR
    from slurm_rl.report.fairness import fairness
    from slurm_rl_sim.replay import replay

    results = []
    for one in (base, contender):
        if one.policy.name in own_way:
            results.append(own_way[one.policy.name](prepared).result)
            continue
        own = weights if one.policy.code == MULTIFACTOR else None
        results.append(replay(prepared, [one], placement=placement, weights=own)[0].result)
    return fairness(prepared.trace, prepared.workload, prepared.measured, *results)


def _chosen(
    early: Trace | None,
    where: Cluster,
    backfill: str,
    placement: str,
    weights: dict[str, float] | None,
    seed: int,
    quiet: bool,
) -> tuple[Auto, Contender]:
    """What `auto` chooses on the time before the window, and its place in the comparison."""
    from slurm_rl.cli.auto import AUTO
    from slurm_rl.cli.progress import progress
    from slurm_rl.errors import InputError
    from slurm_rl.evaluate.auto import auto
    from slurm_rl.policy.registry import parse_policy
    from slurm_rl_sim.replay import Contender

    if early is None:
        raise InputError("auto chooses on the time before the window", field="--policy", remedy="--window 0.3:1")
    with progress(quiet) as on_progress:
        model = parse_policy("rl:default")
        options: dict[str, Any] = {"weights": weights, "tune": weights is None, "seed": seed}
        found = auto(early, where, backfill, placement, model=model, on_progress=on_progress, **options)
    return found, Contender(replace(parse_policy("multifactor"), name=AUTO), backfill)


def _show(
    standings: list[Any],
    base: str,
    closed: dict[str, float | None],
    weights: dict[str, float] | None,
    styles: dict[str, str],
) -> None:
    print(f"ratios to {base} (below 1 is better; 95% interval)")
    if weights:
        print("multifactor was tuned: " + ", ".join(f"{k} {v:g}" for k, v in weights.items()))
    for name, style in styles.items():
        print(f"{name} was fitted: {style}")
    head = f"{'policy':<22} {'mean BSLD':>10} {'ratio':>6} {'interval':>13} {'wait':>6} {'p99':>6} {'max':>6}"
    print(f"{head} {'users':>6} {'gap':>5}")
    for s in sorted(standings, key=lambda s: s.mean["mean_bsld"]):
        name = s.policy + ("+firstfit" if s.backfill == "firstfit" else "")
        r = s.ratio
        gap = closed.get(s.policy)
        print(
            f"{name:<22.22} {s.mean['mean_bsld']:>10.2f} {r['mean_bsld']:>6.3f} "
            f"{s.low['mean_bsld']:>6.3f}-{s.high['mean_bsld']:<6.3f} {r['mean_wait']:>6.3f} {r['p99_wait']:>6.3f} "
            f"{r['max_wait']:>6.3f} {r['user_bsld']:>6.3f} {'' if gap is None else f'{100 * gap:.0f}%':>5}"
        )
    print("users: mean over users of their mean BSLD; gap: share of the way from the base to sjf@oracle (log BSLD)")
