"""Mixed nodes, slices, shards, other GRES, features, partitions, whole nodes: engine and reference agree (P7 to P9).

A failing case names its seed: `a_gres_case(seed)` brings it back. The state is checked for contradictions, too.
"""

from __future__ import annotations

import pytest
from builders import a_simulation
from reference.cases import PLACEMENTS, a_gres_case
from reference.compare import compare

from slurm_rl_sim.validate import run_checked

BACKFILLS = ("none", "firstfit", "easy", "conservative")
POLICIES = ("fcfs", "sjf", "saf", "sjf@user", "static-priority", "multifactor")
CASES = 60  # for each backfill rule × placement


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("backfill", BACKFILLS)
def test_the_engine_agrees_with_the_reference(backfill: str, placement: str) -> None:
    base = 1_000_000 * BACKFILLS.index(backfill) + 100_000 * PLACEMENTS.index(placement)
    for seed in range(base, base + CASES):
        case = a_gres_case(seed, failures=seed % 4 == 0)
        difference = compare(case, POLICIES[seed % 6], backfill, placement)
        assert not difference, f"seed {seed}: {difference}"


def test_preempted_jobs_agree() -> None:
    for seed in range(10_000_000, 10_000_100):
        case = a_gres_case(seed)
        difference = compare(case, ("srpt", "static-priority")[seed % 2], "easy", PLACEMENTS[seed % 5], preempt=True)
        assert not difference, f"seed {seed}: {difference}"


@pytest.mark.parametrize("placement", ["best-fit", "greedy"])
def test_nothing_is_given_out_twice(placement: str) -> None:
    for seed in range(20_000_000, 20_000_060):
        case = a_gres_case(seed, failures=seed % 4 == 0)
        simulation, _ = a_simulation(case.cluster, case.jobs, "sjf", BACKFILLS[seed % 4], placement, events=case.events)
        run_checked(simulation)
