"""Limits and licences, by hand: what a file says, who is held back, who is rejected, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import Job, a_cluster, a_job, a_trace, replay, starts

from slurm_rl.cli import main
from slurm_rl.domain.cluster import NodeClass
from slurm_rl.domain.limits import limits_from, read_limits
from slurm_rl.errors import InputError
from slurm_rl.traces.native import write_native
from slurm_rl.traces.read import read_trace
from slurm_rl_sim.limits import license_counts
from slurm_rl_sim.replay import parse_contenders, prepare
from slurm_rl_sim.replay import replay as run_replay

FOUR = a_cluster(4, cpus=1)


def held(jobs: list[Job], limits: dict[str, object], backfill: str = "easy") -> list[int]:
    return starts(FOUR, jobs, "fcfs", backfill, limits=limits_from(limits))


@pytest.mark.parametrize("backfill", ["none", "firstfit", "easy", "conservative", "slurm"])
def test_a_job_over_a_limit_lets_those_behind_it_pass(backfill: str) -> None:
    """L1, L3: ann may run one job; her second takes nobody's place, and starts when her first ends."""
    jobs = [a_job(0, 100, user="ann", qos="n"), a_job(1, 50, user="ann", qos="n"), a_job(2, 200, cpus=3, user="bob")]
    assert held(jobs, {"qos": {"n": {"MaxJobsPU": 1}}}, backfill) == [0, 100, 2]


def test_amounts_of_a_user_are_counted_from_what_runs() -> None:
    jobs = [a_job(0, 100, user="ann", qos="n", cpus=2), a_job(1, 10, user="ann", qos="n", cpus=2)]
    jobs += [a_job(2, 10, user="ann", qos="n"), a_job(3, 10, user="bob", qos="n", cpus=1)]
    assert held(jobs, {"qos": {"n": {"MaxTRESPerUser": "cpu=3"}}}) == [0, 100, 2, 3]


def test_an_account_counts_for_those_above_it() -> None:
    limits = {"account": {"lab": {"Parent": "dept"}, "dept": {"GrpJobs": 1}}}
    jobs = [a_job(0, 100, account="lab"), a_job(1, 10, account="dept"), a_job(2, 10, account="other")]
    assert held(jobs, limits) == [0, 100, 2]


def test_a_limit_of_the_qos_goes_before_the_account_s() -> None:
    limits = {"account": {"lab": {"GrpJobs": 1}}, "qos": {"big": {"GrpJobs": 2}}}
    jobs = [a_job(0, 100, account="lab"), a_job(1, 10, account="lab", qos="big"), a_job(2, 10, account="lab")]
    assert held(jobs, limits) == [0, 1, 100]


def test_the_qos_of_a_partition_goes_before_the_job_s() -> None:
    limits = {"qos": {"part": {"MaxJobsPU": 1}, "own": {"MaxJobsPU": 3}}, "partition": {"p": {"QOS": "part"}}}
    cluster = a_cluster(NodeClass(4, cpus=1, partition="p"))
    jobs = [a_job(0, 100, user="u", qos="own"), a_job(1, 10, user="u", qos="own")]
    assert starts(cluster, jobs, "fcfs", "easy", limits=limits_from(limits)) == [0, 100]
    limits["qos"]["own"]["Flags"] = "OverPartQOS"
    assert starts(cluster, jobs, "fcfs", "easy", limits=limits_from(limits)) == [0, 1]


def test_licences_are_shared_by_all_pools() -> None:
    """L5: an end in one pool lets a job start in another."""
    cluster = a_cluster(NodeClass(1, cpus=1, partition="p"), NodeClass(1, cpus=1, partition="q"))
    jobs = [a_job(0, 100, partition="p", licenses="x:2"), a_job(1, 10, partition="q", licenses="x")]
    assert starts(cluster, jobs, "fcfs", "easy", limits=limits_from({"licenses": {"x": 2}})) == [0, 100]


def test_one_submission_too_many_is_rejected() -> None:
    """L4: jobs that wait or run count, those that have ended do not."""
    jobs = [a_job(0, 10, user="u", qos="n"), a_job(1, 10, user="u", qos="n"), a_job(2, 10, user="u", qos="n")]
    jobs.append(a_job(11, 10, user="u", qos="n"))
    ran = replay(FOUR, jobs, "fcfs", "easy", limits=limits_from({"qos": {"n": {"MaxSubmitPU": 2}}}))
    assert [ran[j.id].state for j in jobs] == ["completed", "completed", "rejected", "completed"]


@pytest.mark.parametrize(
    ("job", "limits", "why"),
    [
        ({"cpus": 3}, {"qos": {"n": {"MaxTRESPJ": "cpu=2"}}}, "QOS n: MaxTRESPerJob of cpu is 2, it asks for 3"),
        ({"cpus": 3}, {"qos": {"n": {"GrpTRES": "cpu=2"}}}, "QOS n: GrpTRES of cpu is 2, it asks for 3"),
        ({"limit": 7200}, {"qos": {"n": {"MaxWall": "1:00:00"}}}, "QOS n: MaxWall is 3600 s, its time limit is 7200 s"),
        ({"nodes": 2, "cpus": 2}, {"partition": {"p": {"MaxNodes": 1}}}, "partition p: MaxNodes is 1, it asks for 2"),
        ({"licenses": "y"}, {"licenses": {"x": 1}}, "there is no licence 'y'"),
        ({"licenses": "x|y"}, {"licenses": {"x": 1}}, "licenses 'x|y' are not understood"),
    ],
)  # fmt: skip
def test_a_job_that_can_never_start_is_rejected_with_the_reason(
    job: dict[str, object], limits: dict[str, object], why: str
) -> None:
    cluster = a_cluster(NodeClass(4, cpus=1, partition="p"))
    rows = [a_job(0, 10, qos="n", **job), a_job(1, 10)]
    prepared = prepare(a_trace(rows), cluster, limits=limits_from(limits))
    assert prepared.workload.rejected == {0: why}
    (run,) = run_replay(prepared, parse_contenders("fcfs", "easy"))
    assert run.metrics["rejected"] == 1


def test_a_limit_that_was_made_up_never_breaks_max_wall() -> None:
    rows = [a_job(0, 10_000, limit=-1, qos="n")]
    prepared = prepare(a_trace(rows), FOUR, limits=limits_from({"qos": {"n": {"MaxWall": "0:10"}}}))
    assert not prepared.workload.rejected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[qos.n]\nMaxJobPU = 1", "qos.n: unknown limit 'MaxJobPU' (did you mean 'MaxJobsPU'?)"),
        ("[qos.n]\nGrpTRESMins = 'cpu=1'", "qos.n.GrpTRESMins: not modelled (leave it out; docs/limits.md says why)"),
        ("[qos.n]\nGrpTRES = 'billing=9'", "qos.n.GrpTRES: 'billing' is not counted"),
        ("[qos.n]\nGrpTRES = 'cpu'", "qos.n.GrpTRES: must be NAME=COUNT, got 'cpu'"),
        ("[qos.n]\nGrpJobs = -1", "qos.n.GrpJobs: must be a whole number ≥ 0, got -1"),
        ("[qos.n]\nMaxJobsPU = 1\nMaxJobsPerUser = 2", "qos.n.MaxJobsPerUser: said twice, under two names"),
        ("[qos.n]\nMaxWall = 'soon'", "qos.n.MaxWall: must be a time as Slurm writes it"),
        ("[account.a]\nParent = 'b'\n[account.b]\nParent = 'a'", "account.a.Parent: goes in a circle at 'a'"),
        ("[partition.p]\nQOS = 'none'", "partition.p.QOS: no such QOS: 'none'"),
        ("[licences]\nx = 1", "unknown section 'licences' (did you mean 'licenses'?)"),
        ("licenses = 3", "licenses: must be NAME = COUNT, got 3"),
        ("[qos", "not readable as TOML"),
    ],
)
def test_a_bad_file_gets_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_limits(path)
    assert str(error.value).startswith(f"{path}: {said}")
    write_native(a_trace([a_job(0, 10)]), tmp_path / "t.csv")
    (tmp_path / "t.cluster.json").write_text('[{"count": 1, "cpus": 1}]')
    with pytest.raises(SystemExit) as stop:
        main(["replay", str(tmp_path / "t.csv"), "--limits", str(path)])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


def test_json_says_the_same_as_toml(tmp_path: Path) -> None:
    (tmp_path / "l.json").write_text(json.dumps({"qos": {"n": {"GrpTRES": {"gres/gpu": 4}}}, "licenses": {"x": 2}}))
    (tmp_path / "l.toml").write_text("[qos.n]\nGrpTRES = 'gres/gpu=4'\n[licenses]\nx = 2\n")
    assert read_limits(tmp_path / "l.json") == read_limits(tmp_path / "l.toml")


def test_a_trace_keeps_its_licences(tmp_path: Path) -> None:
    write_native(a_trace([a_job(0, 10, licenses="x:2,y"), a_job(1, 10)]), tmp_path / "t.csv")
    assert read_trace(tmp_path / "t.csv").asked["licenses"].strings() == ["x:2,y", ""]
    assert license_counts("x:2,y,x") == {"x": 3, "y": 1}


def test_a_higher_tier_goes_first_whatever_the_scores() -> None:
    """M5."""
    cluster = a_cluster(NodeClass(1, cpus=1, partition="low,high"))
    jobs = [a_job(0, 10, partition="low"), a_job(1, 10, partition="low"), a_job(2, 10, partition="high")]
    tiers = {"low": {"PriorityTier": 1}, "high": {"PriorityTier": 2}}
    assert starts(cluster, jobs, "fcfs", "easy") == [0, 10, 20]
    assert starts(cluster, jobs, "fcfs", "easy", limits=limits_from({"partition": tiers})) == [0, 20, 10]


def test_the_factors_of_partitions_and_qos_count_in_multifactor() -> None:
    """M3, M4."""
    cluster = a_cluster(NodeClass(1, cpus=1, partition="p,q"))
    jobs = [a_job(0, 10, partition="p"), a_job(1, 10, partition="p"), a_job(2, 10, partition="q")]
    factors = {"p": {"PriorityJobFactor": 1}, "q": {"PriorityJobFactor": 10}}
    assert starts(cluster, jobs, "multifactor", "easy", limits=limits_from({"partition": factors})) == [0, 20, 10]
    jobs = [a_job(0, 10), a_job(1, 10), a_job(2, 10, qos="high")]
    limits = limits_from({"qos": {"high": {"Priority": 5}}})
    assert starts(cluster, jobs, "multifactor", "easy", limits=limits) == [0, 20, 10]


def test_limits_and_preemption_do_not_go_together() -> None:
    with pytest.raises(InputError, match="--preempt: not together with limits"):
        replay(FOUR, [a_job(0, 10)], "srpt", "easy", limits=limits_from({}), preempt=True)
