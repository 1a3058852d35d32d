"""What decide plans is what the engine starts: on mixed nodes, slices, shards, constraints, blocks and switches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import a_simulation
from reference.cases import Case, a_block_case, a_gres_case

from slurm_rl.decide import decide
from slurm_rl.policy.registry import parse_policy


def walk(case: Case, policy: str, backfill: str, placement: str, seed: int) -> int:
    """Compares pass by pass; how many jobs started."""
    # A job of no run time would make an instant of several passes, of which one step is the first alone.
    jobs = [replace(j, run=max(j.run, 1)) for j in case.jobs]
    simulation, _ = a_simulation(case.cluster, jobs, policy, backfill, placement)
    count = 0
    while simulation.to_next_pass():
        plan = decide(simulation.snapshot(), parse_policy(policy), backfill=backfill, placement=placement)
        live, now = simulation.world["live"], simulation.now
        before = set(np.flatnonzero(live["start"] >= 0).tolist())
        simulation.finish_pass()
        live, log = simulation.world["live"], simulation.world["log"]
        done = {
            j: sorted((int(e["node"]), int(e["units"])) for e in log[first : first + live["log_count"][j]])
            for j in np.flatnonzero(live["start"] == now).tolist()
            if j not in before
            for first in (live["log_first"][j],)
        }
        assert {s.job: sorted(s.nodes) for s in plan.starts} == done, f"seed {seed}, time {now}"
        count += len(done)
    return count


@pytest.mark.parametrize("placement", ["best-fit", "greedy", "mip", "topology", "slurm"])
@pytest.mark.parametrize("backfill", ["firstfit", "easy", "slurm"])
@pytest.mark.parametrize("cases", [a_gres_case, a_block_case])
def test_the_engine_starts_what_decide_plans(cases: object, backfill: str, placement: str) -> None:
    started = 0
    for seed in range(30_000_000, 30_000_012):
        case = cases(seed)  # type: ignore[operator]
        started += walk(case, ("fcfs", "sjf", "multifactor")[seed % 3], backfill, placement, seed)
    assert started > 20
