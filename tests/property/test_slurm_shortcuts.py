"""The rule `slurm`: by runs, by rooms of nodes, and without either, a replay is the same to the node."""

from __future__ import annotations

import random

import numpy as np
import pytest
from builders import Event, Job, a_simulation, outcome

from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.domain.reservations import Reservation, reservations_from
from slurm_rl.place.counting import BY_RUNS, ONE_BY_ONE
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.validate import problems

ROUNDS = 40
CLUSTERS = (
    (NodeClass(24, cpus=4, mem_gb=16),),
    (NodeClass(70, cpus=4, weight=2), NodeClass(90, cpus=8)),
    (NodeClass(150, cpus=16), NodeClass(61, cpus=24)),
    (NodeClass(8, "A", 4, cpus=8), NodeClass(16, "B", 2, cpus=8, weight=3), NodeClass(37, cpus=4)),
    (
        NodeClass(40, cpus=2, partition="p"),
        NodeClass(30, cpus=4, partition="p,q"),
        NodeClass(30, cpus=2, partition="r"),
    ),
    (NodeClass(20, cpus=2, partition="p"), NodeClass(60, cpus=4, partition="q"), NodeClass(20, cpus=2, partition="p")),
)


def a_workload(dice: random.Random) -> tuple[Cluster, list[Job], list[Event]]:
    """Jobs of minutes and hours, wide and narrow, on more than a word of nodes; some have nodes fail."""
    cluster = Cluster("c", dice.choice(CLUSTERS))
    gpus = any(c.gpus for c in cluster.classes)
    names = [p for p in cluster.partitions if p]
    span = dice.choice((600, 5_000, 40_000))
    jobs = []
    for i in range(dice.randint(20, 130)):
        width = dice.choice((0, 1, 1, 2, 3, 7, cluster.nodes // 9, cluster.nodes // 4, cluster.nodes // 2))
        run = dice.choice((dice.randint(0, 90), dice.randint(0, 5_000)))
        jobs.append(
            Job(
                id=i + 1,
                submit=dice.randint(0, span),
                run=run,
                limit=max(1, run + dice.choice((-3, 0, 5, 600, 3_600))),
                cpus=dice.choice((1, 2, 3, 4)) * max(width, 1) * (1 if width else dice.choice((1, 9))),
                nodes=width,
                gpus=dice.choice((0, 0, max(width, 1), 2 * max(width, 1))) if gpus else 0,
                mem_gb=dice.choice((None, 4 * max(width, 1))),
                partition=dice.choice(names) if names else "",
                user=dice.choice("uvw"),
            )
        )
    events = []
    for node in dice.sample(range(cluster.nodes), dice.choice((0, 0, 5))):
        at = dice.randint(0, span)
        events += [Event(at, node, False), Event(at + dice.randint(1, 3_000), node, True)]
    return cluster, jobs, sorted(events, key=lambda e: e.time)


def settings(dice: random.Random) -> SlurmSettings:
    return SlurmSettings(
        bf_interval=dice.choice((1, 30, 30, 300)),
        bf_resolution=dice.choice((1, 60, 60, 600)),
        bf_window=dice.choice((3_600, 86_400)),
        bf_window_linear=dice.choice((0, 0, 120)),
        bf_max_job_test=dice.choice((3, 20, 500)),
        bf_max_job_start=dice.choice((0, 0, 2)),
        default_queue_depth=dice.choice((2, 100)),
    )


def some_reservations(dice: random.Random, nodes: int) -> tuple[Reservation, ...]:
    value = {}
    for i in range(dice.randint(1, 3)):
        start = dice.randint(0, 6_000)
        chosen = dice.sample(range(nodes), dice.randint(1, nodes))
        value[f"r{i}"] = {
            "StartTime": start,
            "EndTime": start + dice.randint(60, 4_000),
            "Nodes": dice.choice(("ALL", ",".join(map(str, chosen)))),
            "Flags": dice.choice(("", "MAINT")),
        }
    return reservations_from({"reservation": value}, nodes)


def without_rooms(simulation: ReplayState) -> ReplayState:
    """Running jobs are given back to a view of all nodes, and the placement is asked after each batch."""
    simulation.world["counted"] = 0
    return simulation


@pytest.mark.parametrize("policy", ["fcfs", "sjf@user", "multifactor"])
def test_all_ways_give_one_schedule(policy: str) -> None:
    backfilled = 0
    for seed in range(ROUNDS):
        dice = random.Random(f"{policy} {seed}")
        cluster, jobs, events = a_workload(dice)
        more = {"events": events, "slurm": settings(dice)}
        plain, ids = a_simulation(cluster, jobs, policy, "slurm", "slurm", index=ONE_BY_ONE, **more)  # type: ignore[arg-type]
        without_rooms(plain).run()
        rooms, _ = a_simulation(cluster, jobs, policy, "slurm", "slurm", index=ONE_BY_ONE, **more)  # type: ignore[arg-type]
        rooms.run()
        runs, _ = a_simulation(cluster, jobs, policy, "slurm", "slurm", index=BY_RUNS, **more)  # type: ignore[arg-type]
        assert (rooms.world["counted"], runs.world["by_runs"]) == (1, 1)
        runs.run()
        assert outcome(rooms, ids) == outcome(plain, ids), seed
        assert outcome(runs, ids) == outcome(plain, ids), seed
        strict, _ = a_simulation(cluster, jobs, policy, "none", "slurm", events=events)
        strict.run()
        backfilled += not np.array_equal(strict.world["live"]["start"], rooms.world["live"]["start"])
    assert backfilled > ROUNDS // 2, "without backfill nothing is compared"


def test_reservations_keep_it_so() -> None:
    for seed in range(ROUNDS):
        dice = random.Random(f"reserved {seed}")
        cluster, jobs, events = a_workload(dice)
        kept = some_reservations(dice, cluster.nodes)
        more = {"events": events, "slurm": settings(dice), "reservations": kept}
        plain, ids = a_simulation(cluster, jobs, "fcfs", "slurm", "slurm", **more)  # type: ignore[arg-type]
        without_rooms(plain).run()
        rooms, _ = a_simulation(cluster, jobs, "fcfs", "slurm", "slurm", **more)  # type: ignore[arg-type]
        rooms.run()
        assert outcome(rooms, ids) == outcome(plain, ids), seed


def test_every_state_on_the_way_is_valid() -> None:
    for seed in range(4):
        cluster, jobs, events = a_workload(random.Random(seed))
        simulation, _ = a_simulation(cluster, jobs, "fcfs", "slurm", "slurm", events=events, index=BY_RUNS)
        while simulation.to_next_pass():
            assert list(problems(simulation)) == []
            simulation.finish_pass()
