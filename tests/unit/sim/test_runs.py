"""Runs and levels of nodes give the schedules that nodes one by one give, node for node."""

from __future__ import annotations

import random

import numpy as np
import pytest
from builders import Event, Job, a_simulation, outcome

from slurm_rl.controller.live_policy import load_policy
from slurm_rl.decide import decide
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.domain.limits import limits_from
from slurm_rl.place.counting import BY_LEVELS, BY_RUNS, ONE_BY_ONE, PAIRS, PLACEMENTS
from slurm_rl_sim.validate import problems

CLUSTERS = (
    (NodeClass(24, cpus=4, mem_gb=16),),
    (NodeClass(10, cpus=4), NodeClass(14, cpus=8)),
    (NodeClass(8, "A", 4, cpus=8), NodeClass(6, "B", 2, cpus=8), NodeClass(7, cpus=4)),
    (NodeClass(60, "A", 4, cpus=1200), NodeClass(70, "B", 2, cpus=8), NodeClass(20)),
    (NodeClass(150, cpus=3, mem_gb=16), NodeClass(50, cpus=2)),
    (NodeClass(9, cpus=2, partition="p"), NodeClass(8, cpus=4, partition="p,q"), NodeClass(5, cpus=2, partition="r")),
)


def a_workload(dice: random.Random) -> tuple[Cluster, list[Job], list[Event]]:
    classes = dice.choice(CLUSTERS)
    nodes = sum(c.count for c in classes)
    gpus = any(c.gpus for c in classes)
    parts = ["p", "q", "r"] if classes[0].partitions != ("",) and len(classes) == 3 and not gpus else [""]
    jobs = []
    for i in range(dice.randint(5, 40)):
        width = dice.choice([0, 1, 1, 2, 3, nodes // 4, nodes // 2])
        run = dice.randint(0, 30)
        jobs.append(
            Job(
                id=i + 1,
                submit=dice.randint(0, 40),
                run=run,
                limit=max(1, run + dice.choice([-3, 0, 0, 5, 20])),
                cpus=dice.choice([1, 2, 3, 4]) * max(width, 1),
                nodes=width,
                gpus=dice.choice([0, 0, max(width, 1), 2 * max(width, 1)]) if gpus else 0,
                mem_gb=dice.choice([None, 4 * max(width, 1)]),
                partition=dice.choice(parts),
                user=dice.choice("uvw"),
            )
        )
    events = [Event(dice.randint(0, 60), dice.randrange(nodes), k % 2) for k in range(dice.choice([0, 0, 6]))]
    return Cluster("c", classes), jobs, events


@pytest.mark.parametrize(
    ("rule", "placement", "index"),
    [(*pair, index) for pair in PAIRS for index in (BY_RUNS, BY_LEVELS) if pair[0] != "slurm" or index == BY_RUNS],
)
def test_the_index_and_nodes_agree(rule: str, placement: str, index: str) -> None:
    for seed in range(60):
        dice = random.Random(f"{rule} {placement} {seed}")
        cluster, jobs, events = a_workload(dice)
        policy = dice.choice(["fcfs", "sjf@user", "multifactor"])
        more = {"events": events, "index": ONE_BY_ONE}
        plain, ids = a_simulation(cluster, jobs, policy, rule, placement, **more)  # type: ignore[arg-type]
        plain.run()
        counted, _ = a_simulation(cluster, jobs, policy, rule, placement, **more | {"index": index})  # type: ignore[arg-type]
        assert counted.index == index
        counted.run()
        assert outcome(counted, ids) == outcome(plain, ids), seed


@pytest.mark.parametrize("index", [BY_RUNS, BY_LEVELS])
@pytest.mark.parametrize("policy", ["fcfs", "sjf@user", "multifactor"])
def test_limits_hold_back_the_same_jobs(policy: str, index: str) -> None:
    limits = limits_from({"user": {"*": {"GrpTRES": "cpu=30", "MaxJobs": 3}}})
    held = 0
    for seed in range(20):
        cluster, jobs, events = a_workload(random.Random(seed))
        outcomes = []
        for how in (ONE_BY_ONE, index):
            simulation, ids = a_simulation(cluster, jobs, policy, "easy", events=events, limits=limits, index=how)
            assert simulation.index == how
            simulation.run()
            outcomes.append(outcome(simulation, ids))
        assert outcomes[0] == outcomes[1], seed
        free, ids = a_simulation(cluster, jobs, policy, "easy", events=events, index=index)
        free.run()
        held += outcome(free, ids) != outcomes[1]
    assert held > 10


@pytest.mark.parametrize("index", [BY_RUNS, BY_LEVELS])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_state_on_the_way_is_valid(placement: str, index: str) -> None:
    for seed in range(8):
        cluster, jobs, events = a_workload(random.Random(seed))
        simulation, _ = a_simulation(cluster, jobs, "fcfs", "easy", placement, events=events, index=index)
        while simulation.to_next_pass():
            assert list(problems(simulation)) == []
            simulation.finish_pass()
            assert list(problems(simulation)) == []


def test_a_snapshot_tells_nodes_one_by_one() -> None:
    """What `decide` plans from it is what it plans from a simulation without an index."""
    for seed in range(6):
        cluster, jobs, _ = a_workload(random.Random(seed))
        plans = []
        for index in (ONE_BY_ONE, BY_RUNS, BY_LEVELS):
            simulation, _ = a_simulation(cluster, jobs, "fcfs", "easy", "best-fit", index=index)
            found = []
            for _ in range(8):
                if simulation.to_next_pass():
                    plan = decide(
                        simulation.snapshot(), load_policy("fcfs").spec, backfill="easy", placement="best-fit"
                    )
                    found.append([(s.job, s.nodes) for s in plan.starts])
                    simulation.finish_pass()
            plans.append(found)
        assert plans[0] == plans[1] == plans[2]


def test_it_counts_where_it_pays() -> None:
    wide = [Job(id=i + 1, submit=i, run=50, limit=60, cpus=4 * 64, nodes=64) for i in range(20)]
    for count, jobs, index in ((2000, wide, BY_RUNS), (200, wide, ONE_BY_ONE)):
        simulation, _ = a_simulation(Cluster("c", (NodeClass(count, cpus=4),)), jobs, "fcfs", "easy", "best-fit")
        assert simulation.index == index
    narrow = [Job(id=i + 1, submit=i, run=50, limit=60, cpus=1) for i in range(20)]
    simulation, _ = a_simulation(Cluster("c", (NodeClass(2000, cpus=4),)), narrow, "fcfs", "easy", "best-fit")
    assert simulation.index == BY_LEVELS


def test_the_log_grows_with_what_is_logged() -> None:
    """Not with jobs times nodes: a job on a thousand neighbours is one record."""
    jobs = [Job(id=i + 1, submit=0, run=5, limit=9, cpus=4000, nodes=1000) for i in range(300)]
    simulation, ids = a_simulation(Cluster("c", (NodeClass(2000, cpus=4),)), jobs, "fcfs", "easy", "best-fit")
    simulation.run()
    assert simulation.world["logged"] == len(jobs)
    assert np.array_equal(simulation.world["log_more"][: len(jobs)], np.full(len(jobs), 999))
    assert all(len(ran.nodes) == 1000 for ran in outcome(simulation, ids).values())
