"""Planned GPU types on a real slurmctld: jobs land where the plan wants them, and users' constraints come back."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
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

# After its first pass the scheduler rests, so that jobs start when a test says so and not while it submits or plans.
_RESTING = "SchedulerParameters=defer,sched_min_interval=2000000000,bf_interval=3600,bf_continue"
_AT_WORK = "SchedulerParameters=bf_continue"


@pytest.fixture(scope="module")
def mixed_lab(session_labs: LabFactory) -> Lab:
    return session_labs("a100:4*3,v100:4*3,t4:4*3", extra_conf=(_RESTING,))


@pytest.fixture
def lab(mixed_lab: Lab) -> Iterator[Lab]:
    rest(mixed_lab)
    yield mixed_lab
    empty_queue(mixed_lab)


def rest(lab: Lab) -> None:
    """Restarts slurmctld and lets it make its one pass, for which it wants a job."""
    restart(lab, _AT_WORK, _RESTING)
    submit(lab, "--gpus=1")
    until(lambda: passes(lab) == 1, "the scheduler has made its pass")
    until(lambda: all(n.usable for n in CliClient(lab.slurm_conf).snapshot().nodes), "all nodes have registered", 120)
    empty_queue(lab)


def passes(lab: Lab) -> int:
    """Of the main scheduler, since slurmctld started."""
    return int(re.findall(r"Total cycles:\s*(\d+)", lab.run("sdiag"))[0])


def restart(lab: Lab, before: str, after: str) -> None:
    conf, running = lab.slurm_conf, lab.process("slurmctld")
    conf.write_text(conf.read_text().replace(before, after))
    os.kill(running.pid, signal.SIGTERM)
    until(lambda: not running.alive(), "slurmctld has ended")
    lab.restart("slurmctld")


def a_controller(lab: Lab, folder: Path, **settings: Any) -> Controller:
    defaults: dict[str, Any] = {"mode": "enforce", "policy": "fcfs", "placement": "mip", "placement_lever": "features"}
    return Controller(Config(**(defaults | settings)), CliClient(lab.slurm_conf), Journal(folder / "j"))


def submit(lab: Lab, *options: str) -> int:
    line = lab.run("sbatch", "--parsable", "--mem=100", "-t", "60", "-o", "/dev/null", *options, "--wrap", "sleep 600")
    return int(line.strip().partition(";")[0])


def jobs_of(lab: Lab) -> dict[int, SlurmJob]:
    return {j.job_id: j for j in CliClient(lab.slurm_conf).snapshot().jobs}


def kind_of(job: SlurmJob) -> str:
    return job.node_list[0].partition("-")[0]


def test_jobs_land_on_the_planned_type_and_others_are_not_harmed(lab: Lab, tmp_path: Path) -> None:
    typed = [submit(lab, "--gpus=t4:1"), submit(lab, "--gpus=a100:2")]
    bound = {submit(lab, "--gpus=1", "-C", "v100|t4"): ("v100", "t4"), submit(lab, "--gpus=1", "-C", "t4"): ("t4",)}
    free = [submit(lab, f"--gpus={1 + i % 2}", "-N1") for i in range(18)]
    controller = a_controller(lab, tmp_path)
    controller.tick()
    steered = {job_id: s.value for (job_id, _), s in controller.journal.steered().items()}
    assert set(steered) <= set(free), "typed and constrained jobs are not steered"
    assert len(steered) >= 15
    restart(lab, _RESTING, _AT_WORK)

    def all_run() -> bool:
        return all(jobs_of(lab)[j].running for j in [*typed, *bound, *free])

    until(all_run, "all jobs run", 180)
    jobs = jobs_of(lab)
    landed = [kind_of(jobs[j]) == value for j, value in steered.items()]
    print(f"{sum(landed)} of {len(landed)} planned starts landed on the planned type: {sorted(set(steered.values()))}")
    assert sum(landed) >= 0.95 * len(landed)
    assert [kind_of(jobs[j]) for j in typed] == ["t4", "a100"]
    assert all(kind_of(jobs[j]) in kinds for j, kinds in bound.items())
    assert {jobs[j].features for j in bound} == {"v100|t4", "t4"}
    controller.tick()
    known = {job_id for job_id, _ in controller.journal.steered()}
    assert known == set(steered), "a job that runs may be requeued, and wait with our expression"


def test_undo_returns_every_jobs_own_constraint(lab: Lab, tmp_path: Path) -> None:
    own = {submit(lab, "--gpus=1"): "", submit(lab, "--gpus=2"): "", submit(lab, "--gpus=1", "-C", "v100"): "v100"}
    controller = a_controller(lab, tmp_path)
    controller.tick()
    before = jobs_of(lab)
    assert {j for j in own if before[j].features != own[j]} == {j for j in own if not own[j]}
    done = undo(CliClient(lab.slurm_conf), controller.journal)
    assert (done.steered, done.freed) == (2, 2)
    assert {j: jobs_of(lab)[j].features for j in own} == own


def test_a_job_that_does_not_start_gets_its_own_back(lab: Lab, tmp_path: Path) -> None:
    job = submit(lab, "--gpus=1")
    controller = a_controller(lab, tmp_path, placement_ticks=1)
    controller.tick()
    assert jobs_of(lab)[job].features == "a100"
    controller.tick()
    assert jobs_of(lab)[job].pending
    assert jobs_of(lab)[job].features == ""


def test_a_requeued_job_gets_its_own_back(lab: Lab, tmp_path: Path) -> None:
    job = submit(lab, "--gpus=1")
    controller = a_controller(lab, tmp_path)
    controller.tick()
    restart(lab, _RESTING, _AT_WORK)
    until(lambda: jobs_of(lab)[job].running, "the job runs", 180)
    controller.tick()
    lab.run("scontrol", "requeue", str(job))
    until(lambda: jobs_of(lab)[job].pending, "the job waits again")
    assert jobs_of(lab)[job].features == "a100", "Slurm keeps it"
    done = undo(CliClient(lab.slurm_conf), controller.journal)
    assert (done.steered, done.freed) == (1, 1)
    assert jobs_of(lab)[job].features == ""


@pytest.mark.parametrize("when", ["waited", "ran"])
def test_a_job_that_had_ended_and_is_requeued_after_the_undo_gets_its_own_back(
    lab: Lab, tmp_path: Path, when: str
) -> None:
    """Slurm lets nobody change a job that has ended, and lets it be requeued as long as it remembers it."""
    job = submit(lab, "--gpus=1")
    controller = a_controller(lab, tmp_path)
    controller.tick()
    if when == "ran":
        restart(lab, _RESTING, _AT_WORK)
        until(lambda: jobs_of(lab)[job].running, "the job runs", 180)
    lab.run("scancel", str(job))
    until(lambda: job not in jobs_of(lab), "the job has ended")
    done = undo(CliClient(lab.slurm_conf), controller.journal)
    assert (done.steered, done.complete, done.ended) == (0, True, 1)
    lab.run("scontrol", "requeue", str(job))
    until(lambda: job in jobs_of(lab) and jobs_of(lab)[job].pending, "the job waits again")
    assert jobs_of(lab)[job].features == "a100", "Slurm keeps it"
    again = undo(CliClient(lab.slurm_conf), controller.journal)
    assert (again.steered, again.freed, again.ended) == (1, 1, 0)
    assert jobs_of(lab)[job].features == ""
    assert controller.journal.steered() == {}
