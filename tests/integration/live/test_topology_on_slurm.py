"""Leaf switches and blocks of a real slurmctld: they are read, and --switches and --segment planned as Slurm acts."""

from __future__ import annotations

import pytest

from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.slurm_snapshot import LiveQueue, observe
from slurm_rl.decide import decide
from slurm_rl.lab.lab import Lab
from slurm_rl.lab.spec import parse_topology
from slurm_rl.slurm.cli import CliClient

from ..conftest import LabFactory
from .on_lab import until

pytestmark = [pytest.mark.slurm, pytest.mark.releases]


def submit(lab: Lab, *options: str) -> int:
    words = ("--parsable", "--exclusive", "-t", "60", "-o", "/dev/null", *options, "--wrap", "sleep 600")
    return int(lab.run("sbatch", *words).strip().partition(";")[0])


def see(lab: Lab) -> LiveQueue:
    return observe(CliClient(lab.slurm_conf).snapshot(), RunTimes(), load_policy("fcfs").spec)


def planned(view: LiveQueue) -> set[int]:
    plan = decide(view.snapshot, load_policy("fcfs").spec, backfill="firstfit", placement="topology")
    return {view.jobs[s.job].job_id for s in plan.starts}


def running(lab: Lab, job: int) -> bool:
    return any(j.job_id == job and j.running for j in CliClient(lab.slurm_conf).snapshot().jobs)


def test_a_job_waits_for_one_switch_in_the_plan_and_in_slurm(start_lab: LabFactory) -> None:
    lab = start_lab("a100:4*6", topology=parse_topology("tree:2"))
    blockers = [submit(lab, f"--nodelist=a100-{n}") for n in (1, 3, 5)]
    until(lambda: all(running(lab, b) for b in blockers), "a node under each switch is taken")
    one = submit(lab, "-N2", "--switches=1")
    any_two = submit(lab, "-N2", "--nodelist=a100-2,a100-4", "-t", "10")  # over before the others: backfill lets it
    view = see(lab)
    state = view.state
    assert [state.topology[f"a100-{n}"] for n in range(1, 7)] == ["s1", "s1", "s2", "s2", "s3", "s3"]
    assert {j.job_id: j.switches for j in state.jobs if j.pending or j.job_id == one}[one] == 1
    # Three nodes are free, no two of them under one switch: neither the plan nor Slurm starts the job.
    assert one not in planned(view)
    until(lambda: running(lab, any_two), "two nodes under two switches do for another job")
    assert not running(lab, one)
    lab.run("scancel", str(any_two), str(blockers[2]))
    until(lambda: all(j.job_id not in (any_two, blockers[2]) for j in see(lab).state.jobs), "they are gone")
    again = see(lab)
    if not running(lab, one) and not any(j.job_id == one and j.running for j in again.state.jobs):
        assert one in planned(again)
    until(lambda: running(lab, one), "it has started under the third switch")
    (job,) = [j for j in see(lab).state.jobs if j.job_id == one]
    assert {state.topology[n] for n in job.node_list} == {"s3"}


@pytest.mark.releases("24.11", "26.05")  # 22.05 has no topology/block
def test_blocks_are_read_and_segments_kept(start_lab: LabFactory, slurm_release: str) -> None:
    lab = start_lab("a100:4*6", topology=parse_topology("block:3"))
    blockers = [submit(lab, f"--nodelist=a100-{n}") for n in (1, 2)]
    until(lambda: all(running(lab, b) for b in blockers), "two nodes of the first block are taken")
    job = submit(lab, "-N4", "--segment=2")
    view = see(lab)
    assert [view.state.topology[f"a100-{n}"] for n in range(1, 7)] == ["b1", "b1", "b1", "b2", "b2", "b2"]
    (seen,) = [j for j in view.jobs if j.job_id == job]
    assert seen.segment == (2 if slurm_release.startswith("26.05") else 0)
    # Four nodes are free, one of them in the first block: two segments of two have no room.
    if seen.segment:
        assert job not in planned(view)
    assert not running(lab, job)
