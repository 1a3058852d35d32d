"""Runs of nodes that are alike give the schedules that nodes one by one give, node for node."""

from __future__ import annotations

import random

import numpy as np
import pytest
from builders import Event, Job, a_simulation, outcome

from slurm_rl.controller.live_policy import load_policy
from slurm_rl.decide import decide
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.place.counting import PAIRS, PLACEMENTS
from slurm_rl_sim.validate import problems

CLUSTERS = (
    (NodeClass(24, cpus=4, mem_gb=16),),
    (NodeClass(10, cpus=4), NodeClass(14, cpus=8)),
    (NodeClass(8, "A", 4, cpus=8), NodeClass(6, "B", 2, cpus=8), NodeClass(7, cpus=4)),
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


@pytest.mark.parametrize(("rule", "placement"), PAIRS)
def test_runs_and_nodes_agree(rule: str, placement: str) -> None:
    for seed in range(60):
        dice = random.Random(f"{rule} {placement} {seed}")
        cluster, jobs, events = a_workload(dice)
        policy = dice.choice(["fcfs", "sjf@user", "multifactor"])
        more = {"events": events, "by_runs": False}
        plain, ids = a_simulation(cluster, jobs, policy, rule, placement, **more)  # type: ignore[arg-type]
        plain.run()
        counted, _ = a_simulation(cluster, jobs, policy, rule, placement, **more | {"by_runs": True})  # type: ignore[arg-type]
        assert counted.world["by_runs"] == 1
        counted.run()
        assert outcome(counted, ids) == outcome(plain, ids), seed


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_state_on_the_way_is_valid(placement: str) -> None:
    for seed in range(8):
        cluster, jobs, events = a_workload(random.Random(seed))
        simulation, _ = a_simulation(cluster, jobs, "fcfs", "easy", placement, events=events, by_runs=True)
        while simulation.to_next_pass():
            assert list(problems(simulation)) == []
            simulation.finish_pass()
            assert list(problems(simulation)) == []


def test_a_snapshot_tells_nodes_one_by_one() -> None:
    """What `decide` plans from it is what it plans from a simulation without runs."""
    for seed in range(6):
        cluster, jobs, _ = a_workload(random.Random(seed))
        plans = []
        for by_runs in (False, True):
            simulation, _ = a_simulation(cluster, jobs, "fcfs", "easy", "best-fit", by_runs=by_runs)
            found = []
            for _ in range(8):
                if simulation.to_next_pass():
                    plan = decide(
                        simulation.snapshot(), load_policy("fcfs").spec, backfill="easy", placement="best-fit"
                    )
                    found.append([(s.job, s.nodes) for s in plan.starts])
                    simulation.finish_pass()
            plans.append(found)
        assert plans[0] == plans[1]


def test_it_counts_where_it_pays() -> None:
    wide = [Job(id=i + 1, submit=i, run=50, limit=60, cpus=4 * 64, nodes=64) for i in range(20)]
    for count, jobs, counted in ((2000, wide, 1), (200, wide, 0)):
        simulation, _ = a_simulation(Cluster("c", (NodeClass(count, cpus=4),)), jobs, "fcfs", "easy", "best-fit")
        assert simulation.world["by_runs"] == counted
    narrow = [Job(id=i + 1, submit=i, run=50, limit=60, cpus=1) for i in range(20)]
    simulation, _ = a_simulation(Cluster("c", (NodeClass(2000, cpus=4),)), narrow, "fcfs", "easy", "best-fit")
    assert simulation.world["by_runs"] == 0


def test_the_log_grows_with_what_is_logged() -> None:
    """Not with jobs times nodes: a job on a thousand neighbours is one record."""
    jobs = [Job(id=i + 1, submit=0, run=5, limit=9, cpus=4000, nodes=1000) for i in range(300)]
    simulation, ids = a_simulation(Cluster("c", (NodeClass(2000, cpus=4),)), jobs, "fcfs", "easy", "best-fit")
    simulation.run()
    assert simulation.world["logged"] == len(jobs)
    assert np.array_equal(simulation.world["log_more"][: len(jobs)], np.full(len(jobs), 999))
    assert all(len(ran.nodes) == 1000 for ran in outcome(simulation, ids).values())
