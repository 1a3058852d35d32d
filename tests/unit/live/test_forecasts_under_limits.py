"""Starts foreseen under limits: jobs that a limit holds back start when its room comes back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slurm_rl.cli.shadow_report import compare
from slurm_rl.controller.live import ControllerLive
from slurm_rl.controller.tick import Controller
from slurm_rl.policy.registry import parse_policy
from slurm_rl.slurm.model import HistoryJob, SlurmPartition

from .conftest import MakeController
from .fake_slurm import NOW, FakeSlurm, a_job, a_running_job
from .test_start_forecast import a_scene, told

EIGHT_GPUS_A_USER = """Association Records

ClusterName=c Account=lab UserName=ann(1000) Partition= Priority=0 ID=5
    ParentAccount= Lft=5 DefAssoc=Yes
    GrpJobs=N(1) GrpJobsAccrue=N(0)

QOS Records

QOS=normal(1)
    GrpJobs=N(2) GrpJobsAccrue=N(0) GrpSubmitJobs=N(9) GrpWall=N(0.00)
    GrpTRES=cpu=N(40),mem=N(4000),node=N(3),gres/gpu=N(44)
    User Limits
      ann(1000)
        MaxJobsPU=N(2) MaxJobsAccruePU=N(0) MaxSubmitJobsPU=N(3)
        MaxTRESPU=cpu=N(8),mem=N(800),gres/gpu=8(8)
"""
ENFORCED = {"AccountingStorageEnforce": "associations,limits,qos"}


def of_ann(job_id: int, node: str = "", **more: Any) -> Any:
    """A job of 8 GPUs in QOS normal, on a node or waiting."""
    job = a_running_job(job_id, node) if node else a_job(job_id, gpus=8, limit=3600, **more)
    return msgspec.structs.replace(job, user="ann", qos="normal")


def a_site(*jobs: Any, **config: str) -> FakeSlurm:
    slurm = FakeSlurm(*jobs, **config)
    slurm.limits = EIGHT_GPUS_A_USER
    return slurm


@pytest.mark.parametrize("mode", ["shadow", "enforce"])
def test_a_user_s_limit_delays_the_user_s_jobs(controller: MakeController, mode: str) -> None:
    """Ann may hold 8 GPUs, and does for 3,000 s more; node 2 is free, for bob, who came last."""
    bob = msgspec.structs.replace(a_job(3, gpus=8, limit=3600, waited=50), user="bob", qos="normal")
    jobs = (of_ann(901, "n1"), of_ann(1, waited=900), of_ann(2, waited=800), bob)
    c = controller(a_site(*jobs, **ENFORCED), mode=mode)
    c.tick()
    assert told(c, a_scene(c)) == {1: 3000, 2: 4800, 3: 0}
    free = controller(a_site(*jobs), mode=mode)
    free.tick()
    assert told(free, a_scene(free)) == {1: 0, 2: 1800, 3: 3000}, "a limit that nobody enforces holds nobody back"


def a_site_of_two_partitions(*jobs: Any) -> FakeSlurm:
    slurm = a_site(*jobs, **ENFORCED)
    slurm.partitions = (*slurm.partitions, SlurmPartition(name="other", state="UP"))
    first, second = slurm.nodes
    slurm.nodes = (first, msgspec.structs.replace(second, partitions=("other",)))
    return slurm


def asked(c: Controller, **wish: Any) -> dict[str, Any]:
    c.start_forecasts.seconds = 600.0
    live = ControllerLive(c, c.journal)
    return live.when({"gpus": 8, "gpu_type": "a100", "limit": 3600, "partition": "other"} | wish)


def test_a_limit_spans_partitions(controller: MakeController) -> None:
    """Ann's job runs in batch; node 2, the only one of the other partition, is free, but not for her."""
    c = controller(a_site_of_two_partitions(of_ann(901, "n1"), of_ann(1, waited=900, partition="other")), mode="shadow")
    c.tick()
    assert told(c, a_scene(c)) == {1: 3000}
    assert asked(c, user="bob")["start"]["wait"] == 0
    # Her QOS is that of her last job; the job that waits goes first.
    assert asked(c, user="ann")["start"]["wait"] > 3000


def test_what_no_limit_ever_lets_start_is_told_before(controller: MakeController) -> None:
    c = controller(a_site(of_ann(1, waited=900), **ENFORCED), mode="shadow")
    c.tick()
    said = asked(c, user="ann", partition="batch", gpus=16, nodes=2)
    assert said["never"] == "QOS normal for ann: MaxTRESPU of gres/gpu is 8, it asks for 16"
    assert said["start"] is None
    assert "8 GPUs instead of 16" in [a["what"] for a in said["alternatives"]]
    assert not asked(c, user="ann", partition="batch", gpus=16, nodes=2, qos="free")["never"]


def a_finished_job(job_id: int) -> HistoryJob:
    """A job of ann's, of 8 GPUs and ten minutes, submitted an hour ago."""
    began = int(NOW) - 3600
    whose = {"name": "train", "user": "ann", "account": "lab", "partition": "batch", "qos": "normal"}
    times = {"submit_time": began, "eligible_time": began, "start_time": began, "end_time": began + 600}
    size = {"nodes": 1, "cpus": 8, "mem_mb": 1024, "gpus_requested": {"": 8}, "gpus_allocated": {"a100": 8}}
    rest = {"node_list": ("n1",), "priority": 1, "exit_code": 0, "state": "COMPLETED", "elapsed": 600}
    named = {"job_id": job_id, "display_id": str(job_id), "time_limit": 3600}
    return HistoryJob(**(whose | times | size | rest | named))  # type: ignore[arg-type]  # fields by name


def test_the_shadow_report_replays_under_the_site_s_limits() -> None:
    """Ten jobs of ten minutes on two nodes: two at a time, or one by one where ann may hold one node."""
    waits = []
    for config in ({}, ENFORCED):
        slurm = a_site(**config)
        slurm.past = [a_finished_job(i) for i in range(1, 11)]
        found = compare(slurm, NOW - 7200, NOW, parse_policy("fcfs"), 1.0)
        waits.append((found["slurm"]["mean_wait"], found["slurm_rl"]["mean_wait"]))
    free, held = waits
    assert free == pytest.approx((1200, 1200), abs=120)
    assert held == pytest.approx((2700, 2700), abs=300)
