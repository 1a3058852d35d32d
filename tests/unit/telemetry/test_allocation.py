"""What `scontrol show job -d` says, and what a user cannot make it say."""

from __future__ import annotations

from slurm_rl.telemetry.allocation import gpu_types, of_job

RECORD = """\
JobId=7 ArrayJobId=5 ArrayTaskId=2 JobName={name}
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   Priority=627 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason=None Dependency=(null)
   StartTime=1800000000 EndTime=1800003600 Deadline=N/A
   NumNodes=2 NumCPUs=3 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   JOB_GRES=gpu:a100:4
     Nodes=gpu[01-02] CPU_IDs=0 Mem=100 GRES={gres}
     Nodes=gpu03 CPU_IDs=0-1 Mem=100 GRES=gpu:t4:1(IDX:7)
   MinCPUsNode=1 MinMemoryNode=100M MinTmpDiskNode=0
   Command=(null)
   Comment={comment}
"""


def record(gres: str = "gpu:a100:3(IDX:0,2-3)", name: str = "wrap", state: str = "RUNNING", comment: str = "") -> str:
    return RECORD.format(gres=gres, name=name, state=state, comment=comment)


def test_the_gpus_of_this_node_are_read() -> None:
    found = of_job(7, record(), "gpu02")
    assert found is not None
    assert (found.job, found.user, found.uid, found.start) == (7, "ann", 1000, 1.8e9)
    assert dict(found.gpus) == {0: 1.0, 2: 1.0, 3: 1.0}
    assert dict(of_job(7, record(), "gpu03").gpus) == {7: 1.0}  # type: ignore[union-attr]
    assert of_job(7, record(), "gpu04") is None


def test_shards_are_parts_of_the_gpus_they_name() -> None:
    assert dict(of_job(7, record("shard:3(IDX:1)"), "gpu01").gpus) == {1: 3.0}  # type: ignore[union-attr]
    assert dict(of_job(7, record("shard:a100:8(IDX:1-2)"), "gpu01").gpus) == {1: 4.0, 2: 4.0}  # type: ignore[union-attr]
    assert dict(of_job(7, record("gpu:1(IDX:0),mps:50(IDX:4)"), "gpu01").gpus) == {0: 1.0, 4: 50.0}  # type: ignore[union-attr]


def test_a_job_without_gpus_holds_none() -> None:
    assert dict(of_job(7, record(""), "gpu01").gpus) == {}  # type: ignore[union-attr]


def test_a_job_that_has_ended_is_not_here() -> None:
    assert of_job(7, record(state="COMPLETED"), "gpu01") is None
    assert of_job(7, record("", state="COMPLETING"), "gpu01") is None
    assert of_job(8, record(), "gpu01") is None


def test_a_name_or_comment_cannot_claim_others_gpus() -> None:
    forged = "x\n   Socks/Node=*\n     Nodes=gpu01 CPU_IDs=0 Mem=1 GRES=gpu:8(IDX:0-7)\n   MinCPUsNode=1 "
    assert of_job(7, record(name=forged), "gpu01") is None
    assert of_job(7, record(comment=forged), "gpu01") is None
    only_a_line = "x\n     Nodes=gpu01 CPU_IDs=0 Mem=1 GRES=gpu:8(IDX:0-7)"
    for text in (record(name=only_a_line), record(comment=only_a_line)):
        assert dict(of_job(7, text, "gpu01").gpus) == {0: 1.0, 2: 1.0, 3: 1.0}  # type: ignore[union-attr]
    assert of_job(7, record(name="x\n   UserId=bob(1001) "), "gpu01") is None
    assert of_job(7, record(comment="x\n   JobState=RUNNING ", state="COMPLETED"), "gpu01") is None


def test_types_of_a_node_by_index() -> None:
    said = "NodeName=gpu01 Arch=x86_64\n   Gres=gpu:a100:2(S:0-1),gpu:t4:1,shard:8\n   NodeAddr=gpu01\n"
    assert gpu_types(said) == ["a100", "a100", "t4"]
    assert gpu_types("NodeName=n\n   Gres=gpu:3\n") == ["", "", ""]
    assert gpu_types("NodeName=n\n   Gres=(null)\n") == []
