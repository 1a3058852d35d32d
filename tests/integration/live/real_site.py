"""A real slurmctld as the state machine drives it: the same jobs and the same acts as on the model."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import Any

from reference.undo_machine import ADVISED

from slurm_rl.errors import SlurmError
from slurm_rl.lab.lab import Lab
from slurm_rl.slurm.cli import CliClient

from .on_lab import until

BUSY, FREE = "a100-1", "a100-2"  # jobs wait for the one, and start when they are sent to the other
_SLEEP = "--wrap=exec sleep 1800"
_WAITS = {"hold", "later", "now", "depend", "alone", "priority", "start", "restart"}


class RealSite:
    """Jobs of a lab with two nodes, of which the first is taken for good."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.client: Any = CliClient(lab.slurm_conf)
        self._held: set[int] = set()
        self._made: set[int] = set()  # jobs that are neither arrays nor heterogeneous
        if not lab.run("squeue", "-h", "-n", "fill", "-o", "%A").strip():
            lab.run("sbatch", "--output=/dev/null", "--job-name=fill", "--exclusive", f"--nodelist={BUSY}", _SLEEP)
        until(lambda: "RUNNING" in lab.run("squeue", "-h", "-n", "fill", "-o", "%T"), "the node is taken")

    @property
    def now(self) -> float:
        return time.time()

    def _run(self, *command: str) -> str:
        """What Slurm refuses, because a job is in another state by now, does nothing."""
        with suppress(SlurmError):
            return self.lab.run(*command)
        return ""

    def submit(self, kind: str, other: int, limit: int) -> list[int]:
        options = ["--parsable", "--output=/dev/null", "--mem=10M", "--ntasks=1", f"--time={limit}", f"-w{BUSY}"]
        options += ["--hold"] if "held" in kind else []
        options += ["--begin=now+3600"] if kind == "later" else []
        options += [f"--dependency=afterany:{other}"] if kind == "dependent" and other else []
        options += ["--array=1-4"] if kind == "array" else []
        options += ["--comment=slurm-rl:off"] if kind == "opted out" else []
        component = [":", "--ntasks=1", "--mem=10M"] if kind == "het" else []
        said = self.lab.run("sbatch", *options, *component, _SLEEP)
        made = [int(i) for i in re.findall(r"^\d+", said)]
        self._made |= set(made) if kind not in ("array", "het") else set()
        for job in made:
            if "held" in kind:
                self._held.add(job)
            if kind.startswith("advised"):  # as the plugin does it at submission
                self._run("scontrol", "update", f"JobId={job}", f"SiteFactor={ADVISED}")
        return made

    def act(self, what: str, job: int, other: int) -> None:
        state = {j.job_id: j for j in self.client.snapshot().jobs}
        record = state.get(job)
        if record is None and job in self.ended() and what in ("requeue", "requeuehold"):
            self._requeue(job, what)
            until(lambda: any(j.job_id == job for j in self.client.snapshot().jobs), "it waits again")
            return
        if record is None or (what in _WAITS and not record.pending):
            return
        name, update = str(job), ("scontrol", "update", f"JobId={job}")
        if what == "hold":
            self._held.add(job)
            self._run("scontrol", "hold", name)
        elif what == "release":
            self._run("scontrol", "release", name)
        elif what in ("later", "now"):
            self._run(*update, "StartTime=" + ("now+3600" if what == "later" else "now"))
        elif what == "depend" and other != job:
            self._run(*update, f"Dependency=afterany:{other}")
        elif what == "alone":
            self._run(*update, "Dependency=")
        elif what == "priority" and not record.held:
            self._run(*update, "Priority=4321")
        elif what in ("start", "restart") and not record.het_job_id and record.array_task_count == 1:
            self._run(*update, f"ReqNodeList={FREE}")
            if what == "restart":
                for _ in range(400):
                    if any(j.job_id == job and j.running for j in self.client.snapshot().jobs):
                        break
                    time.sleep(0.05)
                self._requeue(job, "requeue")
        elif what == "finish":
            self._run("scancel", name)
        elif what in ("requeue", "requeuehold", "special") and record.running:
            self._requeue(job, what)
        elif what == "suspend":
            self._run("scontrol", "suspend" if record.state == "RUNNING" else "resume", name)

    def _requeue(self, job: int, what: str) -> None:
        if what != "requeue":
            self._held.add(job)
        words = {
            "requeue": ["requeue"],
            "requeuehold": ["requeuehold"],
            "special": ["requeuehold", "State=SpecialExit"],
        }
        self._run("scontrol", *words[what], str(job))
        self._run("scontrol", "update", f"JobId={job}", f"ReqNodeList={BUSY}")

    def jobs(self) -> list[int]:
        return [j.job_id for j in self.client.snapshot().jobs if j.name != "fill"]

    def ended(self) -> list[int]:
        """Jobs that Slurm remembers, and lets be requeued."""
        said = self.lab.run("squeue", "-h", "-t", "CD,CA,F,TO,NF", "-o", "%A").split()
        return sorted({int(job) for job in said} & self._made)

    def held(self) -> set[int]:
        """Held by somebody; the tasks of a held array are, too."""
        jobs = self.client.snapshot().jobs
        return self._held | {j.job_id for j in jobs if j.array_job_id in self._held or j.reason.startswith("JobHeld")}

    def factors(self) -> dict[int, int]:
        """Every job's factor, brought to light: all are made to wait for the busy node, eligible, and read."""
        found: dict[int, int] = {}
        pushed: dict[int, tuple[object, float]] = {}  # a job that is changed again and again never becomes eligible
        end = time.monotonic() + 120
        while time.monotonic() < end:
            jobs = [j for j in self.client.snapshot().jobs if j.name != "fill" and j.job_id not in found]
            if not jobs:
                return found
            for job in jobs:
                name, update = str(job.job_id), ("scontrol", "update", f"JobId={job.job_id}")
                looks, (before, when) = (job.state, job.held, job.dependency), pushed.get(job.job_id, (None, 0.0))
                shown = job.factors is not None and job.factors.partition
                if not shown and looks == before and time.monotonic() - when < 3:
                    continue
                pushed[job.job_id] = looks, time.monotonic()
                if job.factors is not None and job.factors.partition:
                    found[job.job_id] = job.factors.site
                elif job.state == "SUSPENDED":
                    self._run("scontrol", "resume", name)
                elif job.running and job.state != "COMPLETING":
                    self._run("scontrol", "requeue", name)
                    self._run(*update, f"ReqNodeList={BUSY}")
                elif job.state != "COMPLETING":
                    if job.held or job.factors is not None:
                        self._run("scontrol", "hold", name)
                        self._run("scontrol", "release", name)
                    self._run(*update, f"ReqNodeList={BUSY}", "StartTime=now")
                    if job.dependency:
                        self._run(*update, "Dependency=")
            time.sleep(0.05)
        raise AssertionError(f"not brought to light: {[(j.job_id, j.state, j.reason) for j in jobs]}")

    def pass_time(self, seconds: int) -> None:
        time.sleep(min(seconds / 200, 0.5))

    def close(self) -> None:
        ids = [str(i) for i in self.jobs()]
        if ids:
            self._run("scancel", *ids)
        until(lambda: not self.jobs(), "the queue is empty")
