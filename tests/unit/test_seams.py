"""Rules that are not ours, added by one row and one kernel each, serve `decide` and the engine alike."""

from __future__ import annotations

import numpy as np
import pytest
from builders import Job, a_cluster, a_job, a_simulation, replay, starts

from slurm_rl.backfill.catalogue import RULES, Rule
from slurm_rl.decide import decide
from slurm_rl.domain.cluster import NodeClass
from slurm_rl.place.catalogue import PLACEMENTS, Placement
from slurm_rl.policy.catalogue import POLICIES, Policy
from slurm_rl.policy.registry import parse_policy

POLICY = Policy("widest", "The largest job first.", "toys.rules:widest", fixed_order=True)
PLACEMENT = Placement("last-fit", "The last nodes with room.", "toys.rules:last_fit")
RULE = Rule("second-chance", "Strict order, but for one job.", "toys.rules:second_chance")
META = Policy(
    "by-length",
    "By the length of the queue.",
    choose="toys.rules:short_queue_first_come",
    candidates=("fcfs", "sjf"),
)


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toys' rows, for the time of a test."""
    for catalogue in (POLICIES, PLACEMENTS, RULES):
        monkeypatch.setattr(catalogue, "_rows", dict(catalogue._rows))
    POLICIES.add(POLICY)
    POLICIES.add(META)
    PLACEMENTS.add(PLACEMENT)
    RULES.add(RULE)


def test_a_heuristic() -> None:
    jobs = [a_job(0, 10, cpus=4), a_job(1, 10, cpus=1), a_job(2, 10, cpus=3), a_job(3, 10, cpus=2)]
    assert starts(a_cluster(1, cpus=4), jobs, "widest") == [0, 20, 10, 20]


def test_a_placement() -> None:
    job = a_job(0, 10, cpus=2)
    assert replay(a_cluster(3, cpus=2), [job], "fcfs", "easy", "last-fit")[job.id].nodes == ((2, 2),)


def test_a_backfill_rule() -> None:
    jobs = [a_job(0, 10, cpus=3), a_job(1, 10, cpus=4), a_job(2, 5, cpus=1), a_job(3, 5, cpus=4), a_job(4, 5, cpus=1)]
    # At 2, the second job is passed over and the third starts; at 4, a second misfit ends the pass.
    assert starts(a_cluster(1, cpus=4), jobs, "fcfs", "second-chance")[:3] == [0, 10, 2]
    assert starts(a_cluster(1, cpus=4), jobs, "fcfs", "second-chance")[4] > 7


def test_a_meta_policy() -> None:
    first = a_job(0, 100)
    few = [a_job(1, 30), a_job(2, 10)]
    assert starts(a_cluster(1, cpus=1), [first, *few], "by-length") == [0, 100, 130]
    many = [a_job(1, 30), a_job(2, 20), a_job(3, 10), a_job(4, 5)]
    # Four wait: the shortest starts. Then three do: first come, first served.
    assert starts(a_cluster(1, cpus=1), [first, *many], "by-length") == [0, 105, 135, 155, 100]


@pytest.mark.parametrize(
    ("policy", "backfill", "placement"),
    [
        ("widest", "easy", "best-fit"),
        ("fcfs", "conservative", "last-fit"),
        ("sjf@user", "second-chance", "last-fit"),
        ("by-length", "slurm", "best-fit"),
        ("by-length", "second-chance", "last-fit"),
    ],
)
def test_the_engine_starts_what_decide_plans(policy: str, backfill: str, placement: str) -> None:
    rng = np.random.default_rng(3)
    cluster = a_cluster(NodeClass(2, cpus=4), NodeClass(2, cpus=2))
    jobs = [
        Job(i, int(rng.integers(0, 60)), int(rng.integers(1, 30)), 40, cpus=int(rng.integers(1, 7)), user=f"u{i % 3}")
        for i in range(1, 50)
    ]
    simulation, _ = a_simulation(cluster, jobs, policy, backfill, placement)
    passes = 0
    while simulation.to_next_pass():
        before = simulation.world["live"]["held"] > 0
        plan = decide(simulation.snapshot(), parse_policy(policy), backfill=backfill, placement=placement)
        simulation.finish_pass()
        started = np.flatnonzero((simulation.world["live"]["held"] > 0) & ~before).tolist()
        assert sorted(s.job for s in plan.starts) == started
        passes += 1
    assert passes > 30
