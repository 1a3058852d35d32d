"""Asks Slurm about the jobs on this node, beside the sampling: an answer may take seconds, or not come."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_rl.errors import SlurmRlError
from slurm_rl.slurm.command import Commands
from slurm_rl.telemetry.allocation import Allocation, gpu_types, of_job
from slurm_rl.telemetry.nvml import Backoff
from slurm_rl.telemetry.presence import Environment, Presence

_LISTED = re.compile(r"^(\d+)\s+(\d+)\s", re.MULTILINE)  # PID JOBID STEPID …
_TYPES_EVERY = 3600.0
_LONGEST_PAUSE = 60.0
_GRACE = 120.0  # a job without steps is given up after so long if slurmctld does not answer


class NodeSlurm:
    """Slurm's commands, as far as a node needs them."""

    def __init__(self, node: str, conf: Path | None = None, timeout: float = 10.0) -> None:
        self.node = node
        self._commands = Commands(conf, timeout)

    def job(self, job: int) -> Allocation | None:
        return of_job(job, self._run("scontrol", "show", "job", "-d", str(job)), self.node)

    def gpu_types(self) -> list[str]:
        return gpu_types(self._run("scontrol", "show", "node", self.node))

    def pids(self, job: int) -> list[int]:
        said = self._run("scontrol", "listpids", str(job), self.node)
        return [int(pid) for pid, owner in _LISTED.findall(said) if int(owner) == job]

    def spool(self) -> Path | None:
        """Where this node's slurmd keeps its sockets."""
        match = re.search(r"^SlurmdSpoolDir\s*=\s*(\S+)", self._run("scontrol", "show", "config"), re.MULTILINE)
        return Path(match[1].replace("%n", self.node).replace("%h", self.node)) if match else None

    def _run(self, *command: str) -> str:
        return self._commands.run(*command)


@dataclass(slots=True)
class Found:
    """What is known of a job: by slurmctld's word, or by its environment until slurmctld answers."""

    allocation: Allocation | None = None
    told: bool = False  # by slurmctld, to this agent; else it is what the last agent knew
    environment: Environment | None = None
    retry: Backoff = field(default_factory=Backoff)
    gone_since: float = 0.0  # its steps are; 0: they are here
    goes_on: bool = False  # without steps, by slurmctld's word
    ended: bool = False


class Lookup:
    """Knows the allocations of the jobs that `watch` names; `work` does what is due, in a thread of its own."""

    def __init__(self, slurm: NodeSlurm, presence: Presence, clock: Callable[[], float] = time.monotonic) -> None:
        self._slurm, self._presence, self._clock = slurm, presence, clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._end = False
        self._jobs: dict[int, Found] = {}
        self._types_due = 0.0
        self._list_due = 0.0
        self.types: list[str] = []
        self.problem = ""

    def remember(self, allocations: Iterable[Allocation]) -> None:
        """What an agent before knew; it holds until slurmctld has been asked."""
        with self._lock:
            self._jobs = {a.job: Found(a) for a in allocations}

    def watch(self, here: set[int], open_jobs: set[int]) -> Mapping[int, Found]:
        """Names the jobs with steps here and those that are still accounted for; returns what is known of them."""
        now = self._clock()
        with self._lock:
            for job in here | open_jobs:
                found = self._jobs.get(job)
                if found is None:
                    found = self._jobs[job] = Found()
                    self._wake.set()
                if job in here:
                    if found.gone_since:  # it may have been requeued, and hold others now
                        found.allocation, found.told, found.retry = None, False, Backoff()
                        self._wake.set()
                    found.gone_since, found.goes_on, found.ended = 0.0, False, False
                elif not found.gone_since:
                    found.gone_since, found.retry = now, Backoff()
                    self._wake.set()
            for job in [j for j in self._jobs if j not in here and j not in open_jobs]:
                del self._jobs[job]
            return dict(self._jobs)

    def work(self) -> None:
        """Asks what is due; never raises."""
        now = self._clock()
        with self._lock:
            due = [(j, f) for j, f in self._jobs.items() if now >= f.retry.due and not self._settled(f)]
        for job, found in due:
            self._ask(job, found, now)
        if now >= self._types_due:
            self._ask_types(now)
        if self._presence.wants_list and now >= self._list_due:
            self._list_pids(now)

    def run(self) -> None:
        """Works until `stop`."""
        while not self._end:
            self.work()
            self._wake.wait(0.5)
            self._wake.clear()

    def stop(self) -> None:
        self._end = True
        self._wake.set()

    @staticmethod
    def _settled(found: Found) -> bool:
        return found.ended or (found.told and not found.gone_since)

    def _ask(self, job: int, found: Found, now: float) -> None:
        try:
            allocation = self._slurm.job(job)
            self.problem = ""
        except SlurmRlError as error:
            # "Invalid job id": slurmctld has forgotten it. Anything else: slurmctld did not answer.
            allocation = None
            if "Invalid job id" not in str(error):
                self.problem = str(error)
                found.retry.failed(now, _LONGEST_PAUSE)
                found.ended = bool(found.gone_since) and now - found.gone_since > _GRACE
                self._ask_environment(job, found)
                return
        found.retry.failed(now, _LONGEST_PAUSE)
        if allocation is not None:
            found.allocation, found.told, found.goes_on = allocation, True, bool(found.gone_since)
        elif found.gone_since:
            found.ended = True
        else:
            found.allocation = None
            self._ask_environment(job, found)

    def _ask_environment(self, job: int, found: Found) -> None:
        if found.environment is not None or found.gone_since:
            return
        pids = self._presence.pids_of(job)
        if not pids:
            try:
                pids = self._slurm.pids(job)
            except SlurmRlError:
                pids = []
        said = self._presence.environment_of(job, pids)
        found.environment = said if said.gpus or said.uuids else None

    def _ask_types(self, now: float) -> None:
        try:
            self.types = self._slurm.gpu_types()
            self._types_due = now + _TYPES_EVERY
        except SlurmRlError as error:
            self.problem = str(error)
            self._types_due = now + 60.0

    def _list_pids(self, now: float) -> None:
        self._list_due, self._presence.wants_list = now + 10.0, False
        listed: dict[int, int] = {}
        for job in list(self._jobs):
            try:
                listed |= dict.fromkeys(self._slurm.pids(job), job)
            except SlurmRlError:
                continue
        self._presence.listed = listed
