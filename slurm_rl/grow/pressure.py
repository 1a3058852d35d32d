"""Asks the service for the expected wait of a job like this one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from slurm_rl.errors import SlurmRlError


@dataclass(frozen=True, slots=True)
class Pressure:
    """Pending jobs in the partition, those like ours among them, and their expected wait from now in seconds."""

    pending: int
    like: int
    wait: float | None  # median; None: nothing is known of jobs like this one
    allowed: bool = True  # the partition's MaxTime is as long as the limit asked for, as far as it is known


def ask_pressure(socket: Path, *, partition: str, gpus: int, time_limit: float | None = None) -> Pressure | None:
    """`GET /v1/pressure` on the service's unix socket; None where it does not answer."""
    from slurm_rl.serve.ask import ask

    asked = {"partition": partition, "gpus": gpus} | ({"time_limit": int(time_limit)} if time_limit else {})
    try:
        status, said = ask(socket, "GET", f"/v1/pressure?{urlencode(asked)}", timeout=2.0)
    except SlurmRlError:
        return None
    if status != 200 or not isinstance(said, dict):
        return None
    wait = said["wait"] or {}
    return Pressure(said["pending"], said["like"], wait.get("median"), said.get("allowed", True))
