"""A live World is made as a replay's is: the same tables, the same sizes, the same groups of finished jobs."""

from __future__ import annotations

import msgspec
import numpy as np

from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.slurm_snapshot import finished_jobs, observe
from slurm_rl.decide import Guardrails
from slurm_rl.place.plan import Planner, PlannerSettings
from slurm_rl.place.problem import Weights
from slurm_rl.slurm.model import HistoryJob, SlurmNode, SlurmPartition

from .fake_slurm import NOW, FakeSlurm, a_job


def a_past_job(number: int, ran: int, **more: object) -> HistoryJob:
    fields: dict[str, object] = {
        "job_id": number,
        "display_id": str(number),
        "name": "sweep",
        "user": "ann",
        "account": "lab",
        "partition": "cpu",
        "qos": "normal",
        "state": "COMPLETED",
        "submit_time": int(NOW) - 90_000,
        "eligible_time": int(NOW) - 90_000,
        "start_time": int(NOW) - 80_000 + number,
        "end_time": int(NOW) - 80_000 + number + ran,
        "elapsed": ran,
        "time_limit": 36_000,
        "nodes": 1,
        "cpus": 4,
        "mem_mb": 1024,
        "gpus_requested": {},
        "gpus_allocated": {},
        "node_list": (),
        "priority": 1,
        "exit_code": 0,
    }
    return HistoryJob(**(fields | more))  # type: ignore[arg-type]


def test_it_knows_which_classes_of_nodes_jobs_may_use() -> None:
    slurm = FakeSlurm(a_job(1, gpus=4), a_job(2, gpus=3), a_job(3, gpus=2))
    slurm.nodes = tuple(
        msgspec.structs.replace(n, gpus={kind: 8}) for n, kind in zip(slurm.nodes, ("a100", "t4"), strict=True)
    )
    policy = load_policy("fcfs")
    view = observe(slurm.snapshot(), RunTimes(), policy.spec)
    world = view.snapshot.world
    assert world["class_ptr"].tolist() == [0, 2]  # one kind of jobs, on nodes of both classes
    assert sorted(world["class_list"].tolist()) == sorted(np.unique(world["nodes"]["klass"]).tolist())
    planner = Planner(PlannerSettings(weights=Weights(blocked=600.0), seconds=60.0))
    plan = policy.plan(view.snapshot, Guardrails(), dict(view.weights), "mip", planner)
    assert [s.job for s in plan.starts] == [0, 1, 2]


def test_a_cpu_job_is_estimated_by_its_namesakes_where_partitions_overlap_in_part() -> None:
    # Of the pool's nodes, one belongs to both partitions; by itself, `cpu` has fewer GPUs to a CPU than its pool has.
    slurm = FakeSlurm(a_job(1, gpus=0, limit=36_000, partition="cpu", name="sweep", cpus=4))
    slurm.nodes = (
        SlurmNode(name="g", state="IDLE", cpus=64, mem_mb=512_000, gpus={"a100": 8}, partitions=("gpu",)),
        SlurmNode(name="b", state="IDLE", cpus=64, mem_mb=512_000, gpus={"a100": 8}, partitions=("gpu", "cpu")),
        SlurmNode(name="c", state="IDLE", cpus=128, mem_mb=512_000, partitions=("cpu",)),
    )
    slurm.partitions = tuple(SlurmPartition(name=p, state="UP", default_time=3600) for p in ("gpu", "cpu"))
    # The user's wide jobs run for hours: whoever misses the namesakes of the same size goes by them.
    wide = [a_past_job(100 + i, 20_000, name=f"wide{i}", cpus=64) for i in range(40)]
    run_times = RunTimes()
    run_times.learn(finished_jobs([*(a_past_job(i, 60) for i in range(40)), *wide], slurm.nodes))
    view = observe(slurm.snapshot(), run_times, load_policy("sjf@user").spec)
    assert 55 < float(view.estimate[0]) < 75
