"""The compiled engine agrees with the plain simulator in `tests/reference`, job by job: start, end, state and nodes.

Every policy × backfill × placement meets several random small cases, and so do node failures, preemption, bounded
influence and longer queues. A failing case names its seed: `a_case(seed)` brings it back.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from builders import replay
from reference.cases import BACKFILLS, PLACEMENTS, POLICIES, a_case
from reference.compare import compare

from slurm_rl.domain.cluster import Cluster

ROUNDS = 6  # cases for each policy × backfill × placement
SORTED_ANEW = ("sjf@user", "multifactor", "sjf-age", "smith", "static-equal", "wfp3@user")
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
        difference = compare(a_case(base + number, many=True), policy, backfill, PLACEMENTS[number % 6])
        assert not difference, f"seed {base + number}: {difference}"


@pytest.mark.parametrize("backfill", ["none", "firstfit", "easy"])
def test_queues_that_are_sorted_as_far_as_a_pass_looks(backfill: str) -> None:
    """Up to 240 jobs at once on one node: they are handed over in parts (slurm_rl_sim/best.py)."""
    base = 70_000_000 + 100_000 * BACKFILLS.index(backfill)
    for number, policy in enumerate(SORTED_ANEW):
        cases = (a_case(base + 1000 * number + more, many=True) for more in itertools.count())
        case = next(case for case in cases if case.cluster.nodes == 1)
        wide = tuple(replace(c, cpus=(1 + 3 * (number % 3)) * (c.cpus or 1)) for c in case.cluster.classes)
        jobs = [replace(j, submit=j.submit // 8) for j in case.jobs for _ in range(6)]
        jobs = [replace(j, id=1 + i) for i, j in enumerate(jobs)]
        case = replace(case, cluster=Cluster("wide", wide), jobs=jobs)
        difference = compare(case, policy, backfill, PLACEMENTS[number % 5])
        assert not difference, f"case {number}: {difference}"


@pytest.mark.parametrize("backfill", BACKFILLS)
def test_nodes_that_fail_and_come_back(backfill: str) -> None:
    base = 20_000_000 + 100_000 * BACKFILLS.index(backfill)
    for number, (_, policy) in enumerate(itertools.product(range(4), POLICIES)):
        difference = compare(a_case(base + number, failures=True), policy, backfill, PLACEMENTS[number % 6])
        assert not difference, f"seed {base + number} with failures: {difference}"


@pytest.mark.parametrize("backfill", BACKFILLS)
@pytest.mark.parametrize("failures", [False, True], ids=["sound nodes", "failing nodes"])
def test_preemption(backfill: str, failures: bool) -> None:
    base = 30_000_000 + 100_000 * BACKFILLS.index(backfill)
    for number in range(60):
        case = a_case(base + number, failures=failures)
        difference = compare(case, PREEMPTIVE[number % 4], backfill, PLACEMENTS[number % 6], preempt=True)
        assert not difference, f"seed {base + number}: {difference}"


@pytest.mark.parametrize("influence", [0.0, 0.2, 0.5])
def test_a_bounded_influence_on_top_of_multifactor(influence: float) -> None:
    base = 40_000_000 + round(100_000 * influence)
    for number, policy in enumerate(POLICIES):
        difference = compare(
            a_case(base + number), policy, BACKFILLS[number % 5], PLACEMENTS[number // 5 % 6], influence=influence
        )
        assert not difference, f"seed {base + number}: {difference}"


@pytest.mark.parametrize("backfill", BACKFILLS)
def test_a_lane_for_the_oldest_jobs(backfill: str) -> None:
    base = 50_000_000 + 100_000 * BACKFILLS.index(backfill)
    changed = 0
    for number, policy in enumerate(POLICIES):
        case, placement = a_case(base + number, many=True), PLACEMENTS[number % 6]
        # Backlogs of less than a minute count as a minute, so times are stretched.
        jobs = [replace(j, submit=60 * j.submit, run=60 * j.run, limit=60 * j.limit) for j in case.jobs]
        case = replace(case, jobs=jobs)
        difference = compare(case, policy, backfill, placement, lane=0.2)
        assert not difference, f"seed {base + number}: {difference}"
        plain = replay(case.cluster, case.jobs, policy, backfill, placement)
        changed += plain != replay(case.cluster, case.jobs, policy, backfill, placement, lane=0.2)
    assert changed, "a lane that changes nothing proves nothing"


def some_settings(seed: int) -> dict[str, int]:
    """Settings of a slurm.conf as a seed has them."""
    rng = random.Random(seed)
    return {
        "bf_interval": rng.choice((1, 5, 30, 60)),
        "bf_resolution": rng.choice((1, 7, 60, 300)),
        "bf_window": rng.choice((600, 3600, 86400)),
        "bf_window_linear": rng.choice((0, 0, 20)),
        "bf_max_job_test": rng.choice((1, 3, 500)),
        "bf_max_job_start": rng.choice((0, 0, 1, 2)),
        "bf_max_job_user": rng.choice((0, 0, 1, 3)),
        "bf_max_job_part": rng.choice((0, 0, 2)),
        "default_queue_depth": rng.choice((1, 2, 100)),
        "sched_interval": rng.choice((0, 20, 60)),
        "least_loaded": rng.random() < 0.2,
        "limit_check": rng.choice((0, 0, 30)),
        "over_time_limit": rng.choice((0, 0, 60)),
        "start_overhead": rng.choice((0, 0, 3)),
        "clean_up": rng.choice((0, 0, 2, 10)),
    }


@pytest.mark.parametrize("part", range(4))
def test_slurm_with_settings_of_a_site(part: int) -> None:
    """S1 to S9: any settings, mostly with placement `slurm`, some with nodes that fail; nodes of two weights."""
    base = 60_000_000 + 100_000 * part
    for number in range(100):
        case = a_case(base + number, many=number % 2 == 0, failures=number % 5 == 0)
        if number % 3 == 0:
            classes = tuple(replace(c, weight=1 + i % 2) for i, c in enumerate(case.cluster.classes))
            case = replace(case, cluster=Cluster("weighted", classes))
        placement = "slurm" if number % 4 else PLACEMENTS[number // 4 % 6]
        difference = compare(case, POLICIES[number % len(POLICIES)], "slurm", placement, **some_settings(base + number))
        assert not difference, f"seed {base + number}: {difference}"
