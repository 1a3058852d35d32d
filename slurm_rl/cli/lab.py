"""`slurm-rl lab`: starts, shows, feeds and ends a private, real Slurm with fake GPUs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="A private, real Slurm with fake GPUs on this machine.", no_args_is_help=True, add_completion=False
)

_DIR = "/var/lib/slurm-rl/lab"
_NODES = "a100:8*4,v100:8*4,t4:4*8"
Directory = Annotated[Path, typer.Option("--dir", help="Everything of the lab is below this directory.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]


@app.command()
def up(
    nodes: Annotated[str, typer.Option(help="TYPE:GPUS*COUNT[:cpus=N][:mem=GB], comma-separated.")] = _NODES,
    accounting: Annotated[bool, typer.Option("--accounting", help="With slurmdbd and MariaDB.")] = False,
    plugin: Annotated[str, typer.Option(help="Run the service and its plugin: off, shadow or enforce.")] = "off",
    directory: Directory = Path(_DIR),
    as_json: Json = False,
) -> None:
    """Start a lab.

    Example: slurm-rl lab up --nodes "a100:8*2,t4:4*2:cpus=32:mem=128" --accounting
    """
    from slurm_rl.errors import unknown_name
    from slurm_rl.lab import lab
    from slurm_rl.lab.spec import LabSpec, PluginMode, parse_nodes

    if plugin not in set(PluginMode):
        raise unknown_name("--plugin mode", plugin, PluginMode)
    spec = LabSpec(directory, parse_nodes(nodes), accounting, PluginMode(plugin))
    began = time.monotonic()
    started = lab.up(spec)
    seconds = time.monotonic() - began
    if as_json:
        _print({**_described(started), "seconds": round(seconds, 3)})
        return
    state = started.state
    print(f"A Slurm {state.release} with {len(state.nodes)} nodes is up after {seconds:.1f} s. Use it:")
    print(f"  export SLURM_CONF={started.slurm_conf}")
    print("  sbatch --gpus=1 --wrap 'sleep 60'; squeue; sinfo -N -o '%N %T %G %f'")
    where = "" if directory == Path(_DIR) else f" --dir {started.directory}"
    print(f"End it:\n  slurm-rl lab down{where}")


@app.command()
def status(directory: Directory = Path(_DIR), as_json: Json = False) -> None:
    """Show a lab's daemons, nodes and jobs."""
    from slurm_rl.errors import SlurmError
    from slurm_rl.lab import lab
    from slurm_rl.slurm.cli import CliClient

    found = lab.attach(directory)
    value = _described(found)
    try:
        snapshot = CliClient(found.slurm_conf, timeout=5).snapshot() if found.state.up else None
    except SlurmError as error:
        snapshot, value["error"] = None, str(error)
    if snapshot is not None:
        value["nodes"] = {n.name: n.state for n in snapshot.nodes}
        value["jobs"] = {
            "pending": sum(j.array_task_count for j in snapshot.jobs if j.pending),
            "running": sum(j.running for j in snapshot.jobs),
        }
    if as_json:
        _print(value)
        return
    dead = [name for name, p in value["processes"].items() if not p["alive"]]
    print(f"The lab in {found.directory} is {value['status']}.")
    if dead:
        print(f"Not running any more: {', '.join(dead)}")
    if "error" in value:
        print(f"Slurm says: {value['error']}")
    if snapshot is not None:
        print(f"Jobs: {value['jobs']['pending']} pending, {value['jobs']['running']} running. Nodes:")
        for n in snapshot.nodes:
            gpus = ", ".join(f"{n.gpus_allocated.get(kind, 0)}/{count} {kind}" for kind, count in n.gpus.items())
            print(f"  {n.name:<12} {n.state:<10} {n.cpus_allocated}/{n.cpus} CPUs{', ' + gpus if gpus else ''}")
    if found.state.up:
        print(f"Use it: export SLURM_CONF={found.slurm_conf}")


@app.command()
def down(
    directory: Directory = Path(_DIR),
    delete: Annotated[bool, typer.Option("--delete", help="Remove the directory as well.")] = False,
    as_json: Json = False,
) -> None:
    """End exactly the lab's processes, also after a crash."""
    from slurm_rl.lab import lab

    ended = lab.attach(directory).down()
    if delete:
        lab.delete(directory)
    if as_json:
        _print({"ended": ended, "deleted": delete})
    else:
        print(f"Ended {len(ended)} processes of the lab in {directory}.")


@app.command()
def submit(
    trace: Annotated[Path, typer.Argument(help="A trace of any known format.")],
    speedup: Annotated[float, typer.Option(help="Divide all times of the trace by this.")] = 1.0,
    limit: Annotated[int | None, typer.Option(help="Submit only the first so many jobs.")] = None,
    directory: Directory = Path(_DIR),
    as_json: Json = False,
) -> None:
    """Submit a trace's jobs as time-scaled sleeps with their real GPU requests.

    Example: slurm-rl lab submit traces/hetero.csv.gz --speedup 600 --limit 200
    """
    import numpy as np

    from slurm_rl.lab import lab
    from slurm_rl.lab.submit import Submission
    from slurm_rl.lab.submit import submit as submit_trace
    from slurm_rl.traces.read import read_trace

    jobs = read_trace(trace)
    if limit is not None:
        jobs = jobs.take(np.arange(min(max(limit, 0), len(jobs))))
    count = 0

    def progress(_: Submission) -> None:
        nonlocal count
        count += 1
        if not as_json and sys.stderr.isatty():
            sys.stderr.write(f"\r{count}/{len(jobs)} submitted")

    accepted, rejected = submit_trace(lab.attach(directory), jobs, speedup, progress)
    if as_json:
        _print({"submitted": accepted, "rejected": {r.trace_id: r.reason for r in rejected}})
        return
    print(f"Submitted {len(accepted)} of {len(jobs)} jobs.")
    for r in rejected[:10]:
        print(f"  job {r.trace_id}: {r.reason}")
    if len(rejected) > 10:
        print(f"  … and {len(rejected) - 10} more; --json lists them all")


def _described(found: Any) -> dict[str, Any]:
    state = found.state
    alive = {p.name: {"pid": p.pid, "alive": p.alive()} for p in state.own_processes()}
    running = [p["alive"] for p in alive.values()]
    status = "up" if state.up and running and all(running) else "damaged" if any(running) else "down"
    return {
        "status": status,
        "directory": str(state.directory),
        "slurm_conf": str(state.slurm_conf),
        "release": state.release,
        "accounting": state.accounting,
        "plugin": state.plugin,
        "node_names": list(state.nodes),
        "processes": alive,
    }


def _print(value: object) -> None:
    print(json.dumps(value))
