"""`slurm-rl node-agent`: samples this node's GPUs, attributes them to jobs, and serves the results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slurm_rl.telemetry.agent import Agent

app = typer.Typer(
    help="Sample this node's GPUs each second, attribute them to Slurm jobs, and serve metrics and job records.",
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
    epilog="Examples:\n\n"
    "slurm-rl node-agent --once --json                                one sample\n\n"
    "slurm-rl node-agent --listen 0.0.0.0:9410 --token-file /etc/slurm-rl/agent.token\n\n"
    "slurm-rl node-agent fit-watts cluster.json --out measured.json   measured watts into a cluster file\n\n"
    "slurm-rl node-agent fit-speeds --since 2026-01-01 --out speeds.json   speeds of GPU types, for replay --speeds",
)


@app.callback()
def node_agent(
    context: typer.Context,
    node: Annotated[str, typer.Option(help="This node's name in Slurm; default: its host name.")] = "",
    directory: Annotated[Path, typer.Option("--dir", help="Directory for samples and records.")] = Path(
        "/var/lib/slurm-rl-node-agent"
    ),
    ring_mb: Annotated[float, typer.Option(help="Size of the ring of samples, in MB (64: a day of 8 GPUs).")] = 64.0,
    interval: Annotated[float, typer.Option(help="Seconds between samples.")] = 1.0,
    listen: Annotated[str, typer.Option(help="HOST:PORT of the endpoint; empty: none.")] = "127.0.0.1:9410",
    token_file: Annotated[str, typer.Option(help="File with the bearer token; needed to listen elsewhere.")] = "",
    allow: Annotated[list[str] | None, typer.Option(help="Accept only these networks, such as 10.1.0.0/16.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate (PEM), to serve HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of the certificate (PEM).")] = None,
    share_dir: Annotated[Path | None, typer.Option(help="Also write job records to this shared directory.")] = None,
    conf: Annotated[Path | None, typer.Option("--conf", help="slurm.conf, if not the default.")] = None,
    spool: Annotated[Path | None, typer.Option(help="SlurmdSpoolDir, instead of asking slurmctld.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Take one sample, print it, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print one JSON value.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Sample this node's GPUs until ended by a signal."""
    if context.invoked_subcommand is not None:
        return
    from slurm_rl.errors import InputError
    from slurm_rl.obs import logs
    from slurm_rl.telemetry.endpoint import Access, Endpoint, networks
    from slurm_rl.telemetry.run import make_agent, run, sample_once
    from slurm_rl.telemetry.token import agent_token

    if not 0.1 <= interval <= 10:
        raise InputError(f"must be from 0.1 to 10, got {interval:g}", field="--interval")
    if not 0.1 <= ring_mb <= 100_000:
        raise InputError(f"must be from 0.1 to 100000, got {ring_mb:g}", field="--ring-mb")
    if log_level not in ("debug", "info", "warning", "error"):
        raise InputError(f"must be debug, info, warning or error, got {log_level!r}", field="--log-level")
    logs.configure("error" if once else log_level)  # what is wrong stands in the sample
    if once:
        seen = sample_once(node, conf, spool)
        print(json.dumps(seen) if as_json else _text(seen))
        return
    token = agent_token(token_file) if token_file else None
    access = Access(token, networks(allow or []))
    agent = make_agent(node, directory, conf, spool, ring_mb)

    def serve(agent: Agent) -> Endpoint | None:
        return Endpoint(agent, listen, access, tls_cert, tls_key) if listen else None

    run(agent, interval, serve, share_dir)


def _text(seen: dict[str, Any]) -> str:
    lines = [
        f"node {seen['node']}" + "".join(f"\n  {what}: {seen[what]}" for what in ("driver", "slurm") if seen[what])
    ]
    for gpu in seen["gpus"]:
        jobs = ", ".join(f"job {j}" for j in gpu["jobs"]) or "free"
        what = (
            gpu["lost"] or f"{_known(gpu['util'], '%')}, {_known(gpu['watts'], ' W')}, {_known(gpu['used_mb'], ' MB')}"
        )
        lines.append(f"  GPU {gpu['index']:<3} {gpu['model']:<28} {what:<28} {jobs}")
    return "\n".join(lines)


def _known(value: float | None, unit: str) -> str:
    return "?" if value is None else f"{value:g}{unit}"


@app.command("fit-watts")
def fit_watts(
    cluster: Annotated[Path, typer.Argument(help="Cluster file to read.")],
    out: Annotated[Path, typer.Option("--out", help="Cluster file to write.")],
    telemetry: Annotated[
        Path, typer.Option(help="The service's telemetry.sqlite, or the agents' shared directory.")
    ] = Path("/var/lib/slurm-rl/telemetry.sqlite"),
    node_watts: Annotated[
        str, typer.Option(help="IDLE:BUSY watts of a node without its GPUs; agents measure only GPUs.")
    ] = "150:450",
    least_hours: Annotated[float, typer.Option(help="GPU-hours, held and free, that a type needs.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Put measured watts of GPU types into a cluster file, for the energy metric and placement's energy weight.

    Example: slurm-rl node-agent fit-watts site.cluster.json --out measured.cluster.json
    """
    from dataclasses import asdict

    from slurm_rl.domain.cluster import read_cluster, write_cluster
    from slurm_rl.errors import InputError
    from slurm_rl.telemetry.fit import measured_cluster
    from slurm_rl.telemetry.source import opened

    own = re.fullmatch(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)", node_watts)
    if own is None:
        raise InputError(f"must be IDLE:BUSY, got {node_watts!r}", field="--node-watts", remedy="such as 150:450")
    before = read_cluster(cluster)
    with opened(telemetry) as store:
        after, fitted = measured_cluster(before, store.watts(), 3600 * least_hours, (float(own[1]), float(own[2])))
    write_cluster(after, out)
    left = [t for t in before.gpu_types if t not in {f.gpu_type for f in fitted}]
    if as_json:
        print(json.dumps({"out": str(out), "fitted": [asdict(f) for f in fitted], "as_before": left}))
        return
    for f in fitted:
        hours = f"{f.free_hours:.3g} GPU-hours free and {f.held_hours:.3g} held"
        print(f"{f.gpu_type:<8} {f.idle:.1f} W idle, {f.busy:.1f} W busy a GPU, from {hours}")
    if left:
        print(f"as before, for want of measurements: {', '.join(left)}")


@app.command("fit-speeds")
def fit_speeds(
    out: Annotated[Path, typer.Option("--out", help="File to write, for replay --speeds.")],
    since: Annotated[str, typer.Option("--since", help="First day or moment, as 2026-01-31 or 2026-01-31T08:00.")],
    until: Annotated[str | None, typer.Option("--until", help="End of the time range; default: now.")] = None,
    telemetry: Annotated[
        Path, typer.Option(help="The service's telemetry.sqlite, or the agents' shared directory.")
    ] = Path("/var/lib/slurm-rl/telemetry.sqlite"),
    conf: Annotated[Path | None, typer.Option("--conf", help="slurm.conf of the cluster, if not the default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Learn the speeds of GPU types from run lengths in accounting and the agents' measurements.

    Example: slurm-rl node-agent fit-speeds --since 2026-01-01 --out speeds.json
    """
    import time

    from slurm_rl.cli.traces import moment
    from slurm_rl.controller.gpu_figures import ran_on
    from slurm_rl.place.speed import learn_speeds, write_speeds
    from slurm_rl.slurm.cli import CliClient
    from slurm_rl.telemetry.source import opened

    history = CliClient(conf).history(moment(since, "--since"), moment(until, "--until") if until else time.time())
    with opened(telemetry) as store:
        joined = [(row, store.run(row.job_id, float(row.start_time))) for row in history if row.start_time is not None]
    runs = [ran for row, found in joined if (ran := ran_on(row, found)) is not None]
    matrix = learn_speeds(runs)
    write_speeds(matrix, out)
    said = {
        "out": str(out),
        "runs": len(runs),
        "measured": sum(found is not None for _, found in joined),
        "types": {kind: round(speed, 4) for kind, speed in sorted(matrix.types.items())},
        "classes": len(matrix.classes),
    }
    if as_json:
        print(json.dumps(said))
        return
    print(f"{len(runs)} runs, {said['measured']} of {len(joined)} jobs were measured")
    for kind, speed in sorted(matrix.types.items()):
        print(f"{kind:<8} {speed:.3g}  (V100 = 1)")
    print(f"{len(matrix.classes)} classes of jobs ran on several types: {out}")
