"""Groups of jobs that are alike give the schedules that a sorted queue gives, job for job and node for node."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from builders import Event, Job, Ran, a_simulation, outcome

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.arrays import NEVER
from slurm_rl_sim import alike, simulation
from slurm_rl_sim.validate import problems

CLUSTERS = (
    (NodeClass(1, cpus=40),),
    (NodeClass(12, cpus=4),),
    (NodeClass(6, "A", 4, cpus=8), NodeClass(5, "B", 2, cpus=8)),
    (NodeClass(5, cpus=4, partition="p"), NodeClass(1, cpus=12, partition="r")),
)


def a_workload(dice: random.Random) -> tuple[Cluster, list[Job], list[Event]]:
    """Arrays and single jobs of a few users, more than fit, with limits of their own or of the whole array."""
    classes = dice.choice(CLUSTERS)
    nodes = sum(c.count for c in classes)
    gpus = any(c.gpus for c in classes)
    parts = ["p", "r"] if classes[0].partitions == ("p",) else [""]
    jobs: list[Job] = []
    while len(jobs) < 60:
        submit, run, cpus = dice.randint(0, 60), dice.randint(1, 30), dice.choice([1, 1, 2, 4, 8])
        size, user, part = dice.choice([1, 1, 5, 12]), dice.choice("uvw"), dice.choice(parts)
        for _ in range(size):
            own = dice.choice([0, 0, 20])
            jobs.append(
                Job(
                    id=len(jobs) + 1,
                    submit=submit,
                    run=run + dice.choice([0, 0, 3]),
                    limit=run + 3 + own,
                    cpus=cpus,
                    gpus=dice.choice([0, 1, 4]) if gpus else 0,
                    partition=part,
                    user=user,
                )
            )
    events = [Event(dice.randint(0, 90), dice.randrange(nodes), k % 2) for k in range(dice.choice([0, 0, 6]))]
    return Cluster("c", classes), jobs, events


def ran(
    monkeypatch: pytest.MonkeyPatch, grouped: bool, cluster: Cluster, jobs: Sequence[Job], *how: str, **more: object
) -> dict[int, Ran]:
    with monkeypatch.context() as patch:
        if not grouped:
            patch.setattr(simulation, "compares_groups", lambda world: False)
            patch.setattr(simulation, "keeps_sorted", lambda world: False)
        state, ids = a_simulation(cluster, jobs, *how, **more)  # type: ignore[arg-type]
    assert bool(len(state.world["alike"])) == grouped
    state.run()
    return outcome(state, ids)


@pytest.mark.parametrize("policy", ["multifactor", "static-equal", "sjf@user", "smith", "saf@user"])
@pytest.mark.parametrize("rule", ["none", "firstfit", "easy"])
def test_groups_and_a_sorted_queue_agree(rule: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100):
        dice = random.Random(f"{rule} {policy} {seed}")
        cluster, jobs, events = a_workload(dice)
        placement = dice.choice(["first-fit", "best-fit", "spread", "round-robin"])
        how = (monkeypatch, cluster, jobs, policy, rule, placement)
        by_group, sorted_anew = (ran(how[0], grouped, *how[1:], events=events) for grouped in (True, False))
        assert by_group == sorted_anew, seed


@pytest.mark.parametrize("policy", ["multifactor", "sjf@user"])
def test_every_state_on_the_way_is_valid(policy: str) -> None:
    for seed in range(8):
        cluster, jobs, events = a_workload(random.Random(seed))
        state, _ = a_simulation(cluster, jobs, policy, "easy", "best-fit", events=events)
        while state.to_next_pass():
            assert list(problems(state)) == []
            state.finish_pass()
            assert list(problems(state)) == []


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "saf"])
@pytest.mark.parametrize("rule", ["none", "firstfit", "easy"])
def test_long_queues_of_a_fixed_order_are_grouped(rule: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are grouped once many wait; what went before, and what comes later, is the same schedule."""
    monkeypatch.setattr(alike, "_MEMBERS", 1)
    grouped = 0
    for seed in range(60):
        dice = random.Random(f"{rule} {policy} {seed}")
        cluster, jobs, events = a_workload(dice)
        arrays = [
            Job(id=1000 * k + i, submit=dice.randint(0, 40), run=3, limit=5, cpus=dice.choice([1, 2]), user="u")
            for k in (1, 2)
            for i in range(80)
        ]
        placement = dice.choice(["first-fit", "best-fit", "spread", "round-robin"])
        threshold, found = dice.choice([10, 40]), []
        for later in (True, False):
            state, ids = a_simulation(cluster, [*jobs, *arrays], policy, rule, placement, events=events)
            assert state.world["long_queue"] == alike.LONG
            state.world["long_queue"] = threshold if later else NEVER
            while later and state.to_next_pass():
                assert list(problems(state)) == []
                state.finish_pass()
            state.run()
            grouped += len(state.world["alike"]) > 0
            found.append(outcome(state, ids))
        assert found[0] == found[1], seed
    assert grouped > 30


@pytest.mark.parametrize(
    ("policy", "more"),
    [("fcfs", {}), ("sjf-age", {}), ("multifactor", {"influence": 0.5}), ("multifactor", {"lane": 0.2})],
)
def test_other_orders_are_sorted_as_before(policy: str, more: dict[str, float]) -> None:
    cluster, jobs, _ = a_workload(random.Random(1))
    state, _ = a_simulation(cluster, jobs, policy, "easy", "best-fit", **more)  # type: ignore[arg-type]
    assert len(state.world["alike"]) == 0
