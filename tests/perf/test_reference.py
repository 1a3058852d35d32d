"""The engine and the plain Python reference start every job of the benchmark's input at the same second."""

from __future__ import annotations

import numpy as np
import pytest

from perf.inputs import CORES, COUNTS, NODES, generate
from perf.reference import on_counts, on_nodes
from slurm_rl.policy.registry import parse_policy
from slurm_rl_sim.simulation import ReplayState

pytestmark = pytest.mark.perf


@pytest.mark.parametrize("load", [0.85, 1.2])
@pytest.mark.parametrize("easy", [False, True], ids=["fcfs", "easy"])
@pytest.mark.parametrize("cluster", [COUNTS, NODES], ids=["counts", "nodes"])
def test_same_start_times(cluster: object, easy: bool, load: float) -> None:
    work = generate(3_000, load)
    expected = (
        on_counts(work.lists(), CORES, easy=easy) if cluster is COUNTS else on_nodes(work.lists(), [8] * 256, easy=easy)
    )
    prepared = work.prepared(cluster)  # type: ignore[arg-type]
    simulation = ReplayState(
        prepared.workload,
        prepared.trace.run_time,
        parse_policy("fcfs"),
        backfill="easy" if easy else "none",
        placement="first-fit",
    )
    assert simulation.run()
    waited = np.array(expected) - work.submit
    assert waited.max() > 0, "the input must queue, or nothing is compared"
    np.testing.assert_array_equal(simulation.world["live"]["start"], expected)
