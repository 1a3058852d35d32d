"""The pyslurm client with the real pyslurm on a real Slurm of its release; run by `pytest -m pyslurm`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from slurm_rl.errors import SlurmError
from slurm_rl.lab.lab import Lab
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import JobUpdate, UpdateStatus
from slurm_rl.slurm.pyslurm import PyslurmClient

from ..conftest import LabFactory
from .conftest import sbatch, wait_until

pytestmark = pytest.mark.pyslurm
TIMEOUT = 4.0
APPLIED, REFUSED, UNKNOWN, NOT_SENT = UpdateStatus


@pytest.fixture
def lab(start_lab: LabFactory) -> Lab:
    return start_lab("a100:8*1")


@pytest.fixture
def client(lab: Lab) -> Iterator[PyslurmClient]:
    one = PyslurmClient(lab.slurm_conf, timeout=TIMEOUT)
    yield one
    one.close()


@pytest.fixture
def waiting(lab: Lab) -> list[int]:
    """Four jobs that wait for the GPUs of a running one."""
    sbatch(lab, "--gpus=a100:8")
    wait_until(lambda: lab.run("squeue", "-h", "-o", "%T").strip() == "RUNNING", "the first job runs")
    return [sbatch(lab, "--gpus=a100:8") for _ in range(4)]


def test_factors_are_written_and_read_back(client: PyslurmClient, waiting: list[int]) -> None:
    values = [7, -2000, 2**31 - 2**20, -1]
    updates = [JobUpdate(job_id=j, site_factor=f) for j, f in zip(waiting, values, strict=True)]
    assert [r.status for r in client.update(updates)] == [APPLIED] * 4
    assert client.site_factors() == dict(zip(waiting, values, strict=True))
    assert client.update([JobUpdate(job_id=j, site_factor=0) for j in waiting])[3].applied
    assert set(client.site_factors().values()) == {0}


def test_it_reads_what_the_command_line_client_reads(lab: Lab, client: PyslurmClient, waiting: list[int]) -> None:
    sbatch(lab, "--array=0-30:3%2", "--gpus=a100:2")
    assert client.snapshot().jobs == CliClient(lab.slurm_conf).snapshot().jobs


def test_a_job_that_is_not_there_is_refused(client: PyslurmClient, waiting: list[int]) -> None:
    results = client.update([JobUpdate(job_id=99_999, site_factor=1), JobUpdate(job_id=waiting[0], site_factor=1)])
    assert [r.status for r in results] == [REFUSED, APPLIED]
    assert results[0].message == "Invalid job id specified"


def test_a_user_without_rights_gets_an_error(lab: Lab, waiting: list[int]) -> None:
    nobody = PyslurmClient(lab.slurm_conf, user="nobody")
    try:
        with pytest.raises(SlurmError, match=r"may not change others' jobs.*AdminLevel=Operator"):
            nobody.update([JobUpdate(job_id=j, site_factor=5) for j in waiting])
    finally:
        nobody.close()


def test_a_stopped_slurmctld_leaves_one_unknown_and_no_thread_standing(
    lab: Lab, client: PyslurmClient, waiting: list[int]
) -> None:
    updates = [JobUpdate(job_id=j, site_factor=5) for j in waiting]
    client.update(updates)
    slurmctld = lab.process("slurmctld").pid
    beats: list[float] = []
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.05):
            beats.append(time.monotonic())

    other = threading.Thread(target=beat)
    os.kill(slurmctld, signal.SIGSTOP)
    other.start()
    try:
        results = client.update([JobUpdate(job_id=j, site_factor=6) for j in waiting])
    finally:
        over.set()
        other.join()
        os.kill(slurmctld, signal.SIGCONT)
    assert [r.status for r in results] == [UNKNOWN, NOT_SENT, NOT_SENT, NOT_SENT]
    assert len(beats) >= 20
    wait_until(lambda: client.health().up, "slurmctld goes on")
    assert [r.status for r in client.update(updates)] == [APPLIED] * 4
    assert set(client.site_factors().values()) == {5}


def test_a_dead_slurmctld_ends_the_batch_and_a_new_one_takes_the_next(
    lab: Lab, client: PyslurmClient, waiting: list[int]
) -> None:
    updates = [JobUpdate(job_id=j, site_factor=5) for j in waiting]
    client.update(updates)
    saved, written = lab.directory / "state" / "job_state", time.time()
    wait_until(lambda: saved.exists() and saved.stat().st_mtime > written, "slurmctld has saved the jobs")
    os.kill(lab.process("slurmctld").pid, signal.SIGKILL)
    wait_until(lambda: not lab.process("slurmctld").alive(), "it is dead")
    try:
        statuses = [r.status for r in client.update(updates)]
    except SlurmError:
        statuses = [NOT_SENT] * 4
    assert statuses[1:] == [NOT_SENT] * 3
    assert statuses[0] in (UNKNOWN, NOT_SENT)
    lab.restart("slurmctld")
    assert [r.status for r in client.update(updates)] == [APPLIED] * 4


def test_a_dead_munged_is_named_long_before_pyslurm_gives_up(
    lab: Lab, client: PyslurmClient, waiting: list[int]
) -> None:
    updates = [JobUpdate(job_id=j, site_factor=5) for j in waiting]
    client.update(updates)
    os.kill(lab.process("munged").pid, signal.SIGKILL)
    wait_until(lambda: not lab.process("munged").alive(), "it is dead")
    results = client.update(updates)
    assert [r.status for r in results] == [UNKNOWN, NOT_SENT, NOT_SENT, NOT_SENT]
    assert results[0].message.startswith(f"munged does not answer on {lab.directory}/run/munge.socket")
