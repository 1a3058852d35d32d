"""A job deferred on a real slurmctld: it waits, starts on the type it waited for, and is released by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.tick import Controller
from slurm_rl.controller.undo import undo
from slurm_rl.lab.lab import Lab
from slurm_rl.obs.journal import Journal
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import SlurmJob

from ..conftest import LabFactory, empty_queue
from .on_lab import until

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def fast_and_slow(session_labs: LabFactory, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = session_labs(
        "a100:4*1,t4:4*1", extra_conf=("SchedulerParameters=bf_continue,bf_interval=2,sched_interval=2",)
    )
    submit(lab, "--gpus=1")
    a_controller(lab, tmp_path_factory.mktemp("first")).tick()  # kernels are compiled
    return lab


@pytest.fixture
def lab(fast_and_slow: Lab) -> Lab:
    """The A100s are taken for a quarter of an hour, the T4s are free."""
    empty_queue(fast_and_slow)
    submit(fast_and_slow, "--gpus=a100:4", "-N1", "--time=15", "--job-name=fill")
    until(lambda: job_named(fast_and_slow, "fill").running, "the A100s are taken")
    return fast_and_slow


def a_controller(lab: Lab, folder: Path, **settings: Any) -> Controller:
    defaults: dict[str, Any] = {"mode": "enforce", "policy": "fcfs", "placement": "mip", "placement_defer": 14_400}
    defaults |= {"gpu_speeds": "a100=4,t4=1", "placement_lever": "features", "interval": 1.0}
    return Controller(Config(**(defaults | settings)), CliClient(lab.slurm_conf), Journal(folder / "j"))


def submit(lab: Lab, *options: str) -> int:
    defaults = ("--parsable", "--mem=100", "--time=600", "--output=/dev/null")
    return int(lab.run("sbatch", *defaults, *options, "--wrap", "sleep 900").partition(";")[0])


def job_named(lab: Lab, name: str) -> SlurmJob:
    return next(j for j in CliClient(lab.slurm_conf).snapshot().jobs if j.name == name)


@contextmanager
def nothing_starts(lab: Lab) -> Iterator[None]:
    """Slurm takes jobs but starts none, as between two of its rounds."""
    lab.run("scontrol", "update", "PartitionName=batch", "State=DOWN")
    try:
        yield
    finally:
        lab.run("scontrol", "update", "PartitionName=batch", "State=UP")


def test_a_job_waits_for_the_fast_type_and_gets_it(lab: Lab, tmp_path: Path) -> None:
    controller = a_controller(lab, tmp_path)
    with nothing_starts(lab):
        submit(lab, "--gpus=4", "-N1", "--job-name=wait")
        submit(lab, "--gpus=1", "--begin=now+1hour", "--job-name=theirs")
        submit(lab, "--gpus=1", "--deadline=now+11hours", "--job-name=deadline")
        theirs = job_named(lab, "theirs").eligible_time
        controller.tick()
    job = job_named(lab, "wait")
    (row,) = controller.journal.deferred().values()
    assert (job.eligible_time, row.awaits) == (row.written, "a100")
    assert not job.eligible(time.time() + 60)
    assert job.factors is None, "sprio hides it"
    until(lambda: job_named(lab, "deadline").running, "a job with a deadline of its own is not kept waiting")
    assert job_named(lab, "wait").pending, "it waits, though the T4s have room"
    assert job_named(lab, "theirs").eligible_time == theirs

    lab.run("scancel", "--name=fill")
    until(lambda: not any(j.name == "fill" for j in controller.client.snapshot().jobs), "the A100s are free")
    controller.tick()
    until(lambda: job_named(lab, "wait").running, "it starts")
    assert job_named(lab, "wait").node_list == ("a100-1",)
    controller.tick()
    assert controller.start_time.rates() == {"allocation": 1.0, "success": 1.0}
    assert controller.journal.deferred() == {}


def test_undo_lets_it_start_but_leaves_what_an_operator_set(lab: Lab, tmp_path: Path) -> None:
    controller = a_controller(lab, tmp_path, gpu_speeds="a100=9,t4=1")
    with nothing_starts(lab):
        submit(lab, "--gpus=1", "-N1", "--job-name=ours")
        submit(lab, "--gpus=1", "-N1", "--job-name=moved")
        controller.tick()
        assert len(controller.journal.deferred()) == 2
        lab.run("scontrol", "update", f"JobId={job_named(lab, 'moved').job_id}", "StartTime=now+2hours")
        moved = job_named(lab, "moved").eligible_time
        done = undo(CliClient(lab.slurm_conf), controller.journal)
    assert (done.deferred, done.lifted) == (1, 1)
    until(lambda: job_named(lab, "ours").running, "it starts")
    assert job_named(lab, "moved").eligible_time == moved
    assert controller.journal.deferred() == {}


def test_slurm_releases_it_when_the_controller_is_dead(lab: Lab, tmp_path: Path) -> None:
    with nothing_starts(lab):
        submit(lab, "--gpus=4", "-N1", "--job-name=orphan")
        controller = a_controller(lab, tmp_path, placement_defer=8)
        controller.tick()
        (row,) = controller.journal.deferred().values()
        assert row.written <= (job_named(lab, "orphan").submit_time or 0) + 8
        controller.journal.close()
    assert job_named(lab, "orphan").pending
    until(lambda: job_named(lab, "orphan").running, "Slurm starts it by itself")
    assert (job_named(lab, "orphan").start_time or 0) >= row.written


def test_a_cancelled_job_that_is_requeued_after_the_undo_may_start(lab: Lab, tmp_path: Path) -> None:
    controller = a_controller(lab, tmp_path, gpu_speeds="a100=9,t4=1")
    with nothing_starts(lab):
        job = submit(lab, "--gpus=1", "-N1", "--job-name=back")
        controller.tick()
        (row,) = controller.journal.deferred().values()
        lab.run("scancel", str(job))
        client = CliClient(lab.slurm_conf)
        until(lambda: not any(j.job_id == job for j in client.snapshot().jobs), "the job has ended")
        controller.tick()  # a tick that does not see it does not forget it, either
        done = undo(client, controller.journal)
        assert (done.deferred, done.ended) == (0, 1)
        lab.run("scontrol", "requeue", str(job))
        assert job_named(lab, "back").eligible_time == row.written, "Slurm keeps our start time"
        again = undo(client, controller.journal)
        assert (again.deferred, again.lifted, again.ended) == (1, 1, 0)
    until(lambda: job_named(lab, "back").running, "it starts")
    assert controller.journal.deferred() == {}
