"""`slurm-rl version`: versions of slurm-rl, Python, libraries and Slurm, for a bug report."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from slurm_rl import __version__

app = typer.Typer(add_completion=False)

_LIBRARIES = ("numpy", "numba", "pandas", "torch", "mip", "fastapi", "gymnasium", "pyslurm")


@app.command()
def show(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False) -> None:
    """Print the versions of slurm-rl, Python, libraries and Slurm.

    Example: slurm-rl version --json
    """
    rows = {"slurm-rl": __version__, "python": platform.python_version(), "slurm": _slurm()}
    rows |= {name: _library(name) for name in _LIBRARIES}
    if as_json:
        print(json.dumps(rows))
        return
    for name, found in rows.items():
        print(f"{name:<10} {found or 'not installed'}")


def _library(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _slurm() -> str | None:
    """The release of the Slurm on PATH; its daemons tell it without a slurm.conf, its commands only with one."""
    present = [name for name in ("slurmctld", "slurmd", "sinfo") if shutil.which(name)]
    for name in present:
        try:
            said = subprocess.run([name, "-V"], capture_output=True, text=True, timeout=5, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.startswith("slurm"):
            return said.split()[-1]
    return "installed; its commands find no slurm.conf" if present else None
