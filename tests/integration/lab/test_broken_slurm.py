"""Slurm dies, hangs or is misconfigured: every call ends soon, with one clear error and true results."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_rl.errors import SlurmError
from slurm_rl.lab.lab import Lab
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import JobUpdate, SlurmJob, UpdateStatus

from .conftest import sbatch, separate_jobs, wait_until

pytestmark = pytest.mark.slurm
StartLab = Callable[..., Lab]
TIMEOUT = 3.0
# A call may ask who is silent while it waits, which takes up to one more second.
BOUND = TIMEOUT + 3.0


@pytest.fixture(scope="module")
def broken(session_labs: StartLab) -> Lab:
    """A lab of this module's own: its slurmctld and munged are stopped and killed."""
    return session_labs("a100:8*1", run_nodes=False)


@pytest.fixture
def lab(broken: Lab) -> Iterator[Lab]:
    """The lab with everything running, before the test and after it."""
    yield broken
    for name in ("munged", "slurmctld"):
        process = broken.process(name)
        if process.alive():
            os.kill(process.pid, signal.SIGCONT)
        else:
            broken.restart(name)
    wait_until(lambda: CliClient(broken.slurm_conf).health().up, "slurmctld answers again")


@pytest.fixture
def client(lab: Lab) -> CliClient:
    return CliClient(lab.slurm_conf, timeout=TIMEOUT)


def every_call_fails(client: CliClient, complaint: str) -> None:
    """Snapshot, update and health end in time and say what is wrong."""
    calls: dict[str, Callable[[], object]] = {
        "snapshot": client.snapshot,
        "update": lambda: client.update([JobUpdate(job_id=1, site_factor=1), JobUpdate(job_id=2, site_factor=1)]),
    }
    for name, call in calls.items():
        began = time.monotonic()
        with pytest.raises(SlurmError, match=complaint):
            call()
        assert time.monotonic() - began <= BOUND, name
    began = time.monotonic()
    health = client.health()
    assert time.monotonic() - began <= BOUND
    assert not health.up


def test_slurmctld_hangs(lab: Lab, client: CliClient) -> None:
    client.release()
    os.kill(lab.process("slurmctld").pid, signal.SIGSTOP)
    every_call_fails(client, r"no answer within \d.* hangs")


def test_slurmctld_is_dead(lab: Lab, client: CliClient) -> None:
    client.release()
    os.kill(lab.process("slurmctld").pid, signal.SIGKILL)
    wait_until(lambda: not lab.process("slurmctld").alive(), "it is dead")
    every_call_fails(client, r"Slurmctld\(primary\) at .* is DOWN")


def test_munged_is_dead(lab: Lab, client: CliClient) -> None:
    client.release()
    os.kill(lab.process("munged").pid, signal.SIGKILL)
    wait_until(lambda: not lab.process("munged").alive(), "it is dead")
    every_call_fails(client, rf"munged does not answer on {lab.directory}/run/munge\.socket")


def test_wrong_slurm_conf(lab: Lab, tmp_path: Path) -> None:
    every_call_fails(CliClient(tmp_path / "none.conf", timeout=TIMEOUT), "SLURM_CONF=.*none.conf cannot be read")
    garbage = tmp_path / "garbage.conf"
    garbage.write_text("this is no configuration\n")
    every_call_fails(CliClient(garbage, timeout=TIMEOUT), "check SLURM_CONF")
    elsewhere = tmp_path / "elsewhere.conf"
    port = next(line for line in lab.slurm_conf.read_text().splitlines() if line.startswith("SlurmctldPort="))
    elsewhere.write_text(lab.slurm_conf.read_text().replace(port, "SlurmctldPort=1"))
    every_call_fails(CliClient(elsewhere, timeout=TIMEOUT), "is DOWN")


def test_slurmctld_killed_in_the_middle_of_a_batch(lab: Lab, client: CliClient) -> None:
    """Some are applied, the one under way is unknown, the rest was not sent; the next batch puts all right."""
    separate_jobs(lab, 1500, "--gpus=a100:8")
    submitted = time.time()
    saved = lab.directory / "state" / "job_state"
    wait_until(lambda: saved.exists() and saved.stat().st_mtime > submitted, "slurmctld has saved the jobs")

    def waiting() -> list[SlurmJob]:
        return [j for j in client.snapshot().jobs if j.pending]

    wait_until(lambda: all(j.factors is not None for j in waiting()), "sprio shows all jobs")
    jobs = waiting()
    assert len(jobs) >= 1500
    killed = []

    def kill_once_some_are_written() -> None:
        wait_until(lambda: any(CliClient(lab.slurm_conf).site_factors().values()), "the first factors are there")
        os.kill(lab.process("slurmctld").pid, signal.SIGKILL)
        killed.append(time.monotonic())

    killer = threading.Thread(target=kill_once_some_are_written)
    killer.start()
    results = client.update([JobUpdate.of(j, site_factor=-1000 - j.job_id) for j in jobs])
    ended = time.monotonic()
    killer.join()
    assert ended - killed[0] <= BOUND
    assert [r.job_id for r in results] == [j.job_id for j in jobs]
    counts = Counter(r.status for r in results)
    assert counts[UpdateStatus.APPLIED] > 0
    assert counts[UpdateStatus.NOT_SENT] > 0
    assert 1 <= counts[UpdateStatus.UNKNOWN] <= 5
    assert counts[UpdateStatus.REFUSED] == 0
    # In the order given: applied ones first, then those whose answer was lost, then those never sent.
    rank = {UpdateStatus.APPLIED: 0, UpdateStatus.UNKNOWN: 1, UpdateStatus.NOT_SENT: 2}
    ranks = [rank[r.status] for r in results]
    assert ranks == sorted(ranks)

    lab.restart("slurmctld")
    wait_until(lambda: client.health().up, "slurmctld answers again")
    before = client.site_factors()
    untouched = [r.job_id for r in results if r.status is UpdateStatus.NOT_SENT]
    assert all(before.get(job_id, 0) == 0 for job_id in untouched)

    drift = [j for j in waiting() if j.site_factor != -1000 - j.job_id]
    assert {r.status for r in client.update([JobUpdate.of(j, site_factor=-1000 - j.job_id) for j in drift])} == {
        UpdateStatus.APPLIED
    }
    wait_until(lambda: all(j.site_factor is not None for j in waiting()), "sprio shows all jobs")
    assert {j.job_id: j.site_factor for j in waiting()} == {j.job_id: -1000 - j.job_id for j in jobs}


def test_after_it_all_the_lab_works(lab: Lab, client: CliClient) -> None:
    job_id = sbatch(lab, "--hold")
    assert client.update([JobUpdate(job_id=job_id, site_factor=3)])[0].applied
