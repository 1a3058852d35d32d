"""The pyslurm client's translation, against objects with the attributes of pyslurm 25.11's."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.errors import EnvironmentMissing, SlurmError
from slurm_rl.slurm import pyslurm
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import JobUpdate, UpdateStatus
from slurm_rl.slurm.release import Release

Fake = Callable[[str, str], Path]


def a_job(**given: Any) -> SimpleNamespace:
    """A pending job as pyslurm.Job shows it; what is absent is None there."""
    values: dict[str, Any] = dict.fromkeys(
        (
            "account qos reservation dependencies array_id array_task_id array_tasks_waiting array_tasks_parallel "
            "heterogeneous_offset eligible_time start_time end_time time_limit constraints preferred_features "
            "required_nodes allocated_nodes allocated_tres gres_per_node nice memory"
        ).split()
    )
    values |= {
        "id": 7,
        "name": "train",
        "user_name": "ada",
        "partition": "gpu",
        "state": "PENDING",
        "state_reason": "Resources",
        "is_cronjob": False,
        "heterogeneous_id": 0,
        "submit_time": 1_750_000_000,
        "num_nodes": 1,
        "cpus": 4,
        "ntasks": 1,
        "priority": 100,
        "resource_sharing": "OK",
        "requested_tres": tres("cpu=4,mem=8G,node=1,gres/gpu=2,gres/gpu:a100=2"),
    }
    return SimpleNamespace(**(values | given))


def tres(text: str) -> SimpleNamespace:
    return SimpleNamespace(raw_str=text)


def test_a_pending_job() -> None:
    job = pyslurm.job(a_job(time_limit=90, nice=5, constraints=["a100|h100"]), {})
    assert (job.job_id, job.user, job.state, job.reason) == (7, "ada", "PENDING", "Resources")
    assert (job.gpus, job.cpus, job.mem_mb, job.time_limit, job.nice) == ({"a100": 2}, 4, 8192, 5400, 5)
    assert job.features == "a100|h100"
    assert job.array_job_id == 0


def test_a_running_job_has_what_it_was_given() -> None:
    given = a_job(
        state="RUNNING",
        state_reason="None",
        allocated_nodes="gpu[01-02]",
        allocated_tres=tres("cpu=8,mem=16G,node=2,gres/gpu=4,gres/gpu:t4=4"),
    )
    job = pyslurm.job(given, {})
    assert (job.gpus, job.cpus, job.reason, job.node_list) == ({"t4": 4}, 4, "", ("gpu01", "gpu02"))


def test_waiting_and_separate_array_tasks() -> None:
    waiting = pyslurm.job(a_job(array_id=3, id=3, array_tasks_waiting="4-50", array_tasks_parallel=3), {})
    assert (waiting.array_tasks, waiting.array_task_count, waiting.array_max_running) == ("4-50", 47, 3)
    single = pyslurm.job(a_job(array_id=3, id=9, array_task_id=2), {})
    assert (single.array_job_id, single.array_task_id, single.array_task_count) == (3, 2, 1)


def test_dependencies_are_written_as_slurm_writes_them() -> None:
    waits = {"afterok": [1, "2_*(unfulfilled)"], "afterany": [], "singleton": True, "satisfy": "all"}
    job = pyslurm.job(a_job(dependencies=waits), {})
    assert job.dependency == "afterok:1(unfulfilled),afterok:2_*(unfulfilled),singleton(unfulfilled)"
    assert not job.eligible(2e9)


def test_resources_without_slurms_own_text() -> None:
    count = SimpleNamespace
    older = SimpleNamespace(
        cpu=count(count=4), mem=count(count=8192), node=count(count=1), billing=None, gres={"gpu:a100": count(count=2)}
    )
    job = pyslurm.job(a_job(requested_tres=older), {})
    assert (job.tres, job.gpus) == ({"cpu": 4, "mem": 8192, "node": 1, "gres/gpu:a100": 2}, {"a100": 2})


def test_a_site_that_tracks_no_gpus() -> None:
    job = pyslurm.job(a_job(requested_tres=tres("cpu=1,mem=1G"), gres_per_node={"gpu:a100": 2}, num_nodes=3), {})
    assert job.gpus == {"a100": 6}


def test_a_node() -> None:
    node = pyslurm.node(
        SimpleNamespace(
            name="gpu01",
            state="MIXED+DRAIN",
            total_cpus=64,
            allocated_cpus=8,
            real_memory=512_000,
            allocated_memory=1024,
            configured_gres={"gpu:a100": 8},
            allocated_gres={"gpu": 2, "gpu:a100": 2},
            active_features=["a100"],
            partitions=["gpu"],
        )
    )
    assert (node.state, node.flags, node.usable) == ("MIXED", ("DRAIN",), False)
    assert (node.gpus, node.gpus_allocated) == ({"a100": 8}, {"a100": 2})


@pytest.mark.parametrize(
    ("update", "can"),
    [
        (JobUpdate(job_id=1, site_factor=5), True),
        (JobUpdate(job_id=1, site_factor=-5), True),
        (JobUpdate(job_id=1, site_factor=0), False),  # pyslurm silently drops a 0
        (JobUpdate(job_id=1, site_factor=5, prefer="a100"), False),
        (JobUpdate(job_id=1, features="a100"), False),
        (JobUpdate(job_id=1, site_factor=5, start_at=60), False),
        (JobUpdate(job_id=1, site_factor=5, array_tasks="1-5"), False),
    ],
)
def test_what_pyslurm_can_send(update: JobUpdate, can: bool) -> None:
    assert pyslurm.expressible(update) is can


class Module:
    """A stand-in for the pyslurm module that remembers what was modified."""

    class PyslurmError(Exception):
        pass

    def __init__(self) -> None:
        self.modified: dict[int, int] = {}
        module = self

        class Job:
            def __init__(self, job_id: int) -> None:
                self.job_id = job_id

            def modify(self, change: SimpleNamespace) -> None:
                if self.job_id == 404:
                    raise Module.PyslurmError("Invalid job id specified")
                module.modified[self.job_id] = change.site_factor

        self.Job = Job
        self.JobSubmitDescription = SimpleNamespace
        self.Jobs = SimpleNamespace(load=lambda: {7: a_job(), 8: a_job(id=8, state="COMPLETED")})
        self.Nodes = SimpleNamespace(load=dict)


@pytest.fixture
def client(fake: Fake, tmp_path: Path) -> tuple[pyslurm.PyslurmClient, Module, Path]:
    sent = tmp_path / "sent"
    fixtures = Path(__file__).parent / "fixtures" / "22.05"
    fake(
        "scontrol",
        f'case "$*" in ping) echo "Slurmctld(primary) at head is UP" ;; "show config") cat {fixtures}/config.txt ;;'
        f" *partition*) cat {fixtures}/partitions.txt ;; *) tee {sent} ;; esac",
    )
    fake("sprio", "true")
    fake("sshare", "true")
    module = Module()
    return pyslurm.PyslurmClient(module=module), module, sent


def test_resets_and_hints_go_through_scontrol_and_the_rest_through_pyslurm(
    client: tuple[pyslurm.PyslurmClient, Module, Path],
) -> None:
    speaking, module, sent = client
    results = speaking.update(
        [
            JobUpdate(job_id=1, site_factor=5),
            JobUpdate(job_id=2, site_factor=0),
            JobUpdate(job_id=404, site_factor=6),
            JobUpdate(job_id=3, prefer="a100"),
        ]
    )
    assert [(r.job_id, r.status) for r in results] == [
        (1, UpdateStatus.APPLIED),
        (2, UpdateStatus.APPLIED),
        (404, UpdateStatus.REFUSED),
        (3, UpdateStatus.APPLIED),
    ]
    assert module.modified == {1: 5}
    assert sent.read_text().splitlines() == ["update JobId=2 SiteFactor=0", "update JobId=3 Prefer=a100"]


def test_a_snapshot_has_pyslurms_active_jobs_and_the_rest_from_the_commands(
    client: tuple[pyslurm.PyslurmClient, Module, Path],
) -> None:
    state = client[0].snapshot()
    assert [j.job_id for j in state.jobs] == [7]
    assert state.nodes == ()
    assert state.weights.total == 3500


def test_pyslurm_is_refused_unless_it_fits_the_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "25.11.2")
    with pytest.raises(EnvironmentMissing, match=r"pyslurm is for Slurm 25\.11, this is Slurm 22\.05\.8"):
        pyslurm.load(Release(22, 5, 8), conf)
    # It would end this process without a configuration: it must not even be imported.
    with pytest.raises(SlurmError, match="cannot be read"):
        pyslurm.load(Release(25, 11, 0), conf)


def test_pyslurm_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert pyslurm.installed_major() is None
    with pytest.raises(EnvironmentMissing, match="pip install"):
        pyslurm.load(Release(22, 5, 8), None)


@pytest.mark.slurm
@pytest.mark.skipif(
    pyslurm.installed_major() is None or "SLURM_CONF" not in os.environ or shutil.which("squeue") is None,
    reason="needs the real pyslurm and a running Slurm of the same release (SLURM_CONF)",
)
def test_the_real_pyslurm_sees_what_the_commands_see() -> None:
    through_commands = {j.job_id: j for j in CliClient().snapshot().jobs}
    through_pyslurm = {j.job_id: j for j in pyslurm.PyslurmClient().snapshot().jobs}
    assert through_pyslurm.keys() == through_commands.keys()
    for job_id, job in through_pyslurm.items():
        other = through_commands[job_id]
        assert (job.gpus, job.nodes, job.time_limit, job.state) == (
            other.gpus,
            other.nodes,
            other.time_limit,
            other.state,
        )
