"""A live plan under the site's limits: what slurmctld would hold back takes nobody's place, also before it says so."""

from __future__ import annotations

import msgspec

from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.explain.limits_seen import LimitsSeen
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.slurm_snapshot import observe
from slurm_rl.decide import decide
from slurm_rl.slurm.model import SlurmPartition
from slurm_rl.slurm.site_limits import enforced, site_limits
from slurm_rl.slurm.squeue_more import job_licenses

from .fake_slurm import FakeSlurm, a_job, a_running_job

SAID = """Association Records

ClusterName=c Account=root UserName= Partition= Priority=0 ID=1
    ParentAccount= Lft=1 DefAssoc=No
    GrpJobs=N(9) GrpJobsAccrue=N(0)
    GrpTRES=cpu=N(40),mem=N(4000),node=N(3),gres/gpu=12(8)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=c Account=lab UserName= Partition= Priority=0 ID=4
    ParentAccount=root(1) Lft=4 DefAssoc=No
    GrpJobs=N(9) GrpJobsAccrue=N(0)
    GrpTRES=cpu=N(62),mem=N(4000),node=N(3),gres/gpu=N(8)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=c Account=lab UserName=ann(1000) Partition= Priority=0 ID=5
    ParentAccount= Lft=5 DefAssoc=Yes
    GrpJobs=N(2) GrpJobsAccrue=N(0)
    GrpTRES=cpu=N(8),mem=N(800),node=N(1),gres/gpu=N(4)
    MaxJobs=2(0) MaxJobsAccrue= MaxSubmitJobs=5(3) MaxWallPJ=

QOS Records

QOS=normal(1)
    UsageRaw=0.000000
    GrpJobs=N(9) GrpJobsAccrue=N(0) GrpSubmitJobs=N(9) GrpWall=N(0.00)
    GrpTRES=cpu=N(40),mem=N(4000),node=N(3),gres/gpu=N(44)
    MaxWallPJ=
    MaxTRESPJ=node=2
    MaxTRESPN=
    Account Limits
      lab
        MaxJobsPA=N(2) MaxJobsAccruePA=N(0) MaxSubmitJobsPA=N(3)
        MaxTRESPA=cpu=N(8),mem=N(800),gres/gpu=N(0)
    User Limits
      ann(1000)
        MaxJobsPU=N(2) MaxJobsAccruePU=N(0) MaxSubmitJobsPU=N(3)
        MaxTRESPU=cpu=N(8),mem=N(800),gres/gpu=3(0)
"""
LICENCES = "LicenseName=matlab\n    Total=4 Used=1 Free=3 Reserved=1 Remote=no\n"


def planned(slurm: FakeSlurm) -> list[int]:
    """Ids of the jobs that a plan starts, one tick's reads before it."""
    seen = LimitsSeen()
    state = slurm.snapshot()
    seen.see(slurm, state)
    queue = observe(state, RunTimes(), load_policy("fcfs").spec, limits=seen.in_force)
    plan = decide(queue.snapshot, load_policy("fcfs").spec)
    assert len(plan.order) == len(queue.snapshot.pending)  # whoever is held back still has a place in the order
    return [queue.jobs[s.job].job_id for s in plan.starts]


def test_a_user_s_limit_is_counted_as_the_plan_fills_it() -> None:
    """Three GPUs for a user of QOS normal: the second job would be the fourth GPU, the third still fits."""
    jobs = [a_job(i, gpus=gpus, waited=100 - i, qos="normal") for i, gpus in ((1, 2), (2, 2), (3, 1))]
    slurm = FakeSlurm(*jobs, AccountingStorageEnforce="associations,limits,qos")
    slurm.limits = SAID
    assert planned(slurm) == [1, 3]
    slurm.config.pop("AccountingStorageEnforce")
    assert planned(slurm) == [1, 2, 3]


def test_what_runs_counts_and_what_completes_does_not() -> None:
    """The root account may hold twelve GPUs: eight run, so that a job of five must wait, until they complete."""
    running = a_running_job(9, gpus=8)
    slurm = FakeSlurm(
        running, a_job(1, gpus=5, user="eve"), a_job(2, gpus=4, user="bob"), AccountingStorageEnforce="safe"
    )
    slurm.limits = SAID
    assert planned(slurm) == [2]
    slurm.jobs[9] = msgspec.structs.replace(running, state="COMPLETING")
    assert planned(slurm) == [1]  # beside which the free node has no room for the other


def test_a_job_too_large_for_its_qos_takes_nobody_s_place() -> None:
    large = a_job(1, gpus=0, nodes=3, cpus=192, qos="normal", user="eve")
    slurm = FakeSlurm(large, a_job(2, gpus=1, user="eve"), nodes=3, AccountingStorageEnforce="limits")
    slurm.limits = SAID
    assert planned(slurm) == [2]


def test_licences_hold_jobs_back() -> None:
    """Four in all, one reserved, one in use: two are left for jobs."""
    jobs = [a_job(i, waited=100 - i) for i in (1, 2, 3)]
    slurm = FakeSlurm(a_running_job(9), *jobs, Licenses="matlab:4")
    slurm.licenses_said = (LICENCES, {9: {"matlab": 1}, 1: {"matlab": 2}, 2: {"matlab": 1}})
    assert planned(slurm) == [1, 3]


def test_limits_are_read_from_what_slurm_prints() -> None:
    limits = site_limits(SAID, LICENCES, [SlurmPartition(name="p", state="UP", qos="normal")])
    assert limits.qos["normal"].max_tres_user == {"gres/gpu": 3.0}
    assert limits.qos["normal"].max_tres_job == {"node": 2.0}
    assert limits.qos["normal"].grp_tres == {}
    assert limits.association["ann", "lab"].max_jobs_user == 2
    assert limits.account["root"].grp_tres == {"gres/gpu": 12.0}
    assert limits.above("lab") == ("lab", "root")
    assert limits.licenses == {"matlab": 3}
    assert limits.partition["p"].qos == "normal"
    assert site_limits("", "", ()).licenses is None


def test_which_settings_enforce_limits() -> None:
    assert enforced("associations,limits,qos")
    assert enforced("all")
    assert not enforced("associations")
    assert not enforced("none")


def test_licences_of_jobs_are_read_from_squeue() -> None:
    assert job_licenses("7|matlab:2,ansys|\n8|(null)|\n", "|") == {7: {"matlab": 2, "ansys": 1}}
