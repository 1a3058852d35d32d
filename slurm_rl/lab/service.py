"""Runs the live service and its job_submit plugin in the lab (`lab up --plugin shadow|enforce`)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from slurm_rl.config import as_toml
from slurm_rl.errors import EnvironmentMissing
from slurm_rl.lab.clock import LabClock
from slurm_rl.lab.conf import write
from slurm_rl.lab.spec import PluginMode
from slurm_rl.slurm import plugin
from slurm_rl.slurm.lua import VERSIONS, Lua, find_lua, linked_version


def check() -> None:
    """Refuses early when this installation has no service or no plugin to run."""
    if not (plugin.source_dir() / plugin.ENTRY).is_file():
        raise EnvironmentMissing(f"lab up --plugin: {plugin.ENTRY} is not installed; start the lab without --plugin")
    missing = [name for name in ("fastapi", "uvicorn", "prometheus_client") if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentMissing(
            f"lab up --plugin: this installation has no slurm-rl serve (no {', '.join(missing)}): "
            "pip install 'slurm-rl[live]', or start the lab without it"
        )


_DEADLINE_MS = 30  # of the plugin, in real time


def configure(
    directory: Path, mode: PluginMode, plugin_dir: Path | None, clock: LabClock | None, own: Mapping[str, str | float]
) -> None:
    """Installs the plugin beside slurm.conf, where slurmctld looks for it, and writes the service's settings."""
    # slurmctld counts the plugin's milliseconds by the lab's clock.
    deadline = None if clock is None else min(1000, round(_DEADLINE_MS * clock.speed))
    plugin.install(directory, _lua(directory, plugin_dir), socket=socket_path(directory), deadline_ms=deadline)
    settings = {
        "mode": mode.value,
        "policy": "rl:default",  # `auto` would wait for a past, which a lab has not
        "slurm_conf": str(directory / "slurm.conf"),
        "socket": str(socket_path(directory)),
        "state_dir": str(directory / "service"),
        "interval": 2.0,  # a lab's jobs are short
        "updates_per_second": 200.0,
    } | dict(own)
    write(config_path(directory), "".join(f"{name} = {as_toml(value)}\n" for name, value in settings.items()))


def _lua(directory: Path, plugin_dir: Path | None) -> Lua:
    """The Lua of the lab's slurmctld; in a lab of another release, the root's own."""
    if plugin_dir is None:
        return find_lua([])
    version = linked_version(plugin_dir / "job_submit_lua.so") or VERSIONS[0]
    return Lua(str(directory / "sbin" / f"lua{version}"), version)


def config_path(directory: Path) -> Path:
    return directory / "slurm-rl.toml"


def socket_path(directory: Path) -> Path:
    return directory / "run" / "slurm-rl.socket"


# Waits go by real time: Python's own do not end under libfaketime. What the time is, the lab's clock says.
_IN_LAB_TIME = "import time; real = time.time; time.time = lambda: {began!r} + (real() - {began!r}) * {speed!r}; "


def command(directory: Path, clock: LabClock | None = None) -> list[str]:
    hasten = _IN_LAB_TIME.format(began=clock.began, speed=clock.speed) if clock else ""
    program = [sys.executable, "-c", f"{hasten}from slurm_rl.cli import main; main()"]
    return [*program, "serve", "--config", str(config_path(directory))]


def answers(directory: Path) -> Callable[[], bool]:
    return socket_path(directory).is_socket
