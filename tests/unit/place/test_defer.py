"""Deferring jobs: what it is measured by, and where it is refused."""

from __future__ import annotations

import pytest

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.errors import InputError
from slurm_rl.place.defer import Deferral
from slurm_rl.place.plan import PlannerSettings
from slurm_rl.traces.trace import make_trace
from slurm_rl_sim.replay import Prepared, Run, parse_contenders, prepare, replay

TWO = Cluster("two", (NodeClass(1, "A100", 1, speed=4.0), NodeClass(1, "T4", 1, speed=1.0)))


def a_wait(busy: int) -> Prepared:
    """At 10, job 2 finds the A100, four times as fast, taken: until 100 at most, and in truth until `busy`."""
    trace = make_trace(
        "wait",
        [0, 10],
        run_time=[busy * 4, 4000],
        time_limit=[100, 8000],
        num_gpus=[1.0, 1.0],
        user=["ann", "bob"],
    )
    return prepare(trace, TWO)


def deferring(prepared: Prepared, backfill: str = "easy", placement: str = "mip", **rules: float) -> Run:
    settings = PlannerSettings(deferral=Deferral(**rules))  # type: ignore[arg-type]
    (run,) = replay(prepared, parse_contenders("fcfs", backfill), placement=placement, planning=settings)
    return run


def test_a_job_that_gets_what_it_was_left_for_is_a_success() -> None:
    run = deferring(a_wait(30))
    assert run.result.start.tolist() == [0, 30]
    assert run.deferral == {"jobs": 1, "allocation_rate": 1.0, "success_rate": 1.0}


def test_a_job_that_starts_elsewhere_in_the_end_is_none() -> None:
    run = deferring(a_wait(100), seconds=40.0)
    assert 10 < run.result.start[1] <= 50
    assert run.deferral == {"jobs": 1, "allocation_rate": 1.0, "success_rate": 0.0}


def test_without_deferral_there_are_no_figures_of_it() -> None:
    (run,) = replay(a_wait(50), parse_contenders("fcfs", "easy"), placement="mip")
    assert run.deferral is None
    assert run.result.start.tolist() == [0, 10]


@pytest.mark.parametrize("backfill", ["conservative", "slurm"])
def test_rules_that_book_ahead_are_refused(backfill: str) -> None:
    with pytest.raises(InputError, match=f"--defer: not with backfill {backfill}"):
        deferring(a_wait(50), backfill)


def test_other_placements_are_refused() -> None:
    with pytest.raises(InputError, match="--defer: needs --placement mip"):
        deferring(a_wait(50), placement="greedy")
