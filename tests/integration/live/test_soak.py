"""The state machine against a real slurmctld, for ten minutes: 0 left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from reference.undo_machine import Machine

from slurm_rl.lab.lab import Lab

from ..conftest import LabFactory
from .real_site import RealSite

pytestmark = pytest.mark.slurm

SECONDS = float(os.environ.get("SLURM_RL_SOAK_SECONDS", "600"))
STEPS = 2000


@pytest.fixture(scope="module")
def lab(session_labs: LabFactory) -> Lab:
    return session_labs("a100:8*2")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


def run(lab: Lab, examples: int, steps: int) -> type[Machine]:
    """So many runs of the machine; the first of them is the simplest there is, and says little."""

    class OnSlurm(Machine):
        site_of = staticmethod(lambda: RealSite(lab))
        jumps = False

    run_state_machine_as_test(
        OnSlurm,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    return OnSlurm


def test_a_few_runs_on_a_real_slurm_leave_nothing_behind(lab: Lab) -> None:
    assert run(lab, 3, 30).undone >= 3


@pytest.mark.soak
def test_ten_minutes_on_a_real_slurm_leave_nothing_behind(lab: Lab) -> None:
    began, steps, undone = time.monotonic(), 0, 0
    while time.monotonic() - began < SECONDS or steps < STEPS:
        done = run(lab, 6, 60)
        steps, undone = steps + done.steps, undone + done.undone
        print(f"{time.monotonic() - began:.0f} s: {steps} steps, {undone} undos, nothing left behind", flush=True)
    assert steps >= STEPS
