"""Chooses the client for a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_rl.domain.keys import Key
from slurm_rl.errors import unknown_name
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.pyslurm import PyslurmClient

KINDS = ("auto", "cli", "pyslurm")


def connect(
    conf: Path | None = None,
    kind: str = "auto",
    timeout: float = 10.0,
    *,
    force: bool = False,
    keys: Sequence[Key] = (),
) -> SlurmClient:
    """A client: `auto` and `cli` speak through Slurm's commands, `pyslurm` writes through pyslurm.

    With `force` it also writes to a release that is not in our table. `keys` are asked of each job besides.
    """
    if kind not in KINDS:
        raise unknown_name("Slurm client", kind, KINDS)
    client = PyslurmClient(conf, timeout) if kind == "pyslurm" else CliClient(conf, timeout)
    client.force, client.keys = force, keys
    return client
