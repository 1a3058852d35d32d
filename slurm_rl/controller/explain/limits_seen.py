"""Limits that hold jobs back, with their numbers: read once a minute, and only while some job waits for one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from slurm_rl.slurm.assoc_limits import binding_limits, is_limit
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import SlurmJob, SlurmState

_EVERY = 60.0  # seconds


class LimitsSeen:
    """What slurmctld last told of its limits; ticks read, any thread asks."""

    def __init__(self) -> None:
        self._text = ""
        self._read = 0.0

    def see(self, client: SlurmClient, state: SlurmState) -> None:
        if not 0 <= state.taken - self._read < _EVERY and any(j.pending and is_limit(j.reason) for j in state.jobs):
            self._read = state.taken
            self._text = client.assoc_mgr()

    def of(self, job: SlurmJob) -> list[dict[str, Any]]:
        """The limits that hold a job back."""
        return [asdict(b) | {"text": str(b)} for b in binding_limits(job, self._text)]
