"""A lab in fast-forward: its daemons and jobs agree on the time, and nothing of its clock stays behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.errors import InputError
from slurm_rl.lab.lab import Lab, attach

from .conftest import sbatch, wait_until
from .test_lab_lifecycle import processes_with

pytestmark = [pytest.mark.slurm]
StartLab = Callable[..., Lab]
SHM = Path("/dev/shm")


def shared_memory(lab: Lab) -> list[Path]:
    assert lab.state.clock is not None
    semaphore, memory = (name.removeprefix("/") for name in lab.state.clock.shared.split())
    return [SHM / f"sem.{semaphore}", SHM / memory]


def times_of(lab: Lab, job: int) -> tuple[str, int, int]:
    fields = dict(word.split("=", 1) for word in lab.run("scontrol", "show", "job", str(job)).split() if "=" in word)
    at = [int(time.mktime(time.strptime(fields[k], "%Y-%m-%dT%H:%M:%S"))) for k in ("StartTime", "EndTime")]
    return fields["JobState"], at[0], at[1]


@pytest.mark.releases
def test_minutes_pass_in_seconds(start_lab: StartLab) -> None:
    lab = start_lab("a100:2*1", clock=120)
    clock = lab.state.clock
    assert clock is not None
    real, began = time.monotonic(), clock.now()
    command = f"--wrap=sleep 240; date +%s > {lab.directory}/slept"
    long = int(lab.run("sbatch", "--parsable", "--output=/dev/null", "--time=20", command))
    killed = sbatch(lab, "--time=1", seconds=240)
    wait_until(lambda: lab.run("squeue", "-h").strip() == "", "both have ended")
    assert (time.monotonic() - real) * 20 < clock.now() - began  # 120 but for rounding
    state, start, end = times_of(lab, long)
    assert state == "COMPLETED"
    assert end - start >= 240
    assert start <= int((lab.directory / "slept").read_text()) <= end  # the job's own clock is slurmctld's
    state, start, end = times_of(lab, killed)
    assert state == "TIMEOUT"
    assert 60 <= end - start < 240
    shown = json.loads(subprocess.check_output([*PROGRAM, "status", "--json", "--dir", str(lab.directory)]))
    assert shown["status"] == "up"
    assert shown["clock"]["speed"] == 120
    kept = shared_memory(lab)
    assert all(path.exists() for path in kept)
    lab.down()
    assert not any(path.exists() for path in kept)
    assert processes_with(str(lab.directory)) == []


PROGRAM = [sys.executable, "-c", "from slurm_rl.cli import main; main()", "lab"]


def test_a_killed_holder_leaves_no_shared_memory(start_lab: StartLab) -> None:
    """Here with slurmdbd, whose records are in the lab's time, too."""
    lab = start_lab("a100:2*1", clock=60, accounting=True)
    job = sbatch(lab, seconds=300)
    wait_until(lambda: lab.run("squeue", "-h").strip() == "", "it has ended")
    _, start, end = times_of(lab, job)
    told = f"{job}|COMPLETED|{end - start}"
    ask = ("sacct", "-X", "-n", "-P", "-o", "jobid,state,elapsedraw", "-j", str(job))
    wait_until(lambda: lab.run(*ask).strip() == told, "slurmdbd has it")
    kept = shared_memory(lab)
    os.kill(lab.process("clock").pid, signal.SIGKILL)
    wait_until(lambda: not lab.process("clock").alive(), "it is dead")
    assert all(path.exists() for path in kept)  # so somebody has to remove it
    attach(lab.directory).down()
    assert not any(path.exists() for path in kept)
    assert processes_with(str(lab.directory)) == []


def test_kill_9_in_the_middle_of_up() -> None:
    directory = Path(tempfile.mkdtemp(prefix="srl-end-"))
    before = set(SHM.iterdir())
    try:
        command = [*PROGRAM, "up", "--clock", "60", "--nodes", "a100:2*1", "--dir", str(directory)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as starting:
            wait_until((directory / "log" / "clock.out").exists, "the clock starts")
            wait_until((directory / "lab.json").exists, "the lab is known")
            starting.kill()
        attach(directory).down()
        assert processes_with(str(directory)) == []
        # Others' clocks may have come and gone; none of this lab is left.
        assert not [path for path in set(SHM.iterdir()) - before if not _held(path)]
    finally:
        shutil.rmtree(directory)


def _held(path: Path) -> bool:
    """Whether the shared memory's maker is alive."""
    return "faketime" not in path.name or Path(f"/proc/{path.name.rpartition('_')[2]}").exists()


@pytest.mark.parametrize("speed", [0.5, float("nan"), 1e6])
def test_a_speed_that_cannot_be_is_refused(start_lab: StartLab, speed: float) -> None:
    with pytest.raises(InputError, match="--clock"):
        start_lab("a100:2*1", clock=speed)
