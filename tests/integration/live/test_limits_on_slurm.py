"""QOS limits and licences on a real slurmctld: a plan holds back what Slurm holds back, and what is planned starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.explain.limits_seen import LimitsSeen
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.slurm_snapshot import observe
from slurm_rl.decide import decide
from slurm_rl.lab.lab import Lab
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.reasons import keeps_back

from ..conftest import LabFactory, empty_queue
from .on_lab import until
from .test_placement_on_slurm import _AT_WORK, _RESTING, jobs_of, rest, restart, submit

pytestmark = [pytest.mark.slurm, pytest.mark.releases]

QOS = {"small": "MaxTRESPerUser=gres/gpu=3", "single": "GrpJobs=1", "brief": "MaxTRESPerJob=cpu=2"}
# Of each kind the jobs that Slurm lets start, in order, and those that it holds back.
START, HOLD = "start", "hold"
JOBS = (
    ("--qos=small --gpus=2", START),
    ("--qos=small --gpus=2", HOLD),
    ("--qos=small --gpus=1", START),
    ("--qos=single --gpus=1", START),
    ("--qos=single --gpus=1", HOLD),
    ("--qos=brief -n4", HOLD),
    ("-L matlab:2", START),
    ("-L matlab:2", HOLD),
    ("-L matlab:1", START),
    ("--gpus=1", START),
)


@pytest.fixture(scope="module")
def limited_lab(session_labs: LabFactory) -> Lab:
    enforce = "AccountingStorageEnforce=associations,limits,qos"
    lab = session_labs("a100:4*2", accounting=True, extra_conf=(_RESTING, enforce, "Licenses=matlab:3"))
    for name, limit in QOS.items():
        lab.run("sacctmgr", "-i", "add", "qos", name)
        lab.run("sacctmgr", "-i", "modify", "qos", name, "set", limit)
    lab.run("sacctmgr", "-i", "modify", "user", "root", "set", f"qos+={','.join(QOS)}")
    until(lambda: all(f"QOS={n}(" in lab.run("scontrol", "show", "assoc_mgr") for n in QOS), "slurmctld knows the QOS")
    return lab


@pytest.fixture
def lab(limited_lab: Lab) -> Iterator[Lab]:
    rest(limited_lab)
    yield limited_lab
    empty_queue(limited_lab)


def planned(lab: Lab) -> set[int]:
    """Ids of the jobs that a plan starts now, with what a tick reads of limits."""
    client, seen = CliClient(lab.slurm_conf), LimitsSeen()
    state = client.snapshot()
    seen.see(client, state)
    queue = observe(state, RunTimes(), load_policy("fcfs").spec, limits=seen.in_force)
    plan = decide(queue.snapshot, load_policy("fcfs").spec, backfill="firstfit")
    return {queue.jobs[s.job].job_id for s in plan.starts}


def test_a_plan_holds_back_what_slurm_holds_back(lab: Lab) -> None:
    jobs = [(submit(lab, *options.split()), fate) for options, fate in JOBS]
    start = {job for job, fate in jobs if fate == START}
    hold = {job for job, fate in jobs if fate == HOLD}
    # Slurm has not looked at these jobs yet: no reason tells who will be held back.
    assert not any(keeps_back(j.reason) for j in jobs_of(lab).values())
    assert planned(lab) == start
    restart(lab, _RESTING, _AT_WORK)
    until(lambda: all(jobs_of(lab)[j].running for j in start), "what was planned has started", 120)
    until(lambda: all(keeps_back(jobs_of(lab)[j].reason) for j in hold), "Slurm says why it holds the others back", 120)
    assert not any(jobs_of(lab)[j].running for j in hold)
    assert planned(lab) == set(), "there are free GPUs, and limits for all who wait"
