"""A lab waits for a daemon as long as it works: a busy machine is no reason to give it up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.errors import SlurmError
from slurm_rl.lab import lab, processes
from slurm_rl.lab.patience import Patience, cpu_seconds


class Story:
    """A clock, and the processor time that a daemon takes while it passes."""

    def __init__(self, share: float) -> None:
        self.share, self.time = share, 0.0

    def now(self) -> float:
        return self.time

    def spent(self) -> float:
        return self.share * self.time

    def given_up_after(self, **limits: float) -> float:
        patience = Patience(self.spent, now=self.now, **limits)
        while not patience.over() and self.time < 10_000:
            self.time += 1.0
        return patience.waited


def test_a_daemon_that_works_slowly_is_waited_for() -> None:
    assert Story(share=0.05).given_up_after(still=60.0, longest=1800.0) > 1800  # a twentieth of a core: ten neighbours


def test_a_daemon_that_does_nothing_is_given_up() -> None:
    assert 60 < Story(share=0.001).given_up_after(still=60.0, longest=1800.0) <= 62


def test_processor_time_is_the_processes() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        busy = processes.Process("busy", child.pid, 0)
        patience = Patience(lambda: cpu_seconds([busy]), still=0.0, longest=60.0)
        while cpu_seconds([busy]) < 0.05:
            assert patience.waited < 60
    finally:
        child.kill()
        child.wait()
    assert cpu_seconds([busy]) == 0.0


def test_a_service_that_compiles_for_longer_than_a_minute_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The minute is a second here: the daemon takes two before it answers, and works meanwhile."""
    monkeypatch.setattr(lab, "STILL", 0.5)
    sign = tmp_path / "socket"
    work = f"import time\nwhile time.process_time() < 1: pass\nopen({str(sign)!r}, 'w').close()\ntime.sleep(60)"
    starter = object.__new__(lab._Starter)
    starter.directory = tmp_path
    process = processes.start("service", [sys.executable, "-c", work], tmp_path / "out", os.environ)
    try:
        starter._until("service answers", sign.exists, process)
        with pytest.raises(SlurmError, match="in vain"):
            starter._until("the moon answers", lambda: False, process)
    finally:
        processes.end([process], tmp_path)
