"""`slurm-rl undo`: takes back every SiteFactor that was written."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def undo(
    config: Annotated[Path | None, typer.Option(help="The configuration file.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Reset every pending job's SiteFactor, also those the journal does not know.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Return every job we touched to SiteFactor 0, from the journal; a running service is put into mode off.

    The exit code is 1 if some job still has a factor.
    """
    from slurm_rl.config import load
    from slurm_rl.controller.undo import undo as take_back
    from slurm_rl.obs.journal import Journal
    from slurm_rl.slurm.cli import CliClient

    settings = load(config).config
    began = time.monotonic()
    if not settings.journal.exists() and not everything:
        result: dict[str, object] = {"touched": 0, "returned": 0, "left": [], "stopped_leader": False}
    else:
        client = CliClient(Path(settings.slurm_conf) if settings.slurm_conf else None, settings.slurm_timeout)
        result = dataclasses.asdict(take_back(client, Journal(settings.journal), everything=everything))
    seconds = time.monotonic() - began
    if as_json:
        print(json.dumps(result | {"seconds": round(seconds, 2)}))
    else:
        print(f"{result['returned']} of {result['touched']} jobs returned to SiteFactor 0 in {seconds:.1f} s")
        if result.get("steered"):
            print(f"{result['freed']} of {result['steered']} jobs have their own constraint again")
        if result.get("deferred"):
            print(f"{result['lifted']} of {result['deferred']} jobs that were left for later may start again")
        if result["stopped_leader"]:
            print("the running service was put into mode off")
        if result["left"]:
            print(f"still with a factor: {result['left']}")
    raise typer.Exit(1 if result["left"] else 0)
