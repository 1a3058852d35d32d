"""`slurm-rl when`: the start of a job that is not submitted yet, and the effect of other requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from slurm_rl.cli.explain import clock, span

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_EPILOG = """Examples:

slurm-rl when --gpus 4 --gpu-type a100 --time 8:00:00

slurm-rl when --gpus 1 --time 30 --partition short --name train --json"""


@app.command(epilog=_EPILOG)
def when(
    time: Annotated[str, typer.Option(help="The time limit, as sbatch takes it: 30 (minutes), 8:00:00, 1-12.")],
    gpus: Annotated[int, typer.Option(help="Number of GPUs.")] = 0,
    gpu_type: Annotated[str, typer.Option(help="GPU type; default: any.")] = "",
    partition: Annotated[str, typer.Option(help="Partition; default: Slurm's default.")] = "",
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 1,
    cpus: Annotated[int, typer.Option(help="Total CPUs; default: one for each node, as sbatch has it.")] = 0,
    mem: Annotated[str, typer.Option(help="Total memory: 64G.")] = "0",
    name: Annotated[str, typer.Option(help="The job's name: your finished jobs of that name give its run time.")] = "",
    account: Annotated[str, typer.Option(help="The account.")] = "",
    qos: Annotated[str, typer.Option(help="The QOS; default: that of your last job.")] = "",
    config: Annotated[Path | None, typer.Option(help="The configuration file, for the service's address.")] = None,
    socket: Annotated[Path | None, typer.Option(help="The service's unix socket.")] = None,
    url: Annotated[str | None, typer.Option(help="The service's address on TCP, https://HOST:PORT.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Forecast the start of a job submitted now: a median and an 80% range, and requests that would change them."""
    from urllib.parse import urlencode

    from slurm_rl.config import load
    from slurm_rl.errors import InputError, SlurmRlError
    from slurm_rl.serve.ask import ask_here_or_afar
    from slurm_rl.slurm.quantities import megabytes, seconds

    try:
        limit, memory = seconds(time), megabytes(mem)
    except (SlurmRlError, ValueError) as error:
        raise InputError(str(error), remedy="--time 8:00:00, --mem 64G") from None
    if limit is None or limit < 60:
        raise InputError(f"must be at least a minute, got {time!r}", field="--time", remedy="e.g. 8:00:00 or 1-12")
    asked: dict[str, Any] = {"time_limit": limit, "gpus": gpus, "gpu_type": gpu_type, "partition": partition}
    asked |= {"nodes": nodes, "cpus": cpus, "mem_mb": memory, "name": name, "account": account, "qos": qos}
    query = urlencode({key: value for key, value in asked.items() if value})
    said = ask_here_or_afar(load(config).config, "/v1/when", query, socket=socket, url=url or "", timeout=30.0)
    print(json.dumps(said) if as_json else text(said))


def text(said: dict[str, Any]) -> str:
    """The answer in words."""
    asked, start = said["asked"], said["start"]
    what = _many(asked["gpus"], "GPU") if asked["gpus"] else _many(asked["cpus"] or 1, "CPU")
    behind = _many(said["pending"], "waiting job")
    kind = f" of type {asked['gpu_type']}" if asked["gpu_type"] else ""
    lines = [f"{what}{kind} for {span(asked['limit'])} in {asked['partition']}, behind {behind}"]
    if said["never"]:
        lines.append(f"  would never start: {said['never']}")
    elif start is None:
        lines.append("  cannot be told now: the queue is too long to run it forward in time")
    else:
        lines.append(_line("start", start))
    lines += [_alternative(a) for a in said["alternatives"]]
    if said["advice"] is not None:
        lines.append(f"  limit    {said['advice']['text']}")
    return "\n".join([*lines, f"  ({said['skill']['text']})"])


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _line(label: str, start: dict[str, Any]) -> str:
    low, high = start["range"]
    return f"  {label:<8} in about {span(start['wait'])}: {clock(start['time'])} ({clock(low)} to {clock(high)})"


def _alternative(a: dict[str, Any]) -> str:
    gain = a["earlier"]
    if gain is None:
        return f"  with {a['what']}: in about {span(a['start']['wait'])}"
    if abs(gain) < 60:
        return f"  with {a['what']}: no difference"
    return f"  with {a['what']}: about {span(abs(gain))} {'earlier' if gain > 0 else 'later'}"
