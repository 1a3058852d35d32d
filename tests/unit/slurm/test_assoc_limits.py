"""The limit that binds: read from what `scontrol show assoc_mgr` prints (22.05, cut down)."""

from __future__ import annotations

import msgspec
import pytest

from slurm_rl.controller.explain.limits_seen import LimitsSeen
from slurm_rl.controller.live import SAMPLE, described
from slurm_rl.slurm.assoc_limits import binding_limits, is_limit
from slurm_rl.slurm.model import SlurmJob

SAID = """Current Association Manager state

User Records

UserName=ann(1000) DefAccount=lab DefWckey= AdminLevel=None

Association Records

ClusterName=c Account=root UserName= Partition= Priority=0 ID=1
    ParentAccount= Lft=1 DefAssoc=No
    GrpJobs=N(9) GrpJobsAccrue=N(0)
    GrpTRES=cpu=N(40),mem=N(4000),node=N(3),gres/gpu=100(44)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=c Account=lab UserName= Partition= Priority=0 ID=4
    ParentAccount=root(1) Lft=4 DefAssoc=No
    GrpJobs=10(9) GrpJobsAccrue=N(0)
    GrpTRES=cpu=64(62),mem=N(4000),node=N(3),gres/gpu=40(40)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=c Account=lab UserName=ann(1000) Partition= Priority=0 ID=5
    ParentAccount= Lft=5 DefAssoc=Yes
    GrpJobs=N(2) GrpJobsAccrue=N(0)
    GrpTRES=cpu=N(8),mem=N(800),node=N(1),gres/gpu=N(4)
    MaxJobs=2(2) MaxJobsAccrue= MaxSubmitJobs=5(3) MaxWallPJ=

QOS Records

QOS=normal(1)
    UsageRaw=0.000000
    GrpJobs=N(9) GrpJobsAccrue=N(0) GrpSubmitJobs=N(9) GrpWall=N(0.00)
    GrpTRES=cpu=N(40),mem=N(4000),node=N(3),gres/gpu=48(44)
    MaxWallPJ=
    MaxTRESPU=gres/gpu=4
    User Limits
      ann(1000)
        MaxJobsPU=N(2) MaxJobsAccruePU=N(0) MaxSubmitJobsPU=N(3)
        MaxTRESPU=cpu=N(8),mem=N(800),gres/gpu=4(4)
QOS=long(2)
    GrpTRES=gres/gpu=1(1)
"""


def a_job(reason: str, gpus: int = 8) -> SlurmJob:
    return SlurmJob(
        job_id=7, user="ann", account="lab", qos="normal", reason=reason, gpus={"a100": gpus}, cpus=4, nodes=1
    )


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("AssocGrpGRES", ["account lab: 40 of 40 GPUs in use; this job asks for 8"]),
        ("AssocGrpCpuLimit", ["account lab: 62 of 64 CPUs in use; this job asks for 4"]),
        ("QOSGrpGRES", ["QOS normal: 44 of 48 GPUs in use; this job asks for 8"]),
        ("QOSMaxGRESPerUser", ["ann in QOS normal: 4 of 4 GPUs in use; this job asks for 8"]),
        ("AssocMaxJobsLimit", ["user ann in account lab: 2 of 2 running jobs in use; this job asks for 1"]),
        ("QOSGrpMemLimit", []),
        ("Priority", []),
        ("AssocGrpCPUMinutesLimit", []),
    ],
)
def test_the_limit_that_binds_is_told_with_its_numbers(reason: str, said: list[str]) -> None:
    assert [str(b) for b in binding_limits(a_job(reason), SAID)] == said


def test_a_limit_with_room_does_not_bind() -> None:
    assert binding_limits(a_job("QOSGrpGRES", gpus=2), SAID) == []
    assert binding_limits(a_job("QOSGrpGRES"), "") == []


def test_reasons_that_are_limits() -> None:
    assert is_limit("QOSGrpGRES")
    assert is_limit("(AssocMaxJobsLimit)")
    assert not is_limit("Resources")


class Told:
    """A client that tells SAID of its limits."""

    def assoc_mgr(self) -> str:
        return SAID


@pytest.mark.parametrize(
    ("reason", "private", "numbers"),
    [
        ("AssocGrpGRES", "none", True),
        ("AssocGrpGRES", "jobs", True),
        ("AssocGrpGRES", "jobs,usage", False),
        ("AssocGrpGRES", "accounts", False),
        ("QOSGrpGRES", "Usage,Users", False),
        ("QOSMaxGRESPerUser", "jobs,usage,users,accounts", True),
        ("AssocMaxJobsLimit", "usage", True),
    ],
)
def test_a_user_sees_others_numbers_only_where_slurm_shows_them(reason: str, private: str, numbers: bool) -> None:
    """What only the user's own jobs count in is always told; admins see everything."""
    job, seen = a_job(reason), LimitsSeen()
    state = described(SAMPLE)
    state = msgspec.structs.replace(state, jobs=(msgspec.structs.replace(job, state="PENDING"),))
    seen.see(Told(), msgspec.structs.replace(state, config={"PrivateData": private}))  # type: ignore[arg-type]
    (limit,) = seen.of(job, to_user=True)
    (whole,) = seen.of(job)
    assert whole["used"] is not None
    assert (limit == whole) is numbers
    if not numbers:
        assert limit["used"] is limit["allowed"] is None
        assert limit["text"] == f"{whole['owner']}: the limit on GPUs is reached"
