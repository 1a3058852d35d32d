"""Undo on a real slurmctld: also of jobs whose factor Slurm does not show, and of jobs that were requeued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.tick import Controller
from slurm_rl.controller.undo import undo
from slurm_rl.errors import SlurmError
from slurm_rl.lab import service
from slurm_rl.lab.lab import Lab
from slurm_rl.lab.spec import PluginMode
from slurm_rl.obs.journal import Change, Journal
from slurm_rl.serve.ask import ask
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import JobUpdate

from ..conftest import LabFactory, empty_queue
from .on_lab import fill, submit_mixed, until

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def four_nodes(session_labs: LabFactory) -> Lab:
    return session_labs("a100:8*2,t4:4*2")


@pytest.fixture
def lab(four_nodes: Lab) -> Lab:
    empty_queue(four_nodes)
    fill(four_nodes, 4)
    return four_nodes


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite") as made:
        yield made


def a_controller(lab: Lab, journal: Journal, **settings: Any) -> Controller:
    given: dict[str, Any] = {"mode": "enforce", "policy": "sjf@limit", "updates_per_tick": 1000}
    config = Config(**(given | {"updates_per_second": 1e4} | settings))
    return Controller(config, CliClient(lab.slurm_conf), journal)


def sbatch(lab: Lab, *options: str, minutes: int = 5) -> int:
    given = ("--parsable", "--output=/dev/null", "--mem=1G", "--gpus=1", f"--time={minutes}")
    return int(lab.run("sbatch", *given, *options, "--wrap=exec sleep 300").strip())


def shown(lab: Lab) -> dict[int, int]:
    rows = (line.split() for line in lab.run("sprio", "-h", "-o", "%i %S").splitlines())
    return {int(job): int(site) for job, site in rows}


def hidden(lab: Lab, jobs: list[int]) -> None:
    """Puts jobs into the states in which sprio does not show them."""
    held, later, dependent, by_hand, *_ = jobs
    lab.run("scontrol", "hold", str(held))
    lab.run("scontrol", "update", f"JobId={later}", "StartTime=now+3600")
    lab.run("scontrol", "update", f"JobId={dependent}", f"Dependency=afterany:{held}")
    lab.run("scontrol", "update", f"JobId={by_hand}", "Priority=77")


def revealed(lab: Lab, jobs: list[int]) -> dict[int, int]:
    """Makes such jobs eligible again, and reads what Slurm then shows of them."""
    held, later, dependent, by_hand, *_ = jobs
    lab.run("scontrol", "release", str(held))
    lab.run("scontrol", "update", f"JobId={later}", "StartTime=now")
    lab.run("scontrol", "update", f"JobId={dependent}", "Dependency=")
    lab.run("scontrol", "hold", str(by_hand))
    lab.run("scontrol", "release", str(by_hand))
    until(lambda: set(jobs) <= set(shown(lab)), "all are eligible")
    return {job: site for job, site in shown(lab).items() if job in jobs}


@pytest.mark.parametrize("way", ["undo", "undo --all", "shadow", "off"])
def test_factors_that_slurm_does_not_show_are_taken_back(lab: Lab, journal: Journal, way: str) -> None:
    jobs = [sbatch(lab, minutes=m) for m in (30, 25, 20, 15, 10, 5)]
    c = a_controller(lab, journal)
    c.tick()
    before = shown(lab)
    assert len([j for j in jobs if before[j]]) >= 5
    hidden(lab, jobs)
    until(lambda: not any(shown(lab).get(j) for j in jobs[:4]), "sprio shows them no more")
    if way.startswith("undo"):
        done = undo(CliClient(lab.slurm_conf), journal, everything=way == "undo --all")
        assert done.complete
        assert done.touched == done.returned + done.gone
        assert done.acknowledged >= sum(before[j] != 0 for j in jobs[:4])
    else:
        c.command(way, "a test")
        c.tick()
    assert set(revealed(lab, jobs).values()) == {0}


def test_what_somebody_else_set_stays(lab: Lab, journal: Journal) -> None:
    ours, theirs = sbatch(lab, minutes=9), sbatch(lab, minutes=8)
    a_controller(lab, journal).tick()
    undo(CliClient(lab.slurm_conf), journal)
    lab.run("scontrol", "update", f"JobId={theirs}", "SiteFactor=321")
    lab.run("scontrol", "hold", str(ours))
    lab.run("scontrol", "update", f"JobId={ours}", "SiteFactor=123")
    assert undo(CliClient(lab.slurm_conf), journal).touched == 0
    lab.run("scontrol", "release", str(ours))
    until(lambda: ours in shown(lab), "it is eligible")
    assert (shown(lab)[ours], shown(lab)[theirs]) == (123, 321)
    assert undo(CliClient(lab.slurm_conf), journal).touched == 0


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_requeued_job_does_not_come_back_with_a_factor(lab: Lab, journal: Journal, moment: str) -> None:
    """It has another submit time, and waits two minutes until it may start: Slurm shows nothing of it meanwhile."""
    empty_queue(lab)
    client = CliClient(lab.slurm_conf)
    fill(lab, 4)
    jobs = [sbatch(lab, minutes=m) for m in (20, 10, 5)]
    until(lambda: set(jobs) <= set(shown(lab)), "they wait")
    a_controller(lab, journal).tick()
    count = sum(shown(lab)[j] != 0 for j in jobs)
    assert count >= 2
    lab.run("scancel", "--name=fill")
    until(lambda: all(j.running for j in client.snapshot().jobs if j.job_id in jobs), "they run")
    if moment == "after":
        done = undo(client, journal)
        assert (done.complete, done.acknowledged) == (True, count)
    lab.run("scontrol", "requeue", ",".join(map(str, jobs)))
    until(lambda: all(j.restarts and j.pending for j in client.snapshot().jobs if j.job_id in jobs), "they wait again")
    if moment == "before":
        done = undo(client, journal)
        assert (done.complete, done.acknowledged) == (True, count)
    fill(lab, 4)
    for job in jobs:
        lab.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    until(lambda: set(jobs) <= set(shown(lab)), "they are eligible")
    assert {shown(lab)[j] for j in jobs} == {0}


def test_a_job_in_special_exit_is_found(lab: Lab, journal: Journal) -> None:
    empty_queue(lab)
    client = CliClient(lab.slurm_conf)
    job = sbatch(lab)
    until(lambda: any(j.running for j in client.snapshot().jobs), "it runs")
    now = time.time()
    token = journal.acquire("test", now, 60)
    assert token is not None
    submitted = next(j.submit_time for j in client.snapshot().jobs if j.job_id == job)
    journal.intend(1, token, now, [Change(job, submitted or 0, 0, 99, "as a tick would")])
    client.update([JobUpdate(job_id=job, site_factor=99)])
    lab.run("scontrol", "requeuehold", "State=SpecialExit", str(job))
    until(lambda: any(j.state == "SPECIAL_EXIT" for j in client.snapshot().jobs), "it is set aside")
    assert undo(client, journal).acknowledged == 1
    fill(lab, 4)
    lab.run("scontrol", "release", str(job))
    lab.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    until(lambda: job in shown(lab), "it is eligible")
    assert shown(lab)[job] == 0


def test_a_way_back_that_was_broken_off_is_taken_again(lab: Lab, journal: Journal) -> None:
    """slurmctld stops in the middle of it: nothing is believed to be done, and nothing is forgotten."""
    jobs = [sbatch(lab, minutes=m) for m in (30, 20, 10)]
    a_controller(lab, journal).tick()
    for job in jobs:
        lab.run("scontrol", "hold", str(job))
    client = CliClient(lab.slurm_conf, timeout=2.0)
    pid, update = lab.process("slurmctld").pid, client.update

    def stops(updates: Any) -> Any:
        os.kill(pid, signal.SIGSTOP)
        try:
            return update(updates)
        finally:
            os.kill(pid, signal.SIGCONT)

    client.update = stops  # type: ignore[method-assign]
    with pytest.raises(SlurmError, match="answer"):
        undo(client, journal)
    assert journal.touched(), "the journal still knows them"
    assert undo(CliClient(lab.slurm_conf), journal).complete
    for job in jobs:
        lab.run("scontrol", "release", str(job))
    until(lambda: set(jobs) <= set(shown(lab)), "all are eligible")
    assert {shown(lab)[j] for j in jobs} == {0}


def test_with_the_plugin_nothing_is_left_of_any_kind_of_submission(start_lab: LabFactory) -> None:
    lab = start_lab("a100:8*2,t4:4*2", plugin=PluginMode.ENFORCE)
    socket = service.socket_path(lab.directory)
    until(lambda: ask(socket, "GET", "/readyz")[0] == 200, "the service is ready", 300)
    fill(lab, 4)
    for _ in range(4):
        first = sbatch(lab, minutes=7)
        for options in (["-H"], ["--begin=now+1hour"], [f"--dependency=afterany:{first}"], ["--array=1-3"]):
            sbatch(lab, *options)
    program = ("sh", "-c", f"exec '{sys.executable}' -m slurm_rl undo --config {service.config_path(lab.directory)}")
    said = lab.run(*program, timeout=120)
    print(said)
    time.sleep(1)
    client = CliClient(lab.slurm_conf)
    for job in client.snapshot().jobs:
        if job.pending:
            name = str(job.job_id)
            lab.run("scontrol", "release", name)
            lab.run("scontrol", "update", f"JobId={name}", "StartTime=now")
            lab.run("scontrol", "update", f"JobId={name}", "Dependency=")
    until(lambda: all(j.factors for j in client.snapshot().jobs if j.pending), "all are eligible")
    assert {j.site_factor for j in client.snapshot().jobs if j.pending} == {0}


@pytest.mark.soak
def test_every_job_is_counted_while_the_queue_changes(start_lab: LabFactory, tmp_path: Path) -> None:
    """498 jobs with a factor; meanwhile jobs start, end, are cancelled, held and submitted, and the writer is killed.

    What is touched is returned, gone, left or unverified, each once, and nothing of ours is left.
    """
    lab = start_lab("a100:8*2,v100:8*2")
    client = CliClient(lab.slurm_conf)
    for turn in range(4):
        fill(lab, 4)
        submit_mixed(lab, 498)
        path = tmp_path / f"journal-{turn}"
        with Journal(path) as journal:
            a_controller(lab, journal).tick()
        factored = {job for job, site in shown(lab).items() if site}
        with Journal(path) as journal:
            a_controller(lab, journal, updates_per_tick=100).tick()
            pending = sorted(factored)
            lab.run("scontrol", "hold", ",".join(map(str, pending[:40])))
            # Every node is freed, so that jobs start, while a sixth of the queue is cancelled and new jobs come.
            churn = subprocess.Popen(
                ["sh", "-c", f"scancel -n fill; for j in {' '.join(map(str, pending[40::6]))}; do scancel $j; done"],
                env=lab.env(),
            )
            submit_mixed(lab, 30)
            done = undo(client, journal)
            assert churn.wait(120) == 0
            print(f"{len(factored)} had a factor: {done}")
            assert done.touched == done.returned + done.gone + len(done.left) + len(done.unverified)
            assert done.complete
            assert done.touched > 300, "some are cancelled or start before it looks"
        held = pending[:40]
        lab.run("scontrol", "release", ",".join(map(str, held)))
        until(lambda held=set(held): held <= shown(lab).keys() | running(lab), "held jobs are shown again")
        assert not any(shown(lab).values())
        empty_queue(lab)


def running(lab: Lab) -> set[int]:
    return {int(job) for job in lab.run("squeue", "-h", "-t", "R,CG", "-o", "%A").split()}
