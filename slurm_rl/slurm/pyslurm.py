"""The optional client: Slurm's commands for everything but plain SiteFactors, which a worker writes through pyslurm."""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.errors import EnvironmentMissing, SlurmError
from slurm_rl.slurm.cli import CliClient, batch_time
from slurm_rl.slurm.model import JobUpdate, UpdateResult, UpdateStatus
from slurm_rl.slurm.pyslurm_worker import Silence, Worker
from slurm_rl.slurm.release import Release, parse_release
from slurm_rl.slurm.updates import check_rights, checked

# Numbers of Slurm's slurm_errno.h, alike from 22.05 to 26.05.
_NOT_SENT = frozenset(
    {
        1001,  # SLURM_COMMUNICATIONS_CONNECTION_ERROR
        1800,  # SLURMCTLD_COMMUNICATIONS_CONNECTION_ERROR
        1805,  # SLURMCTLD_COMMUNICATIONS_HARD_DROP: too many requests, this one was not looked at
    }
)
_FIRST_REFUSAL = 2000  # below: the system's own numbers and what went wrong between slurmctld and us
_BETWEEN = range(5000, 7000)  # sockets (5004 is silence, 5005 a closed connection) and authentication


def status_of(errno: int) -> UpdateStatus:
    """What became of an update that failed with this number; only slurmctld's own word is a refusal."""
    if errno in _NOT_SENT:
        return UpdateStatus.NOT_SENT
    if errno < _FIRST_REFUSAL or errno in _BETWEEN:
        return UpdateStatus.UNKNOWN
    return UpdateStatus.REFUSED


def installed_major() -> tuple[int, int] | None:
    """The major release pyslurm was built for, found without importing it; None if it is not installed."""
    try:
        return parse_release(importlib.metadata.version("pyslurm")).major
    except importlib.metadata.PackageNotFoundError:
        return None


def check_installed(release: Release) -> None:
    """Raises EnvironmentMissing unless pyslurm is installed for the Slurm that is installed here."""
    major = installed_major()
    if major is None:
        raise EnvironmentMissing("pyslurm is not installed: pip install 'slurm-rl[pyslurm]'")
    if major != release.major:
        raise EnvironmentMissing(
            f"pyslurm is for Slurm {major[0]}.{major[1]:02}, this is Slurm {release}: install pyslurm "
            f"{release.year}.{release.month}.*"
        )


def expressible(update: JobUpdate) -> bool:
    """Whether pyslurm can send it: it drops a SiteFactor of 0, and knows neither prefer nor array records."""
    others = (update.features, update.prefer, update.start_at)
    return bool(update.site_factor) and not update.array_tasks and all(value is None for value in others)


class PyslurmClient(CliClient):
    """A CliClient that writes plain SiteFactors through pyslurm.

    It reads through Slurm's commands: pyslurm (25.11.2) loses GPU types, dependencies and array tasks.
    """

    def __init__(self, conf: Path | None = None, timeout: float = 10.0, user: str | None = None) -> None:
        super().__init__(conf, timeout, user)
        check_installed(parse_release(self.commands.run("scontrol", "-V")))
        self._lock = threading.Lock()
        self._worker: Worker | None = None

    def close(self) -> None:
        """Ends the worker; the next update starts another."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _apply(self, updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        lines, refused = checked(updates)
        sendable = [u for u in updates if u.job_id in lines]
        with self._lock:
            sent = self._send(sendable) if sendable else {}
        check_rights(list(sent.values()))
        if sent and all(r.status is UpdateStatus.NOT_SENT for r in sent.values()):
            raise SlurmError(f"pyslurm: {next(iter(sent.values())).message}")
        return [refused.get(u.job_id) or sent[u.job_id] for u in updates]

    def _send(self, updates: Sequence[JobUpdate]) -> dict[int, UpdateResult]:
        by_command = [u for u in updates if not expressible(u)]
        worker = self._started() if len(by_command) < len(updates) else None  # may fail: before anything is written
        deadline = time.monotonic() + batch_time(self.commands.timeout, len(updates))
        results = {r.job_id: r for r in super()._apply(by_command)} if by_command else {}
        unheard = (r.message for r in results.values() if r.status in (UpdateStatus.UNKNOWN, UpdateStatus.NOT_SENT))
        silence = next(unheard, None)
        for update in updates:
            if update.job_id in results or worker is None:
                continue
            if silence is None and time.monotonic() >= deadline:
                silence = "the time for this batch is over: slurmctld is slow"
            if silence is None:
                result = self._write(worker, update, deadline)
                if result.status not in (UpdateStatus.APPLIED, UpdateStatus.REFUSED):
                    silence = result.message
            else:
                result = UpdateResult(update.job_id, UpdateStatus.NOT_SENT, silence)
            results[update.job_id] = result
        return results

    def _started(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            self.close()
            self._worker = Worker(self.commands)
        return self._worker

    def _write(self, worker: Worker, update: JobUpdate, deadline: float) -> UpdateResult:
        try:
            errno, message = worker.write(update.job_id, update.site_factor or 0, deadline)
        except Silence as silence:
            self.close()
            return UpdateResult(update.job_id, UpdateStatus.UNKNOWN, str(silence))
        if not errno:
            return UpdateResult(update.job_id, UpdateStatus.APPLIED)
        return UpdateResult(update.job_id, status_of(errno), message)
