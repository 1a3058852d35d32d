"""The compiled engine agrees with the plain simulator in `tests/reference`, job by job: start, end, state and nodes.

Every policy × backfill × placement meets several random small cases, and so do node failures, preemption, bounded
influence and longer queues. A failing case names its seed: `a_case(seed)` brings it back.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from builders import replay
from reference.cases import BACKFILLS, PLACEMENTS, POLICIES, a_case
from reference.compare import compare

ROUNDS = 6  # cases for each policy × backfill × placement
PREEMPTIVE = ("srpt", "srpt@oracle", "srpt@user", "static-priority")


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("backfill", BACKFILLS)
def test_every_policy(backfill: str, placement: str) -> None:
    base = 1_000_000 * (1 + BACKFILLS.index(backfill)) + 100_000 * PLACEMENTS.index(placement)
    for number, (_, policy) in enumerate(itertools.product(range(ROUNDS), POLICIES)):
        difference = compare(a_case(base + number), policy, backfill, placement)
        assert not difference, f"seed {base + number}: {difference}"


@pytest.mark.parametrize("backfill", BACKFILLS)
def test_longer_queues(backfill: str) -> None:
    base = 10_000_000 + 100_000 * BACKFILLS.index(backfill)
    for number, policy in enumerate(POLICIES):
        difference = compare(a_case(base + number, many=True), policy, backfill, PLACEMENTS[number % 5])
        assert not difference, f"seed {base + number}: {difference}"


@pytest.mark.parametrize("backfill", BACKFILLS)
def test_nodes_that_fail_and_come_back(backfill: str) -> None:
    base = 20_000_000 + 100_000 * BACKFILLS.index(backfill)
    for number, (_, policy) in enumerate(itertools.product(range(4), POLICIES)):
        difference = compare(a_case(base + number, failures=True), policy, backfill, PLACEMENTS[number % 5])
        assert not difference, f"seed {base + number} with failures: {difference}"


@pytest.mark.parametrize("backfill", BACKFILLS)
@pytest.mark.parametrize("failures", [False, True], ids=["sound nodes", "failing nodes"])
def test_preemption(backfill: str, failures: bool) -> None:
    base = 30_000_000 + 100_000 * BACKFILLS.index(backfill)
    for number in range(60):
        case = a_case(base + number, failures=failures)
        difference = compare(case, PREEMPTIVE[number % 4], backfill, PLACEMENTS[number % 5], preempt=True)
        assert not difference, f"seed {base + number}: {difference}"


@pytest.mark.parametrize("influence", [0.0, 0.2, 0.5])
def test_a_bounded_influence_on_top_of_multifactor(influence: float) -> None:
    base = 40_000_000 + round(100_000 * influence)
    for number, policy in enumerate(POLICIES):
        difference = compare(
            a_case(base + number), policy, BACKFILLS[number % 5], PLACEMENTS[number // 5 % 5], influence=influence
        )
        assert not difference, f"seed {base + number}: {difference}"


@pytest.mark.parametrize("backfill", BACKFILLS)
def test_a_lane_for_the_oldest_jobs(backfill: str) -> None:
    base = 50_000_000 + 100_000 * BACKFILLS.index(backfill)
    changed = 0
    for number, policy in enumerate(POLICIES):
        case, placement = a_case(base + number, many=True), PLACEMENTS[number % 5]
        # Backlogs of less than a minute count as a minute, so times are stretched.
        jobs = [replace(j, submit=60 * j.submit, run=60 * j.run, limit=60 * j.limit) for j in case.jobs]
        case = replace(case, jobs=jobs)
        difference = compare(case, policy, backfill, placement, lane=0.2)
        assert not difference, f"seed {base + number}: {difference}"
        plain = replay(case.cluster, case.jobs, policy, backfill, placement)
        changed += plain != replay(case.cluster, case.jobs, policy, backfill, placement, lane=0.2)
    assert changed, "a lane that changes nothing proves nothing"
