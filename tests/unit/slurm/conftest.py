"""Recorded answers of real Slurm commands, and programs that give them in Slurm's place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from recordings import FIXTURES, MARK, Recording


@pytest.fixture(scope="session")
def recorded() -> Callable[[str], str]:
    """Reads a recorded answer, such as 22.05/squeue.txt."""
    return lambda name: (FIXTURES / name).read_text()


@pytest.fixture(scope="session", params=["22.05", "24.11", "26.05"])
def recording(request: pytest.FixtureRequest) -> Recording:
    """Each release that was recorded."""
    return Recording(request.param)


@pytest.fixture
def mark() -> str:
    return MARK


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts a program of our own before Slurm's on PATH: `fake("squeue", "cat file")`."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=fake\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))

    def make(name: str, script: str) -> Path:
        program = directory / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    return make
