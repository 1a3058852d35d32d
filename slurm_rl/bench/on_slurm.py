"""Runs a suite as a job array on the user's own Slurm: each part writes its own files, and lost parts run again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_rl.bench.rows import replace
from slurm_rl.bench.running import missing
from slurm_rl.bench.suite import Settings, Suite
from slurm_rl.errors import EnvironmentMissing, SlurmError

FOLDER = "slurm"  # of submitit's files, in OUT
_SUBMITTED = "jobs.json"


def words_of(suite: Suite, settings: Settings) -> list[str]:
    """The command's words that give these settings."""
    words = [suite.name]
    for name, value in settings.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", ",".join(value) if isinstance(value, list) else str(value)]
    return words


def run_on_slurm(
    suite: Suite,
    settings: Settings,
    out: Path,
    options: Mapping[str, str],
    *,
    tasks: int,
    retries: int,
    say: Callable[[str], None],
    command: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Submits, waits, and submits again what preempted, killed or failed tasks left; the jobs that ran.

    A task skips what is finished, so a requeued one goes on. Tasks of an earlier, interrupted command are waited for.
    `command`: the words of a part, but for --out, --workers and --part; without, those of `bench`.
    """
    try:
        from slurm_rl.train.submit import submit_array, wait_for
    except ImportError:
        raise EnvironmentMissing("--executor slurm needs submitit: pip install 'slurm-rl[train]'") from None
    jobs: list[dict[str, Any]] = []
    _wait_for_earlier(out, say)
    own = {"cpus-per-task": "1"} | dict(options)
    for attempt in range(1 + retries):
        left = missing(suite, settings, out)
        if not left:
            return jobs
        names = {unit.name for unit in left}
        plan = [unit.name for unit in suite.module.plan(settings)]
        parts = [k for k in range(1, tasks + 1) if names.intersection(plan[k - 1 :: tasks])]
        words = ["bench", *words_of(suite, settings)] if command is None else command
        base = [sys.executable, "-m", "slurm_rl", *words, "--out", str(out.resolve()),
                "--workers", own["cpus-per-task"]]  # fmt: skip
        commands = {f"part {k} of {tasks}": [*base, "--part", f"{k}/{tasks}"] for k in parts}
        submitted = submit_array(commands, out / FOLDER, own, f"slurm-rl-{words[0]}-{suite.name}")
        told = [{"part": j.called, "job": j.job, "log": j.log} for j in submitted]
        jobs += told
        replace(out / FOLDER / _SUBMITTED, json.dumps([j["job"] for j in told]).encode())
        say(f"{len(left):,} units in {len(told)} tasks of job array {told[0]['job'].partition('_')[0]}"
            + (f", attempt {attempt + 1}" if attempt else ""))  # fmt: skip
        failed = wait_for(submitted, say)
        for job in failed:
            say(f"{job.called}: job {job.job} did not end well; see {job.log.replace('.out', '.err')}")
    left = missing(suite, settings, out)
    if left:
        logs = jobs[-1]["log"].replace(".out", ".err")
        raise SlurmError(f"{len(left)} units are still missing after {1 + retries} attempts, the first is "
                         f"{left[0].name}; see {logs}")  # fmt: skip
    return jobs


def _wait_for_earlier(out: Path, say: Callable[[str], None]) -> None:
    """Waits while tasks that an interrupted command left behind are in the queue: two would do the same work."""
    import time

    from slurm_rl.slurm.command import Commands

    file = out / FOLDER / _SUBMITTED
    if not file.is_file():
        return
    known, told = set(json.loads(file.read_text(encoding="utf-8"))), False
    while known & set(Commands(None, 30.0).run("squeue", "-h", "-a", "-r", "-o", "%i", "--me").split()):
        if not told:
            say("waiting for tasks of the command before")
            told = True
        time.sleep(2.0)
