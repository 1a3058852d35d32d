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
Directory = Annotated[Path, typer.Option("--dir", help="The lab's directory; it writes nowhere else.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]


@app.command()
def fetch(
    release: Annotated[str, typer.Argument(help="A major release of Slurm: 24.11 or 26.05.")],
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Directory of roots; default: $SLURM_RL_ROOTS or /var/cache/slurm-rl/roots."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Replace an existing root.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch another release of Slurm into its own root, for `lab up --slurm`.

    Runs mmdebstrap as root: a minute or two, 400 to 600 MB. The machine's own Slurm is not touched.

    Example: sudo slurm-rl lab fetch 24.11
    """
    from slurm_rl.lab.fetch import fetch as fetch_root

    done = fetch_root(release, directory, again)
    if as_json:
        _print(
            {
                "root": str(done.root.path),
                "release": str(done.release),
                "fetched": done.fresh,
                "seconds": round(done.seconds, 1),
                "megabytes": done.megabytes(),
                "notes": done.notes,
            }
        )
        return
    for note in done.notes:
        print(f"Note: {note}.")
    if done.fresh:
        print(f"Slurm {done.release} is in {done.root.path}: {done.megabytes()} MB in {done.seconds:.0f} s.")
    else:
        print(f"Slurm {done.release} is in {done.root.path} already; --again replaces it.")
    where = f"SLURM_RL_ROOTS={done.root.path.parent} " if directory is not None else ""
    print(f"Use it:\n  {where}slurm-rl lab up --slurm {release}")


@app.command()
def up(
    nodes: Annotated[str, typer.Option(help="TYPE:GPUS*COUNT and options (docs/lab.md), comma-separated.")] = _NODES,
    accounting: Annotated[bool, typer.Option("--accounting", help="Start slurmdbd and MariaDB too.")] = False,
    plugin: Annotated[str, typer.Option(help="Run the service and its plugin: off, shadow or enforce.")] = "off",
    slurm: Annotated[str, typer.Option(help="A release from lab fetch; default: the installed one.")] = "",
    auth: Annotated[str, typer.Option(help="munge, or slurm: Slurm's own, since 23.11.")] = "munge",
    topology: Annotated[
        str, typer.Option(help="tree:N or block:N: leaf switches, or blocks (since 23.11), of N nodes.")
    ] = "",
    clock: Annotated[float, typer.Option(help="Speed-up of the lab's time (libfaketime).")] = 1.0,
    directory: Directory = Path(_DIR),
    as_json: Json = False,
) -> None:
    """Start a lab.

    Examples:
      sudo slurm-rl lab up --nodes "a100:8*2,t4:4*2:cpus=32:mem=128" --accounting
      sudo slurm-rl lab up --slurm 26.05 --dir /tmp/lab26
      sudo slurm-rl lab up --clock 120
      sudo slurm-rl lab up --nodes "a100:8*6" --topology tree:2
    """
    from slurm_rl.errors import unknown_name
    from slurm_rl.lab import lab
    from slurm_rl.lab.spec import Auth, LabSpec, PluginMode, parse_nodes, parse_topology

    if plugin not in set(PluginMode):
        raise unknown_name("--plugin mode", plugin, PluginMode)
    if auth not in set(Auth):
        raise unknown_name("--auth", auth, Auth)
    spec = LabSpec(
        directory,
        parse_nodes(nodes),
        accounting,
        PluginMode(plugin),
        slurm,
        Auth(auth),
        clock=clock,
        topology=parse_topology(topology) if topology else None,
    )
    began = time.monotonic()
    started = lab.up(spec)
    seconds = time.monotonic() - began
    if as_json:
        _print({**_described(started), "seconds": round(seconds, 3)})
        return
    state = started.state
    print(f"A Slurm {state.release} with {len(state.nodes)} nodes is up after {seconds:.1f} s. Use it:")
    for line in _exports(state):
        print(f"  {line}")
    print("  sbatch --gpus=1 --wrap 'sleep 60'; squeue; sinfo -N -o '%N %T %G %f'")
    where = "" if directory == Path(_DIR) else f" --dir {started.directory}"
    print(f"End it:\n  slurm-rl lab down{where}")


@app.command()
def status(directory: Directory = Path(_DIR), as_json: Json = False) -> None:
    """Show a lab's daemons, nodes and jobs.

    Example: slurm-rl lab status
    """
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
    if found.state.clock is not None:
        print(f"Clock: {found.state.clock.speed:g} times real time, {value['clock']['now']} now.")
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
        print(f"Use it: {'; '.join(_exports(found.state))}")


@app.command()
def down(
    directory: Directory = Path(_DIR),
    delete: Annotated[bool, typer.Option("--delete", help="Remove the directory as well.")] = False,
    as_json: Json = False,
) -> None:
    """End exactly the lab's processes, even after a crash.

    Example: slurm-rl lab down --delete
    """
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
    limit: Annotated[int | None, typer.Option(help="Number of jobs to submit, from the first on.")] = None,
    directory: Directory = Path(_DIR),
    as_json: Json = False,
) -> None:
    """Submit a trace's jobs as time-scaled sleeps with their real GPU requests.

    Example: slurm-rl lab submit traces/hetero.csv.gz --speedup 600 --limit 200
    """
    import numpy as np

    from slurm_rl.lab import lab
    from slurm_rl.lab.submit import LabSubmission
    from slurm_rl.lab.submit import submit as submit_trace
    from slurm_rl.traces.read import read_trace

    jobs = read_trace(trace)
    if limit is not None:
        jobs = jobs.take(np.arange(min(max(limit, 0), len(jobs))))
    count = 0

    def progress(_: LabSubmission) -> None:
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


def _exports(state: Any) -> list[str]:
    """What a shell needs so that Slurm's commands, and ours, reach the lab."""
    from slurm_rl.lab.service import config_path
    from slurm_rl.lab.spec import PluginMode

    path = [f"export PATH={state.bin}:$PATH"] if state.bin else []
    service = [] if state.plugin == PluginMode.OFF else [f"export SLURM_RL_CONFIG={config_path(state.directory)}"]
    return [f"export SLURM_CONF={state.slurm_conf}", *path, *service]


def _clock(clock: Any) -> dict[str, Any] | None:
    if clock is None:
        return None
    from datetime import UTC, datetime

    return {"speed": clock.speed, "now": datetime.fromtimestamp(clock.now(), UTC).isoformat(timespec="seconds")}


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
        "root": state.root or None,
        "auth": state.auth,
        "shell": _exports(state),
        "accounting": state.accounting,
        "clock": _clock(state.clock),
        "plugin": state.plugin,
        "node_names": list(state.nodes),
        "processes": alive,
    }


def _print(value: object) -> None:
    print(json.dumps(value))
