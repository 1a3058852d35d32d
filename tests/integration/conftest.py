"""Real Slurms for the tests: one small lab per worker and release, and private ones for tests that break things."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.lab.lab import Lab, up
from slurm_rl.lab.spec import LabSpec, parse_nodes
from slurm_rl.slurm.cli import CliClient

LabFactory = Callable[..., Lab]


def _factory(release: str) -> Iterator[LabFactory]:
    """Starts labs in short, world-readable directories, and ends them whatever the tests did."""
    directories: list[Path] = []

    def start(nodes: str = "a100:8*1,t4:4*1", **options: Any) -> Lab:
        # Not tmp_path: it is too long for unix sockets, and other users may not enter it.
        directory = Path(tempfile.mkdtemp(prefix="srl-lab-"))
        directory.chmod(0o755)
        directories.append(directory)
        return up(LabSpec(directory=directory, nodes=parse_nodes(nodes), **{"slurm": release} | options))

    try:
        yield start
    finally:
        for directory in directories:
            if (directory / "lab.json").exists():
                from slurm_rl.lab.lab import attach

                attach(directory).down()
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def session_labs(slurm_release: str) -> Iterator[LabFactory]:
    yield from _factory(slurm_release)


@pytest.fixture
def start_lab(slurm_release: str) -> Iterator[LabFactory]:
    """Starts private labs that end with the test: `start_lab("a100:8*2", accounting=True)`."""
    yield from _factory(slurm_release)


@pytest.fixture(scope="session")
def shared_lab(session_labs: LabFactory) -> Lab:
    return session_labs("a100:8*2,v100:8*2,t4:4*2", accounting=True)


@pytest.fixture
def slurm(shared_lab: Lab) -> Iterator[Lab]:
    """The shared lab with an empty queue, before and after the test."""
    empty_queue(shared_lab)
    yield shared_lab
    empty_queue(shared_lab)


@pytest.fixture
def client(slurm: Lab) -> CliClient:
    return CliClient(slurm.slurm_conf)


def crowding() -> float:
    """How much longer things take now because others have their share of the processors; 1: no longer."""
    began, spent = time.monotonic(), time.thread_time()
    while time.thread_time() - spent < 0.1:
        pass
    return max(1.0, (time.monotonic() - began) / 0.1)


def empty_queue(lab: Lab) -> None:
    """Cancels every job and waits until its nodes are free again."""
    lab.run("scancel", "--user=root", "--quiet")
    deadline = time.monotonic() + 60
    while lab.run("squeue", "-h", "-o", "%i").strip():
        assert time.monotonic() < deadline, "jobs do not go away"
        time.sleep(0.1)
