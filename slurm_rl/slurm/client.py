"""The interface of a Slurm client; `cli` uses Slurm's commands, `pyslurm` writes through pyslurm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from slurm_rl.slurm.model import Health, HistoryJob, JobUpdate, SlurmState, UpdateResult


class SlurmClient(Protocol):
    """Speaks to one Slurm cluster.

    Every call ends within the client's timeout, or raises SlurmError saying what did not answer.
    What it says was asked from Slurm in that call. A record that has not changed since the last snapshot may be the
    same object.
    """

    def snapshot(self) -> SlurmState:
        """Pending and running jobs, nodes, partitions, weights and factors, all of now."""
        ...

    def update(self, updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        """Writes to pending jobs and returns one result per update, in the order given.

        A result is APPLIED only if slurmctld acknowledged it or it was read back. An acknowledged value may still
        be lost if slurmctld crashes before it saves its state: reconcile against the next snapshot.
        Raises SlurmError, having written nothing, when Slurm is unreachable, the release is unknown,
        or this user may not write.
        """
        ...

    def history(self, start: float, end: float) -> list[HistoryJob]:
        """Jobs that were in any state between two times (Unix seconds), from the accounting database."""
        ...

    def health(self) -> Health:
        """Whether slurmctld answers, and how busy it is; an unreachable one is `up=False`, not an error."""
        ...

    def licenses(self) -> tuple[str, Mapping[int, Mapping[str, int]]]:
        """`scontrol show licenses`, and by job id the licences that jobs hold or ask for; ("", {}) if not to be had."""
        ...

    def assoc_mgr(self) -> str:
        """`scontrol show assoc_mgr`: limits and how far they are used; "" where it cannot be had."""
        ...
