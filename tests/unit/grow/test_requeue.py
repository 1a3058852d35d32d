"""A next run in the plan: how long a requeue would wait, and whether a longer limit is to be had."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from grow_parts import Clock, Planned
from torch import nn

from slurm_rl.grow import Budget, Grower
from slurm_rl.grow.pressure import Pressure
from slurm_rl.grow.requeue import NextRun, Requeue


class Asked(Budget):
    """A budget whose service foresees given waits by limit; None is the job's own limit."""

    def __init__(self, seconds: float, waits: dict[float | None, float | None], max_time: float = 1e9) -> None:
        super().__init__(seconds)
        self.waits, self.max_time, self.questions = waits, max_time, 0

    def pressure(self, time_limit: float | None = None) -> Pressure | None:
        self.questions += 1
        if time_limit not in self.waits:
            return None  # no service
        return Pressure(3, 1, self.waits[time_limit], (time_limit or 0.0) <= self.max_time)


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes down what it is asked, and whether SIGTERM would end it."""
    said, program = tmp_path / "asked", tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\nkill -TERM $$\necho "$@" >> {said}\n[ "$3" != "TimeLimit=999" ]\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return said


@pytest.mark.parametrize(
    ("wish", "longest", "waits", "expected"),
    [
        (False, None, {}, None),
        (True, None, {}, NextRun(1000.0)),
        (True, 5000.0, {}, NextRun(1000.0)),  # no service: nobody says that a longer limit would be granted
        (True, 5000.0, {5000.0: 900.0}, NextRun(5000.0, 5000.0, 900.0)),
        (600.0, None, {None: 500.0}, NextRun(1000.0, None, 500.0)),
        (600.0, None, {None: 700.0}, None),
        (600.0, None, {None: None}, None),
        (600.0, None, {}, None),
        (600.0, 5000.0, {5000.0: 600.0, None: 500.0}, NextRun(5000.0, 5000.0, 600.0)),
        (600.0, 5000.0, {5000.0: 601.0, None: 500.0}, NextRun(1000.0, None, 500.0)),
        (600.0, 5000.0, {5000.0: 601.0, None: 601.0}, None),
        (600.0, 9000.0, {9000.0: 0.0, None: 500.0}, NextRun(1000.0, None, 500.0)),  # beyond MaxTime
        (600.0, 500.0, {500.0: 0.0, None: 500.0}, NextRun(1000.0, None, 500.0)),  # shorter than its own
    ],
)
def test_the_next_run_is_what_the_queue_gives(
    wish: bool | float, longest: float | None, waits: dict[float | None, float | None], expected: NextRun | None,
    scontrol: Path,
) -> None:  # fmt: skip
    budget = Asked(1000.0, waits, max_time=6000.0)
    requeue = Requeue(budget, wish, longest)
    found = requeue.next_run() if requeue else None
    assert found == (pytest.approx(expected) if expected is None else expected)
    assert requeue.ahead() == (0.0 if expected is None else expected.seconds)
    said: list[Any] = []
    requeue.put_back(lambda kind, **facts: said.append(kind))
    commands = scontrol.read_text().splitlines() if scontrol.exists() else []
    if expected is None:
        assert commands == []
        assert said == (["not requeued"] if requeue else [])
    elif expected.limit is None:
        assert (commands, said) == (["requeue 7"], ["requeued"])
    else:
        assert (commands, said) == (["requeue 7", "update JobId=7 TimeLimit=84"], ["requeued", "longer"])
    requeue.put_back(lambda kind, **facts: said.append("again"))
    assert "again" not in said
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN


def test_the_service_is_asked_once_a_minute(scontrol: Path) -> None:
    budget, clock = Asked(1000.0, {None: 5.0}), Clock()
    requeue = Requeue(budget, 600.0, clock=clock)
    for clock.now in range(0, 120, 10):
        assert requeue.ahead() == 1000.0
    assert budget.questions == 2
    budget.waits = {}
    clock.now = 121.0
    assert requeue.ahead() == 0.0
    budget.warn(signal.SIGTERM)
    budget.waits, clock.now = {None: 5.0}, 900.0
    assert requeue.ahead() == 0.0, "a cancelled job does not come back"


def test_a_limit_that_slurm_does_not_raise_is_said_and_the_job_comes_back(scontrol: Path) -> None:
    requeue, said = Requeue(Asked(1000.0, {999 * 60.0: 0.0}), True, 999 * 60.0), []
    requeue.put_back(lambda kind, **facts: said.append(kind))
    assert said == ["requeued", "limit kept"]


@pytest.mark.parametrize(("wait", "grows"), [(60.0, True), (6000.0, False), (None, False)])
def test_growth_is_planned_with_the_next_runs_time(
    wait: float | None, grows: bool, scontrol: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seconds are left and an epoch takes one: a step pays only if the job comes back soon."""
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    optimizer, policy = torch.optim.SGD(model.parameters(), lr=0.1), Planned(at1=0)
    budget = Asked(1000.0, {None: wait})
    grower = Grower(
        model, optimizer, budget=budget, policy=policy, epochs=9, checkpoint=tmp_path / "c.pt", requeue=600.0
    )
    monkeypatch.setattr(budget, "left", lambda: 2.0)
    monkeypatch.setattr(grower, "_pace", lambda: 1.0)
    grower.step(1.0, {"accuracy": 0.5})
    assert (len(grower.record.grown) == 1) is grows
    if grows:
        assert policy.states[0].left == 1002.0


def test_an_epoch_must_fit_into_one_run(scontrol: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the job would come back again and again and never end an epoch."""
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    optimizer, policy = torch.optim.SGD(model.parameters(), lr=0.1), Planned(at1=0)
    grower = Grower(
        model, optimizer, budget=Asked(1000.0, {}), policy=policy, epochs=9, checkpoint=tmp_path / "c.pt", requeue=True
    )
    pace = 0.9 * 1000.0  # fits once, but not after a step
    monkeypatch.setattr(grower, "_pace", lambda: pace)
    monkeypatch.setattr("slurm_rl.grow.grower.WORTH", 1.0)
    grower.step(1.0, {"accuracy": 0.5})
    assert policy.states == []
