"""`slurm-rl replay`: replays a trace under several policies and compares them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_rl.backfill.catalogue import RULES
from slurm_rl.cli.replay_output import tell
from slurm_rl.errors import InputError
from slurm_rl.place.catalogue import PLACEMENTS
from slurm_rl.policy.catalogue import POLICIES

if TYPE_CHECKING:
    from slurm_rl.backfill.slurm_settings import SlurmSettings
    from slurm_rl.domain.cluster import Cluster

_HELP = """Replay a trace under several policies and compare them.

Without --policy, the shipped model, Slurm's multifactor, FCFS, first-fit, history-based SJF and SJF with true run times
(a limit, not a contender) are compared. A policy may name its own backfill: fcfs+firstfit. Policies that use an
estimate take @limit, @user (history) or @oracle.

Examples:

  slurm-rl replay traces/hetero.csv.gz --report out/hetero.html

  slurm-rl replay my.swf --policy fcfs,sjf@user,sjf@oracle --backfill slurm

  slurm-rl replay trace.csv --cluster cluster.json --window 0.6:1 --json

  slurm-rl replay trace.csv --policy multifactor --jobs-out jobs.csv

  slurm-rl replay trace.csv --slurm-conf /etc/slurm/slurm.conf --slurm-option bf_interval=60

  slurm-rl replay traces/hetero.csv.gz --limits examples/limits.toml --backfill slurm

  slurm-rl replay trace.csv --policy rl:default,sjf-age@user --starvation lane

  slurm-rl replay trace.csv --policy rl:default --promise "p99 <= 1.2 x, longest <= 1.5 x"

  slurm-rl replay traces/hetero.csv.gz --policy auto,multifactor,rl:default --window 0.3:1

  slurm-rl replay traces/hetero.csv.gz --policy sjf-age@user --placement mip

  slurm-rl replay trace.csv --cluster openb.json --speeds published --placement greedy

  slurm-rl replay traces/hetero.csv.gz --policy sjf-age@user --placement mip --placement-weights energy=5000

  sudo slurm-rl replay trace.csv --backend slurm --clock 60 --policy fcfs,rl:default

  slurm-rl replay traces/hetero.csv.gz --policy multifactor,examples/own_heuristic.py:short_and_old@user

  slurm-rl replay --sweep examples/sweep.toml --out out/sweep

{}
"""


_LEARNED = (
    ("rl:MODEL", "A network; rl:default is the shipped one."),
    ("meta:MODEL", "A network that chooses which of a set of policies rules now."),
    ("bandit:KIND[/POLICY/…]", "egreedy, exp3 or linucb: the same, learned while it runs."),
)
_AUTO = (("auto", "What suits each partition, chosen on the time before --window (docs/auto.md)."),)
_OUTSIDE = (
    ("MODULE:NAME, FILE.py[:NAME]", "A policy of yours: Python or a formula (docs/api.md)."),
    ("onnx:FILE", "A network as an ONNX file."),
)


def _rows(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return "\n\n".join([f"{title}:", *(f"  {name}: {text}" for name, text in rows)])


def _catalogues() -> str:
    """What can be named, one line each."""
    policies = [(row.name + "[@…]" * row.uses_estimate, row.help) for row in POLICIES if row.by_name]
    return "\n\n".join(
        [
            _rows("Policies", [*policies, *_LEARNED, *_AUTO, *_OUTSIDE]),
            _rows("Backfill rules", [(row.name, row.help) for row in RULES]),
            _rows("Placements", [(row.name, row.help) for row in PLACEMENTS]),
        ]
    )


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=_HELP.format(_catalogues()))
def replay(
    context: typer.Context,
    trace: Annotated[
        Path | None, typer.Argument(help="Trace file, in any format that `slurm-rl traces info` knows.")
    ] = None,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: TRACE's NAME.cluster.json.")] = None,
    policy: Annotated[str | None, typer.Option(help="Policies, separated by commas.")] = None,
    backfill: Annotated[
        str | None, typer.Option(help=f"{RULES.listed()}. Default: easy; slurm with --slurm-conf or --slurm-option.")
    ] = None,
    placement: Annotated[
        str | None, typer.Option(help=f"{PLACEMENTS.listed()}. Default: best-fit; slurm with --backfill slurm.")
    ] = None,
    slurm_conf: Annotated[
        Path | None, typer.Option(help="A slurm.conf, or the output of `scontrol show config`: the site's settings.")
    ] = None,
    topology: Annotated[
        Path | None,
        typer.Option(help="topology.conf, topology.yaml or what scontrol show topology printed: blocks and switches."),
    ] = None,
    slurm_option: Annotated[
        list[str] | None,
        typer.Option(help="One setting of it, NAME=VALUE, e.g. bf_interval=60; may be repeated."),
    ] = None,
    limits: Annotated[
        Path | None, typer.Option(help="TOML or JSON: limits of QOS, accounts, users; licences (docs/limits.md).")
    ] = None,
    reservations: Annotated[
        Path | None, typer.Option(help="TOML or JSON: nodes that are reserved for a time (docs/limits.md).")
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option(help="Speeds of GPU types: published, T4=0.45,…, or FILE.json; default: the cluster file's."),
    ] = None,
    gpu_memory: Annotated[
        str,
        typer.Option(
            help="Keep jobs off MIG slices that are too small, by gpu_mem_gb: off, learned (finished jobs), oracle."
        ),
    ] = "off",
    solver: Annotated[str, typer.Option(help="Solver of --placement mip: cbc or highs.")] = "cbc",
    placement_weights: Annotated[
        str | None,
        typer.Option(help="Weights of --placement mip in seconds: blocked (a GPU), node, energy (a kWh)."),
    ] = None,
    defer: Annotated[
        bool, typer.Option("--defer", help="--placement mip may defer a job when faster GPUs are due soon.")
    ] = False,
    influence: Annotated[
        float | None,
        typer.Option(
            help="Share of Slurm's weights that the policy may move; 1: its order alone. Default: 1, live 0.5."
        ),
    ] = None,
    starvation: Annotated[
        str, typer.Option(help="For jobs that wait long: cap (a model's own), lane (docs/learning.md) or none.")
    ] = "cap",
    promise: Annotated[
        str | None,
        typer.Option(help="Also run each policy under a promise, as 'p99 <= 1.2 x, longest <= 1.5 x' (docs/auto.md)."),
    ] = None,
    window: Annotated[str | None, typer.Option(help="Measure A:B only (shares of the span, or seconds).")] = None,
    keys: Annotated[str | None, typer.Option(help="Keys of the trace that estimates use; all unless given.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of synthesised time limits.")] = 0,
    preempt: Annotated[
        bool, typer.Option("--preempt", help="Let srpt and static-priority preempt; preempted jobs keep their work.")
    ] = False,
    outages: Annotated[Path | None, typer.Option(help="CSV time,node,up: outages of nodes.")] = None,
    weights: Annotated[str | None, typer.Option(help="Slurm's weights, e.g. age=1000,fairshare=10000.")] = None,
    format: Annotated[str | None, typer.Option(help="Format of the trace, where it is not recognised.")] = None,
    jobs_out: Annotated[
        Path | None, typer.Option(help="Write one row per job; with several policies, one file each.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write the report's charts into this directory: SVG, and PNG with Chromium.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the simulator's state at every pass; slow, for reporting a bug.")
    ] = False,
    backend: Annotated[
        str, typer.Option(help="sim, or slurm: a real slurmctld in its own lab (docs/fidelity.md).")
    ] = "sim",
    clock: Annotated[
        float | None, typer.Option(help="With --backend slurm: speed-up of the lab's time; default 60.")
    ] = None,
    on: Annotated[
        Path | None, typer.Option(help="With --backend slurm: the slurm.conf of a real cluster to submit to.")
    ] = None,
    confirm: Annotated[bool, typer.Option("--confirm", help="Allow real jobs on the cluster of --on.")] = False,
    release: Annotated[str, typer.Option(help="With --backend slurm: a release from lab fetch.")] = "",
    record: Annotated[
        Path | None, typer.Option(help="With --backend slurm: write the run for fidelity --recorded.")
    ] = None,
    commands: Annotated[
        bool,
        typer.Option(
            "--commands",
            help="With --backend slurm: run each job's `command`, or real work in torch, instead of sleep.",
        ),
    ] = False,
    real_metrics: Annotated[
        Path | None, typer.Option(help="With --backend slurm: add one row per policy to this CSV.")
    ] = None,
    sweep: Annotated[
        Path | None, typer.Option(help="File of combinations; all runs go to a Parquet file (docs/sweeps.md).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --sweep: output directory; default out/NAME.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --sweep: processes; default one per processor.")
    ] = None,
    executor: Annotated[str, typer.Option(help="With --sweep: local, or slurm: tasks of a job array.")] = "local",
    tasks: Annotated[int, typer.Option(min=1, help="With --executor slurm: number of tasks.")] = 8,
    retries: Annotated[int, typer.Option(min=0, help="With --executor slurm: resubmissions of lost tasks.")] = 2,
    slurm: Annotated[list[str] | None, typer.Option(help="An option for sbatch, KEY=VALUE; may be repeated.")] = None,
    part: Annotated[str | None, typer.Option(help="With --sweep: run the K-th of N parts, without a report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Replays and prints; `_HELP` is what users see."""
    from slurm_rl.cli.sweep import SweepOptions, check_options, run_sweep

    check_options(context, sweep is not None)
    if sweep is not None:
        where_and_how = SweepOptions(out, workers, executor, tasks, retries, slurm or [], part)
        run_sweep(sweep, trace, cluster, where_and_how, as_json)
        return
    if trace is None:
        raise InputError("names no trace", field="TRACE", remedy="give a trace file, or --sweep FILE.toml")
    from slurm_rl.cli.auto import AUTO, auto_run
    from slurm_rl.cli.progress import progress
    from slurm_rl.cli.promise import keep_promise
    from slurm_rl.place.defer import Deferral
    from slurm_rl.place.plan import PlannerSettings
    from slurm_rl.policy.registry import guarded
    from slurm_rl.traces.read import chosen_keys, read_trace
    from slurm_rl_sim.ahead import compile_ahead
    from slurm_rl_sim.replay import DEFAULT_POLICIES, find_cluster, parse_contenders, prepare, window_of
    from slurm_rl_sim.replay import replay as run_replay

    jobs = chosen_keys(read_trace(trace, format=format), keys)
    if backend != "sim":
        if limits is not None:
            raise InputError(
                "not with --backend slurm", field="--limits", remedy="set them with sacctmgr on that Slurm"
            )
        if reservations is not None:
            raise InputError(
                "not with --backend slurm", field="--reservations", remedy="make them with scontrol on that Slurm"
            )
        from slurm_rl.cli.replay_slurm import RealRunOptions, replay_real

        asked = RealRunOptions(
            *(backend, policy, cluster, window, seed, clock, on, confirm, release, influence, _weights(weights)),
            commands=commands,
        )
        with progress(as_json) as on_progress:
            happened, real = replay_real(trace, jobs, asked, on_progress)
        if record is not None:
            real.record(record)
        if real_metrics is not None:
            real.add_metrics(real_metrics)
        tell(trace, happened, real.runs, jobs_out, report, figures, as_json, real.described())
        return
    names = list(DEFAULT_POLICIES) if policy is None else [p.strip() for p in policy.split(",") if p.strip()]
    site = _site(slurm_conf, slurm_option or [])
    backfill = backfill or ("easy" if site is None else "slurm")
    placement = placement or RULES[backfill].placement
    contenders = parse_contenders([n for n in names if n != AUTO] or ["multifactor"], backfill)
    if site is not None and not any(RULES[c.backfill].defaults for c in contenders):
        raise InputError(f"of no use with backfill {backfill}", field="--slurm-conf", remedy="use --backfill slurm")
    contenders = [dataclasses.replace(c, policy=guarded(c.policy, starvation)) for c in contenders]
    where = find_cluster(jobs, trace, cluster)
    if topology is not None:
        from slurm_rl.domain.topology import read_topology, with_topology

        where = with_topology(where, read_topology(topology), str(topology))
    compile_ahead(contenders, placement, 1.0 if influence is None else influence)
    bounds, kept, period = _limits(limits), _reservations(reservations, where), window_of(jobs, window)
    prepared = prepare(
        jobs,
        where,
        window=period,
        seed=seed,
        speeds=_speed_matrix(speeds),
        limits=bounds,
        reservations=kept,
        gpu_memory=gpu_memory,
    )
    with progress(as_json) as on_progress:
        runs = run_replay(
            prepared,
            contenders,
            placement=placement,
            influence=1.0 if influence is None else influence,
            preempt=preempt,
            events=_events(outages),
            weights=_weights(weights),
            planning=PlannerSettings(
                weights=_placement_weights(placement_weights, placement),
                solver=solver,
                deferral=Deferral() if defer else None,
            ),
            on_progress=on_progress,
            check=check,
            slurm=site,
        )
    held: dict[str, Any] = {}
    if promise is not None:
        rules = (placement, 1.0 if influence is None else influence, _weights(weights))
        held = keep_promise(prepared, contenders, backfill, promise, runs, *rules)
    found = None
    if AUTO in names:
        by = (backfill, placement, influence, _weights(weights), seed)
        how = {"limits": bounds, "reservations": kept, "slurm": site}
        found, mine = auto_run(jobs, prepared, period, *by, quiet=as_json, **how)
        runs.insert(min(names.index(AUTO), len(runs)), mine)
    tell(trace, prepared, runs, jobs_out, report, figures, as_json, auto=found, kept=held)


def _site(conf: Path | None, options: list[str]) -> SlurmSettings | None:
    """What a site has told Slurm; None if nobody says."""
    from slurm_rl.backfill.slurm_settings import SlurmSettings, read_slurm_conf, with_options

    if conf is None and not options:
        return None
    return with_options(read_slurm_conf(conf) if conf is not None else SlurmSettings(), options)


def _limits(path: Path | None) -> Any:
    if path is None:
        return None
    from slurm_rl.domain.limits import read_limits

    return read_limits(path)


def _reservations(path: Path | None, cluster: Cluster) -> Any:
    if path is None:
        return ()
    from slurm_rl.domain.reservations import read_reservations

    return read_reservations(path, cluster.nodes)


def _events(path: Path | None) -> Any:
    if path is None:
        return None
    from slurm_rl.traces.perturb import read_outages
    from slurm_rl_sim.simulation import NodeEvents

    outages = read_outages(path)
    return NodeEvents(outages.time, outages.node, outages.up)


def _speed_matrix(text: str | None) -> Any:
    if text is None:
        return None
    from slurm_rl.place.speed import SpeedMatrix, parse_speeds, read_speeds

    if text.endswith(".json"):
        return read_speeds(Path(text))
    return SpeedMatrix({} if text == "published" else parse_speeds(text, "--speeds"))


def _weights(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    from slurm_rl.domain.pairs import parse_pairs
    from slurm_rl.policy.heuristics import DEFAULT_WEIGHTS

    return parse_pairs(text, "--weights", "NAME=NUMBER,…", what="weight", known=tuple(DEFAULT_WEIGHTS))


def _placement_weights(text: str | None, placement: str) -> Any:
    from slurm_rl.place.problem import parse_weights

    if text is not None and placement != "mip":
        raise InputError("needs --placement mip", field="--placement-weights")
    return parse_weights(text or "", "--placement-weights")
