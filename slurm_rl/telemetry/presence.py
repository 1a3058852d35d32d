"""Which Slurm jobs are on this node, and which job a process belongs to, without asking slurmctld."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# cgroup v1: /slurm[_NODE]/uid_1000/job_42/step_0; v2: /system.slice/[NODE_]slurmstepd.scope/job_42/step_0/user
_CGROUP = re.compile(r"/(?:slurm(?:_[^/]+)?/uid_\d+|(?:[^/]+_)?slurmstepd\.scope)/job_(\d+)(?:/|$)", re.MULTILINE)
_JOB_DIRECTORY = re.compile(r"job_(\d+)")
_V1_CONTROLLERS = ("devices", "memory", "freezer", "cpuset", "cpu,cpuacct")


@dataclass(frozen=True, slots=True)
class Environment:
    """What a job's process was started with, as far as it tells of GPUs."""

    job: int
    gpus: tuple[int, ...] = ()  # by the numbers of their device files
    uuids: tuple[str, ...] = ()
    user: str = ""


class Presence:
    """Looks at cgroups, at slurmd's spool directory and at /proc.

    `listed` holds what `scontrol listpids` said; somebody refills it when `wants_list` is set.
    """

    def __init__(
        self, node: str, spool: Path | None, *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self.node, self.spool = node, spool
        self._proc = proc
        self._owners: dict[int, tuple[str, int]] = {}  # pid -> (when it began, its job)
        self.listed: dict[int, int] = {}
        self.wants_list = False
        # slurmstepd makes a socket for each step, NODE_JOB.STEP; `scontrol listpids` finds them the same way.
        self._socket = re.compile(re.escape(node) + r"_(\d+)\.\d+(?:\.\d+)?")
        slices = cgroups / "system.slice"
        self._v2 = [slices / f"{node}_slurmstepd.scope", slices / "slurmstepd.scope"]
        self._v1 = [cgroups / c / n for c in _V1_CONTROLLERS for n in (f"slurm_{node}", "slurm")]

    def jobs(self) -> set[int]:
        """The jobs with a step on this node, by their raw ids."""
        found = _numbers(_names(self.spool), self._socket) if self.spool is not None else set()
        for scope in self._v2:
            found |= _numbers(_names(scope), _JOB_DIRECTORY)
        for slurm in self._v1:
            users = [name for name in _names(slurm) if name.startswith("uid_")]
            for user in users:
                found |= _numbers(_names(slurm / user), _JOB_DIRECTORY)
            if users:
                break
        return found

    def job_of(self, pid: int, jobs: Mapping[int, int | None]) -> int:
        """The job a process belongs to, of those on this node (with their owners' uids); 0 if none, or it is gone."""
        began = self._began(pid)
        known = self._owners.get(pid)
        if known is not None and known == (began, known[1]) and known[1] in jobs:
            return known[1]
        if not began:
            self._owners.pop(pid, None)
            return 0
        job = self._by_cgroup(pid) or self._by_environment(pid, jobs) or self.listed.get(pid, 0)
        if job not in jobs:
            self.wants_list = self.wants_list or bool(jobs)
            return 0
        if len(self._owners) > 10_000:
            self._owners.clear()
        self._owners[pid] = (began, job)
        return job

    def pids_of(self, job: int) -> list[int]:
        """The processes in the job's cgroups; none where Slurm keeps no cgroups."""
        for root in (*self._v2, *self._v1):
            pattern = f"job_{job}" if root in self._v2 else f"uid_*/job_{job}"
            for directory in root.glob(pattern):
                found = [int(p) for f in directory.rglob("cgroup.procs") for p in _text(f).split()]
                if found:
                    return found
        return []

    def environment_of(self, job: int, pids: Iterable[int]) -> Environment:
        """What the first of these processes with GPUs was started with."""
        for pid in pids:
            found = environment(self._proc, pid)
            if found.job == job and (found.gpus or found.uuids):
                return found
        return Environment(job)

    def _by_cgroup(self, pid: int) -> int:
        match = _CGROUP.search(_text(self._proc / str(pid) / "cgroup"))
        return int(match[1]) if match else 0

    def _by_environment(self, pid: int, jobs: Mapping[int, int | None]) -> int:
        """By SLURM_JOB_ID, which a user can set at will: it must name a job here that is the process's owner's."""
        job = environment(self._proc, pid).job
        if job not in jobs:
            return 0
        try:
            owner = (self._proc / str(pid)).stat().st_uid
        except OSError:
            return 0
        return job if jobs[job] in (None, owner) else 0

    def _began(self, pid: int) -> str:
        """When a process began, in clock ticks since boot: the same pid at another time is another process."""
        after_name = _text(self._proc / str(pid) / "stat").rpartition(")")[2].split()
        return after_name[19] if len(after_name) > 19 else ""


def environment(proc: Path, pid: int) -> Environment:
    """Reads /proc/PID/environ, where the kernel lets us."""
    words = dict(w.partition("=")[::2] for w in _text(proc / str(pid) / "environ").split("\0") if w)
    job = words.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return Environment(0)
    # SLURM_JOB_GPUS numbers device files, whatever CUDA_VISIBLE_DEVICES says inside a cgroup.
    numbers = words.get("SLURM_JOB_GPUS") or words.get("SLURM_STEP_GPUS") or ""
    visible = words.get("CUDA_VISIBLE_DEVICES", "")
    return Environment(
        int(job),
        tuple(int(n) for n in numbers.split(",") if n.isdecimal()),
        tuple(u for u in visible.split(",") if u.startswith(("GPU-", "MIG-"))),
        words.get("SLURM_JOB_USER", ""),
    )


def _names(directory: Path | None) -> list[str]:
    try:
        return os.listdir(directory) if directory is not None else []
    except OSError:
        return []


def _numbers(names: Iterable[str], pattern: re.Pattern[str]) -> set[int]:
    return {int(m[1]) for name in names if (m := pattern.fullmatch(name))}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
