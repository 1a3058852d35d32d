"""The time that is left: by Slurm's words, by signals, by a number."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_rl.cli.script import run_script
from slurm_rl.errors import InputError, SlurmError
from slurm_rl.grow import Budget
from slurm_rl.grow import budget as module


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> object:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_END_TIME", module.END):
        monkeypatch.delenv(name, raising=False)
    before = {n: signal.getsignal(n) for n in module.WARNINGS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_seconds_run_down_and_never_below_zero() -> None:
    clock = Clock()
    budget = Budget(30, clock=clock)
    clock.now += 12
    assert budget.left() == 18
    clock.now += 100
    assert budget.left() == 0
    assert Budget().left() == math.inf
    with pytest.raises(InputError, match="number of seconds"):
        Budget(-1)


def test_slurms_end_time_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "123456")
    assert Budget.from_slurm().end == 123456
    monkeypatch.setenv("SLURM_JOB_END_TIME", "soon")
    with pytest.raises(InputError, match="SLURM_JOB_END_TIME: must be Unix seconds, got 'soon'"):
        Budget.from_slurm()


@pytest.mark.parametrize(
    ("squeue", "scontrol", "end"),
    [
        ("echo 1700000000", "exit 1", 1700000000),
        ("echo N/A", "echo JobId=7 EndTime=1700000001 Other=x", 1700000001),
        ("exit 1", "echo JobId=7 EndTime=1700000002", 1700000002),
        ("echo N/A", "echo JobId=7 EndTime=Unknown", math.inf),
    ],
)
def test_older_releases_are_asked_by_squeue_or_scontrol(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, squeue: str, scontrol: str, end: float
) -> None:
    for name, said in (("squeue", squeue), ("scontrol", scontrol)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{said}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert Budget.from_slurm().end == end


def test_a_tenth_of_a_jobs_time_is_kept_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for whole, kept in ((100, 10), (36000, 60)):
        monkeypatch.setenv(module.END, str(time.time() + whole))
        budget = Budget.from_slurm()
        assert budget.reserve == pytest.approx(kept, rel=0.2)
        assert budget.left() == pytest.approx(budget.end - time.time() - budget.reserve, abs=5)


def test_outside_a_job_there_is_no_end() -> None:
    assert Budget.from_slurm().left() == math.inf


def test_a_changed_limit_is_learned_once_a_minute_and_an_absent_slurmctld_changes_nothing() -> None:
    clock, answers = Clock(), [2000.0, SlurmError("away"), None]

    def ask() -> float | None:
        answer = answers.pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        return answer

    budget = Budget(end=1100, ask=ask, clock=clock)
    assert budget.refresh() == 100, "not asked at once"
    clock.now += 61
    assert budget.refresh() == 939
    clock.now += 61
    assert budget.refresh() == 878
    clock.now += 61
    assert budget.refresh() == math.inf


def test_signals_warn_and_older_handlers_are_called_too() -> None:
    called: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: called.append(number))
    clock = Clock()
    budget = Budget(500, clock=clock)
    budget.listen()
    assert not budget.warned
    os.kill(os.getpid(), signal.SIGUSR1)
    assert budget.warned
    assert called == [signal.SIGUSR1]
    assert budget.left() == 500, "a warning ends nothing by itself"
    os.kill(os.getpid(), signal.SIGTERM)
    clock.now += 10
    assert budget.left() == 20, "after SIGTERM Slurm waits 30 seconds"


def test_without_a_service_there_is_no_word_on_the_queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURM_RL_SOCKET", str(tmp_path / "none"))
    assert Budget(5).pressure() is None


@pytest.mark.parametrize(("number", "code"), [("SIGUSR1", 0), ("SIGTERM", -15)])
def test_a_warning_while_python_ends_does_not_fail_the_job(number: str, code: int) -> None:
    """Python has put its handlers away by then; a warning has nothing left to say, an end still ends."""
    script = f"""
import os, signal
from slurm_rl.grow.budget import Budget

class Late:
    def __init__(self):
        self.kill, self.me, self.number = os.kill, os.getpid(), signal.{number}
    def __del__(self):
        self.kill(self.me, self.number)

budget, late = Budget(60), Late()
budget.listen()
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == code


def test_a_warning_before_a_script_listens_does_not_end_it(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import time; time.sleep(1.5)")
    said = run_script(script, [], budget=60.0, warn=59.9, policy="never", quiet=True)
    assert said["exit_code"] == 0
    assert said["seconds"] >= 1.5
