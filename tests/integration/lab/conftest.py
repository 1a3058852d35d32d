"""How these tests speak to a lab: as its users do."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from slurm_rl.lab.lab import Lab

Submit = Callable[..., int]


def sbatch(lab: Lab, *options: str, seconds: float = 600) -> int:
    """Submits a sleep and returns its id."""
    said = lab.run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap=exec sleep {seconds}")
    return int(said.strip())


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain until {what}"
        time.sleep(0.1)


def separate_jobs(lab: Lab, count: int, *options: str) -> int:
    """Makes `count` pending job records quickly: an array whose tasks are separated one by one; returns its id."""
    master = sbatch(lab, f"--array=0-{count - 1}", *options)
    lab.run("scontrol", stdin="".join(f"update JobId={master}_{i} Nice={i % 10}\n" for i in range(count)), timeout=120)
    return master


@pytest.fixture
def submit(slurm: Lab) -> Submit:
    """`submit("--gpus=2")` to the shared lab."""
    return lambda *options, **more: sbatch(slurm, *options, **more)
