"""Blocks, switches and segments: engine and reference agree (P11), whatever the placement and the backfill rule.

A failing case names its seed: `a_block_case(seed)` brings it back.
"""

from __future__ import annotations

import pytest
from builders import a_simulation
from reference.cases import PLACEMENTS, a_block_case
from reference.compare import compare

from slurm_rl_sim.validate import run_checked

BACKFILLS = ("none", "firstfit", "easy", "conservative", "slurm")
POLICIES = ("fcfs", "sjf", "saf", "sjf@user", "multifactor")


@pytest.mark.parametrize("placement", ["topology", *PLACEMENTS])
@pytest.mark.parametrize("backfill", BACKFILLS)
def test_the_engine_agrees_with_the_reference(backfill: str, placement: str) -> None:
    base = 1_000_000 * BACKFILLS.index(backfill) + (0 if placement == "topology" else 500_000)
    for seed in range(base, base + (200 if placement == "topology" else 30)):
        case = a_block_case(seed, failures=seed % 4 == 0)
        difference = compare(case, POLICIES[seed % 5], backfill, placement)
        assert not difference, f"seed {seed}: {difference}"


@pytest.mark.parametrize("placement", ["topology", "greedy", "mip"])
def test_nothing_is_given_out_twice(placement: str) -> None:
    for seed in range(20_000_000, 20_000_040):
        case = a_block_case(seed, failures=seed % 4 == 0)
        simulation, _ = a_simulation(case.cluster, case.jobs, "sjf", BACKFILLS[seed % 4], placement, events=case.events)
        run_checked(simulation)
