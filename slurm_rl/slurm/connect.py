"""Chooses the client for a cluster."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.errors import unknown_name
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.pyslurm import PyslurmClient, installed_major

KINDS = ("auto", "cli", "pyslurm")


def connect(conf: Path | None = None, kind: str = "auto", timeout: float = 10.0) -> SlurmClient:
    """A client: `auto` takes pyslurm where it is installed for this very release, and Slurm's commands otherwise."""
    if kind not in KINDS:
        raise unknown_name("Slurm client", kind, KINDS)
    if kind == "pyslurm":
        return PyslurmClient(conf, timeout)
    cli = CliClient(conf, timeout)
    if kind == "auto" and installed_major() is not None and installed_major() == cli.release().major:
        return PyslurmClient(conf, timeout)
    return cli
