"""A stretch that is cut from a prepared trace replays as a trace of its rows does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.trace import Labels
from slurm_rl_sim.metrics import metrics
from slurm_rl_sim.replay import Prepared, prepare
from slurm_rl_sim.result import result_of
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.stretch import stretch
from tests.unit.test_decide import CLUSTER, a_workload

FIRST, LAST = 40, 130


def replayed(prepared: Prepared, policy: str, backfill: str, placement: str) -> tuple[list[int], dict[str, object]]:
    simulation = ReplayState(
        prepared.workload, prepared.trace.run_time, parse_policy(policy), backfill=backfill, placement=placement
    )
    simulation.run()
    figures = metrics(result_of(simulation, prepared.trace, prepared.measured))
    return simulation.world["live"]["start"].tolist(), {
        k: v for k, v in figures.items() if v is not None and "decision" not in k
    }


@pytest.mark.parametrize(
    ("policy", "backfill", "placement"),
    [
        ("fcfs", "easy", "best-fit"),
        ("sjf@user", "easy", "greedy"),
        ("multifactor", "conservative", "first-fit"),
        ("rl:default", "slurm", "best-fit"),
    ],
)
def test_it_replays_as_a_trace_of_its_rows(policy: str, backfill: str, placement: str) -> None:
    trace = replace(a_workload(5, jobs=160), account=Labels.of(f"a{i % 5}" for i in range(160)))
    trace = replace(trace, time_limit=np.where(np.arange(160) % 3 == 0, -1, trace.time_limit))  # some are made up
    opening = int(trace.submit_time[60])
    cut = stretch(prepare(trace, CLUSTER), FIRST, LAST, opening)
    whole = prepare(trace.take(np.arange(FIRST, LAST)), CLUSTER)
    whole.measured[:] = whole.trace.submit_time >= opening
    (starts, figures), (expected, others) = (replayed(p, policy, backfill, placement) for p in (cut, whole))
    assert starts == expected
    assert figures == pytest.approx(others, rel=1e-12)  # users have other numbers, and sums another order


def test_jobs_that_can_never_run_stay_so() -> None:
    trace = a_workload(5, jobs=160)
    trace = replace(trace, num_gpus=np.where(np.arange(160) == 50, 999.0, trace.num_gpus))
    cut = stretch(prepare(trace, CLUSTER), FIRST, LAST, 0)
    assert list(cut.workload.rejected) == [50 - FIRST]


def test_what_is_left_out_is_not_kept() -> None:
    trace = a_workload(5, jobs=160)
    whole = prepare(trace, Cluster("one", (NodeClass(4, "A100", 8, 64),)))
    before = whole.workload.jobs.copy()
    cut = stretch(whole, 0, 8, 0)
    assert len(cut.workload.requests) <= 8
    assert cut.workload.groups < whole.workload.groups
    assert (whole.workload.jobs == before).all(), "the whole trace is not changed"
