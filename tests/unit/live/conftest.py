"""Controllers on a Slurm in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.cycle import Controller
from slurm_rl.obs.journal import Journal

from .fake_slurm import FakeSlurm

MakeController = Callable[..., Controller]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.sqlite")


@pytest.fixture
def controller(journal: Journal) -> MakeController:
    """`controller(slurm, policy="sjf@limit")`: enforcing, unless told otherwise."""

    def make(slurm: FakeSlurm, *, policy: Any = None, holder: str | None = None, **settings: Any) -> Controller:
        defaults: dict[str, Any] = {"mode": "enforce", "policy": "sjf@limit", "updates_per_second": 1e4}
        config = Config(**(defaults | settings))
        return Controller(config, slurm, journal, policy=policy, clock=lambda: slurm.now, holder=holder)

    return make
