"""`slurm-rl install-plugin`: puts the job_submit shim beside slurm.conf, or takes it away."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from slurm_rl.slurm.plugin import PluginOutcome

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

slurm-rl install-plugin --dry-run    all checks, and a list of the steps

slurm-rl install-plugin --socket /run/slurm-rl/slurm-rl.sock --deadline-ms 20

slurm-rl install-plugin --uninstall    the site's own job_submit.lua comes back, byte for byte"""


@app.command(epilog=_EPILOG)
def install_plugin(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory of slurm.conf [default: SLURM_CONF's, else /etc/slurm]")
    ] = None,
    socket: Annotated[Path | None, typer.Option(help="The service's unix socket.")] = None,
    deadline_ms: Annotated[int | None, typer.Option(help="Longest wait of a submission for advice.")] = None,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Restore the site's own script.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Install the job_submit.lua shim; the site's own script still runs, before it."""
    from slurm_rl.errors import EnvironmentMissing
    from slurm_rl.slurm import plugin
    from slurm_rl.slurm.lua import find_lua

    where = plugin.find_directory(directory)
    try:
        if uninstall:
            outcome = plugin.uninstall(where, dry_run=dry_run)
        else:
            lua = find_lua(plugin.slurm_conf_values(where, "PluginDir")[-1:])
            outcome = plugin.install(where, lua, socket=socket, deadline_ms=deadline_ms, dry_run=dry_run)
    except PermissionError as error:
        raise EnvironmentMissing(f"{where}: {error.strerror}: run this as root, on slurmctld's machine") from error
    if as_json:
        print(json.dumps(dataclasses.asdict(outcome), default=str))
    else:
        _print(outcome, uninstall)


def _print(outcome: PluginOutcome, uninstall: bool) -> None:
    would = "would " if outcome.dry_run else ""
    for action in outcome.actions:
        print(would + action)
    if not outcome.actions:
        print(f"nothing to do in {outcome.directory}")
    for note in outcome.notes:
        print(f"note: {note}")
    if outcome.slurm_conf:
        print("\nPut into slurm.conf, then restart slurmctld:")
        for row in outcome.slurm_conf:
            print(f"  {row}")
    elif outcome.actions and not outcome.dry_run and not uninstall:
        print("slurmctld reads it at the next submission: slurm.conf needs no change.")
