"""Runs the live service and its job_submit plugin in the lab (`lab up --plugin shadow|enforce`)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from slurm_rl.errors import EnvironmentMissing
from slurm_rl.lab.conf import write
from slurm_rl.lab.spec import PluginMode
from slurm_rl.slurm import plugin
from slurm_rl.slurm.lua import find_lua


def check() -> None:
    """Refuses early when this installation has no service or no plugin to run."""
    if not (plugin.source_dir() / plugin.ENTRY).is_file():
        raise EnvironmentMissing(f"lab up --plugin: {plugin.ENTRY} is not installed; start the lab without --plugin")
    if importlib.util.find_spec("slurm_rl.cli.serve") is None:
        raise EnvironmentMissing("lab up --plugin: this installation has no slurm-rl serve; start the lab without it")


def configure(directory: Path, mode: PluginMode) -> None:
    """Installs the plugin beside slurm.conf, where slurmctld looks for it, and writes the service's settings."""
    plugin.install(directory, find_lua([]), socket=socket_path(directory))
    write(
        directory / "slurm-rl.toml",
        f'mode = "{mode.value}"\n'
        f'socket = "{socket_path(directory)}"\n'
        f'state_dir = "{directory}/service"\n'
        f'slurm_conf = "{directory}/slurm.conf"\n',
    )


def socket_path(directory: Path) -> Path:
    return directory / "run" / "slurm-rl.socket"


def command(directory: Path) -> list[str]:
    program = [sys.executable, "-c", "from slurm_rl.cli import main; main()"]
    return [*program, "serve", "--config", str(directory / "slurm-rl.toml")]


def answers(directory: Path) -> Callable[[], bool]:
    return socket_path(directory).is_socket
