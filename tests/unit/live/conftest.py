"""Controllers on a Slurm in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.explain import place_in_queue
from slurm_rl.controller.live import ControllerLive, warm_up
from slurm_rl.controller.tick import Controller
from slurm_rl.obs.journal import Journal

from .fake_slurm import FakeSlurm, a_job, a_running_job

MakeController = Callable[..., Controller]


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes every journal a test opened; Python 3.13 warns of those that are not."""
    opened: list[Journal] = []
    init = Journal.__init__

    def remembered(self: Journal, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        opened.append(self)

    monkeypatch.setattr(Journal, "__init__", remembered)
    yield
    for journal in opened:
        journal.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not cut an explanation short: what it says is tested here, not how fast."""
    monkeypatch.setattr(place_in_queue, "_PATIENCE", 600.0)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.sqlite")


@pytest.fixture
def controller(journal: Journal) -> MakeController:
    """`controller(slurm, policy="sjf@limit")`: enforcing, unless told otherwise."""

    def make(slurm: FakeSlurm, *, policy: Any = None, holder: str | None = None, **settings: Any) -> Controller:
        defaults: dict[str, Any] = {"mode": "enforce", "policy": "sjf@limit", "updates_per_second": 1e4}
        config = Config(**(defaults | settings))
        made = Controller(config, slurm, journal, policy=policy, clock=lambda: slurm.now, holder=holder)
        made.start_forecasts.seconds = 600.0  # however busy the machine, and though kernels may be compiled
        return made

    return make


@pytest.fixture
def slurm() -> FakeSlurm:
    jobs = [a_job(i, limit=1000 * i, user="root") for i in range(1, 6)]
    return FakeSlurm(*jobs, a_running_job(901, "n1"), a_running_job(902, "n2"), SlurmUser=f"me({os.getuid()})")


@pytest.fixture
def live(slurm: FakeSlurm, controller: MakeController, journal: Journal) -> ControllerLive:
    made = ControllerLive(controller(slurm), journal)
    warm_up(made)
    made.controller.tick()
    return made
