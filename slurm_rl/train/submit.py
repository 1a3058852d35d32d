"""Trainings as Slurm jobs, through submitit, and the choice among trainings of several seeds."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import submitit

from slurm_rl.errors import EnvironmentMissing, SlurmError
from slurm_rl.policy.checkpoint import Model, save_model, unflatten
from slurm_rl.policy.meta import MetaModel, load_any, save_meta
from slurm_rl.slurm.command import Commands

DEFAULTS = {"time": "720", "cpus-per-task": "2", "mem": "8G"}
_SILENCE = 60.0  # seconds that a job may be gone from the queue before its result shows on a shared file system


class Training:
    """One training in a job; a job that is preempted or at its time limit is queued again and resumes."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)

    def __call__(self) -> None:
        sys.stdout.write(shlex.join(self.command) + "\n")
        sys.stdout.flush()
        code = subprocess.run(self.command, check=False).returncode
        if code == -signal.SIGUSR2:
            time.sleep(60)  # Slurm's warning reached the training first: submitit queues the job again
        if code:
            raise RuntimeError(f"the training ended with exit code {code}")

    def checkpoint(self) -> Any:
        """What submitit runs when the job starts again: the same, since the command resumes."""
        return submitit.helpers.DelayedSubmission(self)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A training that was submitted."""

    seed: int
    job: str
    out: Path
    log: str
    handle: Any = field(repr=False)  # submitit's
    label: str = ""

    @property
    def called(self) -> str:
        return self.label or f"seed {self.seed}"

    @property
    def ended(self) -> bool:
        return bool(self.handle.paths.result_pickle.exists())

    @property
    def well(self) -> bool:
        return self.ended and self.handle.exception() is None


def submit_array(
    commands: Mapping[str, Sequence[str]], folder: Path, options: Mapping[str, str], name: str
) -> list[Submitted]:
    """Submits commands, by what each is called, as the tasks of one job array."""
    folder.mkdir(parents=True, exist_ok=True)
    manager = _executor(folder, options, name)
    try:
        jobs = manager.submit_array([Training(command) for command in commands.values()])
    except submitit.core.utils.FailedJobError as error:
        raise SlurmError(f"sbatch: {str(error).strip().splitlines()[-1]}") from None
    return [
        Submitted(i, str(job.job_id), folder, str(job.paths.stdout), job, label)
        for i, (label, job) in enumerate(zip(commands, jobs, strict=True))
    ]


def _executor(folder: Path, options: Mapping[str, str], name: str) -> Any:
    """submitit's executor; `options` are sbatch's own, by their long names."""
    given = DEFAULTS | {key.replace("_", "-"): value for key, value in options.items()}
    time_limit, cpus = given.pop("time"), given.pop("cpus-per-task")
    try:
        manager = submitit.SlurmExecutor(folder=folder, max_num_timeout=100)
    except RuntimeError as error:
        raise EnvironmentMissing(f"cannot submit a job: {error}") from None
    manager.update_parameters(
        job_name=given.get("job-name", name),
        cpus_per_task=int(cpus),
        time=int(time_limit),
        additional_parameters={k.replace("-", "_"): v for k, v in given.items() if k != "job-name"},
    )
    return manager


def submit(
    commands: Mapping[int, Sequence[str]], outs: Mapping[int, Path], options: Mapping[str, str]
) -> list[Submitted]:
    """Submits one job a seed; `options` are sbatch's own, by their long names."""
    found = []
    for seed, command in commands.items():
        folder = outs[seed] / "slurm"
        folder.mkdir(parents=True, exist_ok=True)
        manager = _executor(folder, options, f"slurm-rl-train-{seed}")
        try:
            job = manager.submit(Training(command))
        except submitit.core.utils.FailedJobError as error:
            raise SlurmError(f"sbatch: {str(error).strip().splitlines()[-1]}") from None
        found.append(Submitted(seed, str(job.job_id), outs[seed], str(job.paths.stdout), job))
    return found


def wait_for(jobs: Sequence[Submitted], say: Callable[[str], None], *, poll: float = 2.0) -> list[Submitted]:
    """Waits until all jobs have ended; those that did not end well."""
    commands, missing = Commands(None, 30.0), dict.fromkeys((j.job for j in jobs), 0.0)
    waiting = list(jobs)
    while waiting:
        time.sleep(poll)
        listed = commands.run("squeue", "-h", "-a", "-r", "-o", "%i", "--me").split()  # -r: a line for each array task
        for job in list(waiting):
            if job.job in listed and not job.ended:
                missing[job.job] = 0.0
                continue
            missing[job.job] += poll
            if job.ended or missing[job.job] > _SILENCE:
                waiting.remove(job)
                say(f"{job.called}: job {job.job} has ended, {len(waiting)} to go")
    return [job for job in jobs if not job.well]


def choose(outs: Mapping[int, Path], best: Path) -> tuple[int, Model | MetaModel]:
    """Copies the model with the best validation score of several seeds; its manifest names the scores of all."""
    models = {seed: load_any(out / "model") for seed, out in outs.items()}
    scores = {seed: float(m.manifest["scores"]["validation_score"]) for seed, m in models.items()}
    seed = min(scores, key=lambda s: scores[s])
    model = models[seed]
    manifest = dict(model.manifest) | {"seeds": {str(s): round(v, 4) for s, v in scores.items()}}
    if isinstance(model, MetaModel):
        return seed, save_meta(best, model.tensors(), manifest, model.meta)
    return seed, save_model(best, unflatten(model.net), manifest, **model.policy)
