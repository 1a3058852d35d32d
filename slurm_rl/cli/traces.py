"""`slurm-rl traces`: inspect, convert, generate and perturb workload traces."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slurm_rl.domain.cluster import Cluster
    from slurm_rl.traces.trace import Trace

app = typer.Typer(
    help="Inspect, convert, generate and perturb workload traces.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]
Format = Annotated[str | None, typer.Option("--format", help="Format of the input, where it is not recognised.")]
Mapping = Annotated[
    float | None,
    typer.Option("--cpus-per-gpu", help="Google traces only: CPU (in their unit) that counts as one GPU; 0: no GPUs."),
]


def _read(path: Path, format_name: str | None, cpus_per_gpu: float | None = None) -> Trace:
    from slurm_rl.traces.read import read_trace

    return read_trace(path, format=format_name, cpus_per_gpu=cpus_per_gpu)


def _print(trace: Trace, cluster: Cluster | None, as_json: bool, **more: object) -> None:
    from slurm_rl.traces.summary import describe

    value = more | describe(trace, cluster)
    if as_json:
        sys.stdout.write(json.dumps(value) + "\n")
        return
    rows = {name: _text(part) for name, part in value.items() if name != "notes"}
    width = max(map(len, rows))
    for name, text in rows.items():
        if text:
            sys.stdout.write(f"{name.replace('_', ' '):<{width}}  {text}\n")
    for note in trace.notes:
        sys.stdout.write(f"{'note':<{width}}  {note}{': left out' if note.dropped else ''}\n")


def _text(value: object) -> str:
    """A value in a line of at most 80 characters; what does not fit is counted."""
    if isinstance(value, dict):
        parts = [f"{k} {v:,.0f}" if isinstance(v, int) or v >= 1000 else f"{k} {v:.3g}" for k, v in value.items()]
        shown: list[str] = []
        for i, part in enumerate(parts):
            if sum([len(s) + 2 for s in shown]) + len(part) > 66:
                return ", ".join(shown) + f", and {len(parts) - i} more"
            shown.append(part)
        return ", ".join(shown)
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, int) or (isinstance(value, float) and value >= 1000):
        return f"{value:,.0f}"
    return "" if value is None else str(value)


@app.command(
    epilog="Examples:\n\n"
    "slurm-rl traces info traces/hetero.csv.gz --cluster traces/hetero.cluster.json\n\n"
    "slurm-rl traces info /data/google/task_events --cpus-per-gpu 0.125 --json"
)
def info(
    trace: Annotated[Path, typer.Argument(help="Trace file, or a directory of tables.")],
    cluster: Annotated[Path | None, typer.Option("--cluster", help="Cluster file, for the offered load.")] = None,
    format_name: Format = None,
    cpus_per_gpu: Mapping = None,
    as_json: AsJson = False,
) -> None:
    """Describe a trace: format, jobs, sizes, run times, load, and every row that was left out."""
    from slurm_rl.domain.cluster import read_cluster

    _print(_read(trace, format_name, cpus_per_gpu), read_cluster(cluster) if cluster else None, as_json)


@app.command(
    epilog="Examples:\n\n"
    "slurm-rl traces convert cluster_log.csv helios.csv.gz\n\n"
    "slurm-rl traces convert site.csv.gz site.swf.gz\n\n"
    "slurm-rl traces convert openb_pod_list_default.csv pods.csv.gz --nodes-from openb_node_list_all_node.csv"
    " --cluster-out pods.cluster.json"
)
def convert(
    trace: Annotated[Path, typer.Argument(help="Trace file, or a directory of tables.")],
    out: Annotated[Path, typer.Argument(help="Trace to write: .swf is SWF, any other name is native CSV.")],
    format_name: Format = None,
    cpus_per_gpu: Mapping = None,
    time_limits: Annotated[bool, typer.Option("--time-limits", help="Synthesise missing limits.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the synthesised limits.")] = 0,
    nodes_from: Annotated[
        Path | None, typer.Option("--nodes-from", help="Published node list to convert as well.")
    ] = None,
    cluster_out: Annotated[Path | None, typer.Option("--cluster-out", help="Cluster file to write from it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a trace of any known format to native CSV or SWF, and list the rows left out."""
    from slurm_rl.domain.cluster import write_cluster
    from slurm_rl.errors import InputError
    from slurm_rl.traces.limits import with_time_limits
    from slurm_rl.traces.nodelists import read_nodes

    if (nodes_from is None) != (cluster_out is None):
        raise InputError("--nodes-from and --cluster-out go together")
    read = _read(trace, format_name, cpus_per_gpu)
    if time_limits:
        read = with_time_limits(read, seed)
    cluster = read_nodes(nodes_from) if nodes_from else None
    lost = _write(read, out)
    if cluster and cluster_out:
        write_cluster(cluster, cluster_out)
    _print(read, cluster, as_json, out=str(out), could_not_hold=lost)


@app.command(
    epilog="Examples:\n\n"
    "slurm-rl traces generate --out demo.csv.gz --cluster-out demo.cluster.json --seed 1\n\n"
    "slurm-rl traces generate --out b.csv --cluster-out b.json --regime bursty-x2-g8\n\n"
    "slurm-rl traces generate --out wide.csv.gz --cluster-out wide.cluster.json --machine capability\n\n"
    "slurm-rl traces generate --out like.csv.gz --like site.csv.gz --cluster site.cluster.json --load 1.1"
)
def generate(
    out: Annotated[Path, typer.Option("--out", help="Trace to write; .swf writes SWF, .gz, .xz and .zst compress.")],
    cluster_out: Annotated[Path | None, typer.Option("--cluster-out", help="Cluster file to write.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same bytes.")] = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Number of jobs.")] = None,
    days: Annotated[float | None, typer.Option("--days", help="Length in days.")] = None,
    load: Annotated[float | None, typer.Option("--load", help="Offered work over the cluster's power.")] = None,
    like: Annotated[Path | None, typer.Option("--like", help="Trace to imitate.")] = None,
    cluster: Annotated[Path | None, typer.Option("--cluster", help="Cluster file to generate for.")] = None,
    nodes: Annotated[str | None, typer.Option("--nodes", help="Or nodes: COUNTxTYPE:GPUS[:CPUS[:MEM_GB]],…")] = None,
    regime: Annotated[str | None, typer.Option("--regime", help="Named regime, e.g. bursty-x2-g8.")] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            help="Unlike ours: capability, leadership, exascale, throughput, interactive, blocks or one-user.",
        ),
    ] = None,
    shape: Annotated[str | None, typer.Option("--shape", help="base, bursty, diurnal, shifted or work.")] = None,
    users: Annotated[int | None, typer.Option("--users", help="Number of users.")] = None,
    max_gpus: Annotated[int | None, typer.Option("--max-gpus", help="Largest gang.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a workload: users with habits, daily and weekly cycles, gangs, wrong limits, deadlines, priorities."""
    from slurm_rl.domain.cluster import read_cluster, write_cluster
    from slurm_rl.errors import InputError
    from slurm_rl.traces import regimes
    from slurm_rl.traces.generate import WorkloadSpec
    from slurm_rl.traces.generate import generate as make
    from slurm_rl.traces.like import distances, imitate
    from slurm_rl.traces.machines import machine as make_machine

    if sum(x is not None for x in (like, regime)) > 1 or (cluster and nodes):
        raise InputError("--like and --regime, and --cluster and --nodes, exclude each other")
    where = read_cluster(cluster) if cluster else regimes.nodes(nodes) if nodes else None
    more: dict[str, object] = {}
    changes: dict[str, Any] = {
        k: v
        for k, v in {"jobs": jobs, "days": days, "load": load, "shape": shape, "users": users}.items()
        if v is not None
    }
    if max_gpus is not None:
        changes["max_gpus"] = max_gpus
    if machine is not None:
        if any(x is not None for x in (like, regime, cluster, nodes, shape, users, max_gpus, days, load)):
            raise InputError("goes with --jobs and --seed alone: it brings its own cluster and load", field="--machine")
        trace, where = make_machine(machine, jobs=jobs, seed=seed)
    elif regime:
        workload, named = regimes.regime(regime, jobs=jobs or 2000, seed=seed)
        where = where or named
        trace = make(_changed(workload, changes), where)
    elif like:
        if shape or users or max_gpus:
            raise InputError("--shape, --users and --max-gpus do not go with --like: they come from the trace")
        source = _read(like, None)
        trace = imitate(source, seed=seed, jobs=jobs, days=days, load=load, cluster=where)
        more["distances"] = distances(source, trace)
    else:
        where = where or regimes.nodes(regimes.DEFAULT_NODES)
        trace = make(_changed(WorkloadSpec(seed=seed), changes), where)
    lost = _write(trace, out)
    if cluster_out and where:
        write_cluster(where, cluster_out)
    _print(trace, where, as_json, out=str(out), could_not_hold=lost, **more)


@app.command(
    epilog="Examples:\n\n"
    "slurm-rl traces perturb t.csv.gz noisy.csv.gz --apply arrival-noise=0.1 --apply burst=2 --seed 3\n\n"
    "slurm-rl traces perturb t.csv.gz same.csv.gz --apply capacity-dip=0.2 --cluster c.json --outages-out dips.csv"
)
def perturb(
    trace: Annotated[Path, typer.Argument(help="Trace file, or a directory of tables.")],
    out: Annotated[Path, typer.Argument(help="Trace to write.")],
    apply: Annotated[list[str], typer.Option("--apply", help="KIND=LEVEL; several are applied in order.")],
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same bytes.")] = 0,
    cluster: Annotated[Path | None, typer.Option("--cluster", help="Cluster file, for capacity-dip.")] = None,
    outages_out: Annotated[Path | None, typer.Option("--outages-out", help="CSV of node outages to write.")] = None,
    format_name: Format = None,
    as_json: AsJson = False,
) -> None:
    """Distort a trace.

    Kinds: arrival-noise (gaps vary by LEVEL), duration (run times vary), phase-shift (days), burst (times as fast at
    the start of each hour), estimate-error (limits vary), drift (run times grow), capacity-dip (share of nodes gone
    for two hours twice a day; written to --outages-out).
    """
    from slurm_rl.domain.cluster import read_cluster
    from slurm_rl.errors import InputError
    from slurm_rl.traces import perturb as distort

    steps = [distort.Step.parse(text) for text in apply]
    dips = [s for s in steps if s.kind == distort.DIP]
    if bool(dips) != bool(outages_out and cluster) or len(dips) > 1:
        raise InputError("one capacity-dip, --cluster and --outages-out go together")
    where = read_cluster(cluster) if cluster else None
    changed = distort.perturb(_read(trace, format_name), steps, seed)
    lost = _write(changed, out)
    if dips and where and outages_out:
        outages = distort.capacity_dips(where, *changed.span(), dips[0].level, seed)
        distort.write_outages(outages, outages_out)
    _print(changed, where, as_json, out=str(out), could_not_hold=lost)


@app.command(
    "from-slurm",
    epilog="Examples:\n\n"
    "slurm-rl traces from-slurm --out site.csv.gz --cluster-out site.cluster.json --since 2026-01-01\n\n"
    "slurm-rl traces from-slurm --out shared.csv.gz --since 2026-01-01 --until 2026-02-01 --anonymise\n\n"
    "slurm-rl traces from-slurm --out site.csv.gz --since 2026-01-01 --keys name,workdir,array",
)
def from_slurm(
    out: Annotated[Path, typer.Option("--out", help="Trace to write.")],
    since: Annotated[str, typer.Option("--since", help="First day or moment, as 2026-01-31 or 2026-01-31T08:00.")],
    until: Annotated[str | None, typer.Option("--until", help="End of the time range; default: now.")] = None,
    cluster_out: Annotated[
        Path | None, typer.Option("--cluster-out", help="Cluster file to write, from the present nodes.")
    ] = None,
    partition: Annotated[list[str] | None, typer.Option("--partition", help="Only these partitions.")] = None,
    anonymise: Annotated[bool, typer.Option("--anonymise", help="Hash users, accounts and job names.")] = False,
    salt: Annotated[str | None, typer.Option("--salt", help="Secret for the hashes; a random one by default.")] = None,
    keys: Annotated[
        str,
        typer.Option("--keys", help="Further columns for estimates, hashed: name,workdir,container,submitline,array."),
    ] = "",
    telemetry: Annotated[
        Path | None,
        typer.Option(
            "--telemetry", help="telemetry.sqlite, or the agents' shared directory: adds the measured use as columns."
        ),
    ] = None,
    conf: Annotated[Path | None, typer.Option("--conf", help="slurm.conf of the cluster, if not the default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read a site's finished jobs from its accounting database with sacct.

    Steps, jobs that never ran and jobs still running are left out and counted. A requeued job counts once, with its
    last run. An array task is a job. The parts of a heterogeneous job are added up to one job.
    """
    import secrets
    import time

    from slurm_rl.domain.cluster import write_cluster
    from slurm_rl.domain.keys import parse_keys
    from slurm_rl.errors import InputError
    from slurm_rl.slurm.cli import CliClient
    from slurm_rl.traces.site import anonymised, history_trace, site_cluster

    wanted_keys = parse_keys(keys)
    if salt is not None and not anonymise and not wanted_keys:
        raise InputError("--salt goes with --anonymise or --keys")
    secret = salt if salt is not None else secrets.token_hex(16)
    start, end = moment(since, "--since"), moment(until, "--until") if until else time.time()
    client = CliClient(conf)
    client.keys = wanted_keys
    wanted = [p for text in partition or [] for p in text.split(",")]
    state = client.snapshot()
    history = client.history(start, end)
    trace = history_trace(history, state.cluster or "site", wanted, keys=wanted_keys, salt=secret)
    if telemetry is not None:
        from slurm_rl.telemetry.join import with_measurements
        from slurm_rl.telemetry.source import opened

        with opened(telemetry) as store:
            trace, measured = with_measurements(trace, history, store)
    if anonymise:
        trace = anonymised(trace, secret)
    cluster, mixed = site_cluster(state.nodes, state.cluster or "site", wanted, state.topology)
    more: dict[str, object] = {"out": str(out), "could_not_hold": _write(trace, out)}
    if mixed:
        more["nodes_with_several_gpu_types"] = mixed
    if telemetry is not None:
        more["measured_jobs"] = measured
    if cluster_out:
        write_cluster(cluster, cluster_out)
    _print(trace, cluster, as_json, **more)


def moment(text: str, option: str) -> float:
    """Local time as Unix seconds."""
    from datetime import datetime

    from slurm_rl.errors import InputError

    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InputError(f"not a date: {text!r}", field=option, remedy="write 2026-01-31 or 2026-01-31T08:00") from None


def _changed(workload: Any, changes: dict[str, Any]) -> Any:
    from dataclasses import replace

    if "jobs" in changes and "days" not in changes:  # more jobs take longer, they do not come faster
        changes = {**changes, "days": workload.days * changes["jobs"] / workload.jobs}
    elif "days" in changes and "jobs" not in changes:
        changes = {**changes, "jobs": max(1, round(workload.jobs * changes["days"] / workload.days))}
    return replace(workload, **changes)


def _write(trace: Trace, out: Path) -> list[str]:
    from slurm_rl.traces.native import write_native
    from slurm_rl.traces.swf import write_swf

    if ".swf" in out.suffixes:
        return write_swf(trace, out)
    write_native(trace, out)
    return []
