"""Reservations against a real slurmctld: the same jobs start on the same nodes in a replay, and a live plan agrees."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import msgspec
import pytest
from builders import Job, a_cluster, replay

from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.slurm_snapshot import observe
from slurm_rl.decide import decide
from slurm_rl.domain.cluster import NodeClass
from slurm_rl.domain.reservations import reservations_from
from slurm_rl.errors import SlurmError
from slurm_rl.lab.lab import Lab
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import SlurmJob, SlurmState

from .conftest import Submit, sbatch, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.releases]

NODES = ["a100-1", "a100-2", "v100-1", "v100-2", "t4-1", "t4-2"]
CLUSTER = a_cluster(
    NodeClass(2, gpu_type="A100", gpus=8, cpus=64),
    NodeClass(2, gpu_type="V100", gpus=8, cpus=64),
    NodeClass(2, gpu_type="T4", gpus=4, cpus=32),
)
HOUR = 3600


@contextlib.contextmanager
def reserved(lab: Lab, name: str, *options: str) -> Iterator[None]:
    lab.run("scontrol", "create", "reservation", f"ReservationName={name}", "Duration=60", "Users=root", *options)
    try:
        yield
    finally:
        lab.run("scancel", "--user=root", "--quiet")
        for _ in range(100):  # one that has jobs cannot be deleted
            with contextlib.suppress(SlurmError):
                lab.run("scontrol", "delete", f"ReservationName={name}")
                break
            time.sleep(0.1)


def queue_of(client: CliClient) -> dict[str, SlurmJob]:
    return {j.name: j for j in client.snapshot().jobs}


def starts_of_a_plan(state: SlurmState) -> dict[str, str]:
    """Nodes by the names of the jobs that a plan starts on an idle cluster, under Slurm's own rule."""
    factors = next(j.factors for j in state.jobs if j.factors is not None)  # sprio hides running jobs
    again = {"state": "PENDING", "reason": "Priority", "node_list": (), "start_time": None, "factors": factors}
    waiting = [msgspec.structs.replace(j, **again) for j in state.jobs]
    idle = [msgspec.structs.replace(n, cpus_allocated=0, mem_mb_allocated=0, gpus_allocated={}) for n in state.nodes]
    state = msgspec.structs.replace(state, jobs=tuple(waiting), nodes=tuple(idle))
    queue = observe(state, RunTimes(), load_policy("fcfs").spec)
    plan = decide(queue.snapshot, load_policy("fcfs").spec, backfill="slurm", placement="slurm")
    assert queue.workload is not None
    names = [state.nodes[number].name for number in queue.workload.node_number.tolist()]
    return {queue.jobs[s.job].name: names[s.nodes[0][0]] for s in plan.starts}


def test_jobs_keep_off_and_keep_to_reservations(slurm: Lab, submit: Submit, client: CliClient) -> None:
    """`wide` could never run beside `maint`: the main scheduler passes it over, and starts `long` (V1, V4, V7)."""
    with (
        reserved(slurm, "maint", "StartTime=now+3600", "Nodes=a100-1", "Flags=MAINT,IGNORE_JOBS"),
        reserved(slurm, "course", "StartTime=now", "Nodes=t4-1", "Flags=IGNORE_JOBS"),
        reserved(slurm, "cores", "StartTime=now+7200", "NodeCnt=1", "CoreCnt=2"),
    ):
        told = {r.name: r for r in client.snapshot().reservations}
        assert set(told) == {"maint", "course"}  # a part of a node is not modelled
        assert (told["maint"].nodes, told["maint"].users, told["maint"].end - told["maint"].start) == (
            ("a100-1",),
            ("root",),
            HOUR,
        )
        assert {"MAINT", "IGNORE_JOBS"} <= told["maint"].flags
        submit("--job-name=wide", "--nodes=2", "--ntasks=2", "--gpus-per-node=a100:8", "--time=120", "--mem=1G")
        submit("--job-name=long", "--gpus-per-node=a100:1", "--time=120", "--mem=1G")
        submit("--job-name=short", "--gpus-per-node=a100:8", "--time=30", "--mem=1G")
        submit("--job-name=inside", "--reservation=course", "--gpus-per-node=t4:1", "--time=300", "--mem=1G")
        submit("--job-name=outside", "--gpus-per-node=t4:4", "--time=30", "--mem=1G")
        running = ("long", "short", "inside", "outside")
        wait_until(lambda: all(queue_of(client)[n].running for n in running), "all but the wide job run")
        state = client.snapshot()
        real = {j.name: j.node_list[0] for j in state.jobs if j.running}
        assert queue_of(client)["wide"].pending
        record = slurm.run("scontrol", "-o", "show", "job", str(queue_of(client)["long"].job_id))
        assert "Scheduler=Backfill" not in record
        for refused in ("nobody-s", "course"):
            with pytest.raises(SlurmError):  # V9: no such name; five GPUs on its node of four
                sbatch(slurm, f"--reservation={refused}", "--gpus-per-node=t4:5")
    assert real == {"long": "a100-2", "short": "a100-1", "inside": "t4-1", "outside": "t4-2"}
    rows = {
        "maint": {"StartTime": HOUR, "Duration": "1:00:00", "Nodes": "0", "Flags": "MAINT,IGNORE_JOBS"},
        "course": {"StartTime": 0, "Duration": "1:00:00", "Nodes": "4", "Users": "root"},
    }
    common = {"nodes": 1, "cpus": 1, "mem_gb": 1.0, "user": "root", "run": 600}
    jobs = [
        Job(1, submit=1, limit=7200, gpus=16, gpu_type="A100", **(common | {"nodes": 2, "cpus": 2, "mem_gb": 2.0})),
        Job(2, submit=2, limit=7200, gpus=1, gpu_type="A100", **common),
        Job(3, submit=3, limit=1800, gpus=8, gpu_type="A100", **common),
        Job(4, submit=4, limit=18000, gpus=1, gpu_type="T4", reservation="course", **common),
        Job(5, submit=5, limit=1800, gpus=4, gpu_type="T4", **common),
    ]
    ran = replay(
        CLUSTER, jobs, "fcfs", "slurm", "slurm", reservations=reservations_from({"reservation": rows}, len(NODES))
    )
    names = {2: "long", 3: "short", 4: "inside", 5: "outside"}
    assert {names[i]: NODES[ran[i].nodes[0][0]] for i in names} == real
    assert ran[2].start == 2
    assert ran[1].start > HOUR
    # The live side, asked of an idle cluster with the same queue: it leaves the job of the reservation to Slurm.
    assert starts_of_a_plan(state) == {name: node for name, node in real.items() if name != "inside"}
