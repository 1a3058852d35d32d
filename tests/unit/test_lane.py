"""The lane lets the oldest jobs go first within their share, in decide as in the engine, and bounds waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slurm_rl.decide import Guardrails, decide
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.build import build
from slurm_rl.policy.registry import parse_policy, with_lane
from slurm_rl.traces.trace import Trace, make_trace
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.workload import requests_of
from tests.unit.test_decide import CLUSTER, a_policy, a_queue, a_workload

ONE_NODE = Cluster("one node", (NodeClass(1, cpus=4),))


def test_the_engine_starts_what_decide_plans_with_a_lane() -> None:
    promoted = 0
    for backfill in ("none", "firstfit", "easy", "conservative", "slurm"):
        for name in ("ljf@limit", "lcfs", "sjf@user", "learned"):
            trace = a_workload(3, jobs=90)
            policy = with_lane(a_policy(name), 0.2, 0.3)
            simulation = ReplayState(build(requests_of(trace), CLUSTER), trace.run_time, policy, backfill=backfill)
            while simulation.to_next_pass():
                plan = decide(simulation.snapshot(), policy, backfill=backfill, placement="first-fit")
                promoted += sum(r.lane is not None for r in plan.reasons)
                waiting = set(np.flatnonzero(simulation.world["live"]["start"] < 0).tolist())
                simulation.finish_pass()
                started = {j for j in waiting if simulation.world["live"]["start"][j] >= 0}
                assert started == {s.job for s in plan.starts}, (backfill, name, simulation.now)
    assert promoted > 100


def test_the_oldest_job_goes_first_and_the_reason_says_how_much_of_the_lane_is_used() -> None:
    # The node is held by job 0 for 5,000 s and the seven others ask for a third of it each, 3,000 s in sum:
    # a backlog of 4,900 + 3,000 / 3 = 5,900 s. At 100 s the oldest waiting job has waited 99 s, 0.0168 of it.
    snapshot = a_queue().snapshot()
    policy = parse_policy("sjf@limit")
    plan = decide(snapshot, policy, guardrails=Guardrails(lane_share=0.2, lane_age=0.0167))
    assert plan.order == (1, 6, 5, 4, 3, 2, 7)
    assert str(plan.reasons[0]) == "1 of 7: goes first within the lane: 0% of 20% used"
    assert plan.reasons[0].promoted
    late = decide(snapshot, policy, guardrails=Guardrails(lane_share=0.2, lane_age=0.0169))
    assert late.order == (6, 5, 4, 3, 2, 1, 7)


def test_the_lane_is_closed_while_it_has_had_its_share() -> None:
    snapshot = a_queue().snapshot()
    pool = snapshot.world["requests"]["pool"][snapshot.world["jobs"]["request"][1]]
    rails = Guardrails(lane_share=0.2, lane_age=0.001)
    for lane_work, first in ((14.0, 1), (20.0, 1), (20.1, 6)):
        snapshot.world["pools"]["lane_work"][pool], snapshot.world["pools"]["started_work"][pool] = lane_work, 100.0
        plan = decide(snapshot, parse_policy("sjf@limit"), guardrails=rails)
        assert plan.order[0] == first
    snapshot.world["pools"]["lane_work"][pool] = 14.0
    plan = decide(snapshot, parse_policy("sjf@limit"), guardrails=rails)
    assert "14% of 20% used" in str(plan.reasons[0])


def _stream(wide: int) -> Trace:
    """A node of four CPUs that short jobs keep busy for two days, and long jobs for all of it at the beginning."""
    short = np.arange(0, 2 * 86_400, 75)
    return make_trace(
        "stream",
        [*range(wide), *short],
        run_time=[3600] * wide + [300] * len(short),
        time_limit=[3600] * wide + [300] * len(short),
        cpus=[4.0] * wide + [1.0] * len(short),
    )


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_the_share_bounds_how_long_the_oldest_wait(share: float) -> None:
    """No more than (2 + 1 / share) backlogs and one run: the theory of docs/learning.md, with its worst case."""
    trace = _stream(6)
    policy = parse_policy("sjf@limit")
    waits = {}
    for name, spec in (("without", policy), ("with", with_lane(policy, share))):
        simulation = ReplayState(build(requests_of(trace), ONE_NODE), trace.run_time, spec, backfill="easy")
        simulation.run()
        waits[name] = simulation.world["live"]["start"] - trace.submit_time
    backlog = 6 * 3600 + 300  # what waits and runs at most: the long jobs, and one round of short ones
    longest = float(waits["with"].max())
    assert longest <= (2 + 1 / share) * backlog + 3600
    assert waits["without"][:6].max() > 86_400
    assert waits["with"][:6].max() < waits["without"][:6].max()


def test_a_lane_replaces_caps_and_makes_an_order_that_changes() -> None:
    policy = replace(parse_policy("sjf@limit"), starve_age=100.0, starve_factor=2.0)
    spec = with_lane(policy)
    assert (spec.starve_age, spec.starve_drain, spec.lane_share) == (float("inf"), float("inf"), 0.2)
    assert parse_policy("sjf@limit").fixed_order
    assert not with_lane(parse_policy("sjf@limit")).fixed_order
