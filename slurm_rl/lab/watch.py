"""Runs a trace's jobs on a real Slurm: submits each at its time, watches all to their end, leaves none behind."""

from __future__ import annotations

import contextlib
import math
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slurm_rl.errors import SlurmError
from slurm_rl.lab.clock import LabClock
from slurm_rl.lab.observed import Observed
from slurm_rl.lab.submit import LabSubmission, Manner, Rejection, job_id_of, submissions
from slurm_rl.slurm.command import Commands, key_values, records, separator
from slurm_rl.slurm.quantities import expand_hosts
from slurm_rl.traces.trace import Trace

_FIELDS = ("JobID", "State", "SubmitTime", "StartTime", "EndTime", "NodeList", "Reason", "Comment")
_ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT".split()
)
_STUCK = 1800.0  # seconds of the cluster's time without any change, after which jobs that still wait are given up
_STUCK_REAL = 20.0  # … and of real time

Progress = Callable[[float], None]  # the share of the jobs that have ended


@dataclass
class WatchedSlurm:
    """A Slurm to run on, and how time passes there."""

    commands: Commands
    clock: LabClock | None = None  # None: real time
    poll: float = 10.0  # real seconds between two looks
    keeps: bool = False  # whether it remembers all ended jobs to the end

    def now(self) -> float:
        return self.clock.now() if self.clock else time.time()

    @property
    def speed(self) -> float:
        return self.clock.speed if self.clock else 1.0

    def run(self, *command: str, user: str | None = None) -> str:
        if user is None:
            return self.commands.run(*command)
        return Commands(self.commands.conf, self.commands.timeout, user).run(*command)


@dataclass
class LabRun:
    """What became of a trace's jobs."""

    rows: list[Observed]
    refused: dict[str, str]  # trace id -> why it was not accepted or never started
    late: float  # seconds by which submissions were late, on average
    real_seconds: float


@dataclass
class _LabWatch:
    """Jobs of one run as Slurm shows them."""

    site: WatchedSlurm
    tag: str
    seen: dict[int, tuple[str, dict[str, str]]] = field(default_factory=dict)  # job -> (trace id, its record)

    def look(self) -> None:
        mark = separator()
        wanted = ",".join(f"{name}:{mark}" for name in _FIELDS)
        said = self.site.run("squeue", "-h", "-a", "-t", "all", "-O", wanted)
        for r in records(said, _FIELDS, mark):
            tag, _, trace_id = r["Comment"].partition(":")
            if tag == self.tag:
                self.seen[int(r["JobID"])] = (trace_id, r)

    def ended(self) -> int:
        return sum(r["State"] in _ENDED for _, r in self.seen.values())

    def alive(self) -> list[int]:
        return [job for job, (_, r) in self.seen.items() if r["State"] not in _ENDED]

    def waiting(self) -> list[int]:
        """Jobs that are pending, if none runs; else nothing."""
        states = {job: r["State"] for job, (_, r) in self.seen.items() if r["State"] not in _ENDED}
        return list(states) if set(states.values()) == {"PENDING"} else []


def run_trace(
    site: WatchedSlurm,
    trace: Trace,
    manner: Manner,
    on_progress: Progress | None = None,
    skip: frozenset[str] = frozenset(),
) -> LabRun:
    """Runs the jobs of a trace (but those in `skip`); interrupted, it cancels what it submitted and raises."""
    manner = replace(manner, tag=f"slurm-rl-{secrets.token_hex(6)}")
    watch = _LabWatch(site, manner.tag)
    began = time.monotonic()
    with _interruptible():
        try:
            submitted, rejected, late = _submit(site, trace, manner, watch, on_progress, skip)
            given_up = _until_ended(site, watch, submitted, len(trace), on_progress)
        except BaseException:
            cancel(site, manner.tag)
            raise
    rows, never = _observed(watch, _schedulers(site, watch) if site.keeps else {})
    never = {name: given_up.get(name, why) for name, why in never.items()}
    refused = {r.trace_id: r.reason for r in rejected} | never
    return LabRun(rows, refused, late, time.monotonic() - began)


def _submit(
    site: WatchedSlurm,
    trace: Trace,
    manner: Manner,
    watch: _LabWatch,
    on_progress: Progress | None,
    skip: frozenset[str],
) -> tuple[int, list[Rejection], float]:
    rejected: list[Rejection] = []
    submitted, late, looked = 0, 0.0, time.monotonic()
    first = site.now() + 0.2 * site.speed
    for job in submissions(trace, manner):
        if job.trace_id in skip:
            continue
        due = first + job.after
        while (early := (due - site.now()) / site.speed) > 0:
            if early > 0.3 and time.monotonic() - looked > site.poll:
                watch.look()
                looked = time.monotonic()
                _tell(on_progress, watch, len(trace))
                continue
            time.sleep(min(early, 0.3))
        late += site.now() - due
        try:
            _sbatch(site, job)
            submitted += 1
        except SlurmError as error:
            rejected.append(Rejection(job.trace_id, str(error)))
    return submitted, rejected, late / max(submitted, 1)


def _sbatch(site: WatchedSlurm, job: LabSubmission) -> int:
    return job_id_of(site.run("sbatch", "--parsable", *job.arguments, user=job.user))


def _until_ended(
    site: WatchedSlurm, watch: _LabWatch, submitted: int, total: int, on_progress: Progress | None
) -> dict[str, str]:
    """Waits until all jobs have ended; those that wait for ever are cancelled, and told with Slurm's reason."""
    given_up: dict[str, str] = {}
    before, changed, changed_real = (-1, -1), site.now(), time.monotonic()
    while True:
        watch.look()
        _tell(on_progress, watch, total)
        if len(watch.seen) >= submitted and not watch.alive():
            return given_up
        now = (watch.ended(), len(watch.alive()))
        if now != before or not watch.waiting():
            before, changed, changed_real = now, site.now(), time.monotonic()
        elif site.now() - changed > _STUCK and time.monotonic() - changed_real > _STUCK_REAL:
            stuck = watch.waiting()
            given_up |= {watch.seen[j][0]: f"waited in vain ({watch.seen[j][1]['Reason']})" for j in stuck}
            site.run("scancel", *map(str, stuck))
        time.sleep(min(site.poll, 0.5))


def _tell(on_progress: Progress | None, watch: _LabWatch, total: int) -> None:
    if on_progress is not None:
        on_progress(watch.ended() / max(total, 1))


def _observed(watch: _LabWatch, schedulers: dict[int, str]) -> tuple[list[Observed], dict[str, str]]:
    """Times since the first submission."""
    rows, never = [], {}
    origin = min((_seconds(r["SubmitTime"]) for _, r in watch.seen.values()), default=0.0)
    for job, (trace_id, r) in sorted(watch.seen.items()):
        submit, start, end = (_seconds(r[k]) - origin for k in ("SubmitTime", "StartTime", "EndTime"))
        nodes = expand_hosts(r["NodeList"]) if r["NodeList"] else ()
        if math.isnan(start) or math.isnan(end) or not nodes:
            never[trace_id] = f"{r['State']} before it started"
            continue
        rows.append(Observed(trace_id, submit, start, end, r["State"], nodes, schedulers.get(job, ""), int(origin)))
    return rows, never


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else math.nan


def _schedulers(site: WatchedSlurm, watch: _LabWatch) -> dict[int, str]:
    """Which of Slurm's schedulers started a job."""
    pairs = (key_values(line) for line in site.run("scontrol", "-o", "show", "job").splitlines())
    found = {int(p["JobId"]): p.get("Scheduler", "") for p in pairs if p.get("JobId", "").isdecimal()}
    return {job: name for job, name in found.items() if job in watch.seen}


def cancel(site: WatchedSlurm, tag: str, seconds: float = 30.0) -> int:
    """Cancels every job of a run, also one that Slurm took while we were interrupted; how many there were."""
    watch = _LabWatch(site, tag)
    cancelled: set[int] = set()
    quiet, deadline = 0, time.monotonic() + seconds
    while quiet < 2 and time.monotonic() < deadline:
        with contextlib.suppress(SlurmError):  # slurmctld may be slow: look again
            watch.look()
            alive = watch.alive()
            quiet = 0 if alive else quiet + 1
            if alive:
                cancelled |= set(alive)
                site.run("scancel", "--quiet", *map(str, alive))
        time.sleep(0.5)
    return len(cancelled)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt as Ctrl-C does, so that jobs are cancelled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def site_of(conf: Path, clock: LabClock | None = None, *, lab: bool = False, timeout: float = 30.0) -> WatchedSlurm:
    """The Slurm of a slurm.conf."""
    return WatchedSlurm(Commands(conf, timeout), clock, poll=1.0 if lab else 10.0, keeps=lab)
