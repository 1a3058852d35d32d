"""Reservations, by hand: what a file says, who waits for which nodes, who is rejected, and what a live plan does."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Job, a_cluster, a_job, a_trace, replay, starts

from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.cli import main
from slurm_rl.domain.cluster import NodeClass
from slurm_rl.domain.reservations import Reservation, reservations_from
from slurm_rl.errors import InputError
from slurm_rl.slurm.scontrol import reservations as parsed
from slurm_rl.traces.native import write_native
from slurm_rl_sim.replay import prepare

RULES = ["none", "firstfit", "easy", "conservative", "slurm"]
TWO = a_cluster(2, cpus=2)


def kept(cluster_nodes: int = 2, **rows: dict[str, object]) -> tuple[Reservation, ...]:
    return reservations_from({"reservation": rows}, cluster_nodes)


@pytest.mark.parametrize("backfill", RULES)
def test_a_limit_that_reaches_into_a_reservation_keeps_a_job_off_its_nodes(backfill: str) -> None:
    """V1: node 0 is kept from 100 to 200; a job of 100 s fits before, one of 101 s goes to node 1."""
    reserved = kept(maint={"StartTime": 100, "EndTime": 200, "Nodes": "0", "Flags": "MAINT,IGNORE_JOBS"})
    fits, reaches = a_job(0, run=50, limit=100, cpus=2), a_job(0, run=50, limit=101, cpus=2)
    ran = replay(TWO, [fits], "fcfs", backfill, reservations=reserved)
    assert ran[fits.id].nodes == ((0, 2),)
    ran = replay(TWO, [reaches], "fcfs", backfill, reservations=reserved)
    assert (ran[reaches.id].start, ran[reaches.id].nodes) == (0, ((1, 2),))


@pytest.mark.parametrize("backfill", RULES)
def test_a_job_that_needs_all_nodes_waits_for_the_end(backfill: str) -> None:
    reserved = kept(maint={"StartTime": 100, "Duration": "1:40", "Nodes": "ALL"})
    assert starts(TWO, [a_job(50, run=60, cpus=4)], "fcfs", backfill, reservations=reserved) == [200]


def test_easy_reserves_for_its_head_behind_the_reservation() -> None:
    """V6: the head needs both nodes, and gets them at 200; who ends by then goes ahead, who does not, does not."""
    reserved = kept(maint={"StartTime": 100, "EndTime": 200, "Nodes": "0"})
    head, ends, lasts = a_job(50, run=60, cpus=4), a_job(51, run=149, cpus=1), a_job(52, run=150, cpus=1)
    assert starts(TWO, [head, ends, lasts], "fcfs", "easy", reservations=reserved) == [200, 51, 260]


@pytest.mark.parametrize("backfill", RULES)
def test_jobs_of_a_reservation_run_in_it_and_end_with_it(backfill: str) -> None:
    """V2, V4, V5: they wait for its begin, hold nobody up meanwhile, stay on its nodes, and are killed at its end."""
    reserved = kept(class_={"StartTime": 100, "EndTime": 200, "Nodes": "1", "Users": "ann"})
    inside = [a_job(0, run=60, limit=900, cpus=2, user="ann", reservation="class_") for _ in range(2)]
    other = a_job(1, run=20, cpus=2, user="bob")
    ran = replay(TWO, [*inside, other], "fcfs", backfill, reservations=reserved)
    assert [(ran[j.id].start, ran[j.id].end, ran[j.id].state) for j in inside] == [
        (100, 160, "completed"),
        (160, 200, "killed"),
    ]
    assert {n for j in inside for n, _ in ran[j.id].nodes} == {1}
    assert ran[other.id].start == 1


def test_a_full_reservation_closes_no_partition() -> None:
    """V4: its second job waits, and those outside start past it, also in strict order."""
    reserved = kept(r={"StartTime": 0, "EndTime": 1000, "Nodes": "0"})
    jobs = [a_job(0, run=100, cpus=2, reservation="r") for _ in range(2)] + [a_job(0, run=10, cpus=2)]
    for backfill in RULES:
        assert starts(TWO, jobs, "fcfs", backfill, reservations=reserved) == [0, 100, 0]


def test_slurm_closes_a_partition_only_for_a_job_that_could_run_beside_the_reservation() -> None:
    """V7: a job that could never fit beside it is passed over by the main scheduler; backfill comes at 30."""
    cluster = a_cluster(3, cpus=1)
    reserved = kept(3, r={"StartTime": 500, "EndTime": 600, "Nodes": "0,1"})
    first = a_job(0, run=400, cpus=1)
    two, one = a_job(1, run=600, cpus=2), a_job(2, run=10)
    options = SlurmSettings(bf_interval=1000)
    assert starts(cluster, [first, two, one], "fcfs", "slurm", "slurm", reservations=reserved, slurm=options)[2] == 2
    three = a_job(1, run=100, limit=400, cpus=3)  # it fits when the first has ended: its partition is closed
    found = starts(cluster, [first, three, one], "fcfs", "slurm", "slurm", reservations=reserved, slurm=options)
    assert found[2] > 2


def test_backfill_plans_behind_maintenance_of_the_whole_partition() -> None:
    """V8: the start is moved to the end of the maintenance, and a shorter job goes before it."""
    reserved = kept(m={"StartTime": 300, "EndTime": 900, "Nodes": "ALL", "Flags": "MAINT"})
    long, short = a_job(10, run=400, cpus=4), a_job(11, run=200, cpus=4)
    assert starts(TWO, [long, short], "fcfs", "slurm", "slurm", reservations=reserved) == [900, 11]


def test_overlap_and_flex_and_maint_let_jobs_of_a_reservation_into_others() -> None:
    """V3."""
    maint = {"StartTime": 0, "EndTime": 100, "Nodes": "0", "Flags": "MAINT"}
    plain = {"StartTime": 0, "EndTime": 100, "Nodes": "0"}
    for flags, other, expected in (
        ("", plain, 100),
        ("OVERLAP", plain, 0),
        ("OVERLAP", maint, 100),
        ("MAINT", maint, 0),
    ):
        reserved = kept(own={"StartTime": 0, "EndTime": 1000, "Nodes": "0", "Flags": flags}, other=other)
        assert starts(TWO, [a_job(0, run=10, reservation="own")], "fcfs", "easy", reservations=reserved) == [expected]
    flex = kept(own={"StartTime": 50, "EndTime": 90, "Nodes": "0", "Flags": "FLEX"})
    jobs = [a_job(0, run=500, cpus=4, reservation="own")]
    assert starts(TWO, jobs, "fcfs", "easy", reservations=flex) == [0]


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"reservation": "rr"}, "there is no reservation 'rr'"),
        ({"reservation": "r", "user": "bob"}, "reservation r does not admit its user or account"),
        ({"reservation": "r", "user": "ann", "cpus": 3}, "it does not fit on the nodes of reservation r"),
        ({"reservation": "r", "user": "ann", "submit": 200}, "reservation r was over when it was submitted"),
    ],
)
def test_jobs_that_can_never_run_in_theirs_are_rejected(job: dict[str, object], why: str) -> None:
    """V9."""
    reserved = kept(r={"StartTime": 100, "EndTime": 200, "Nodes": "0", "Users": "ann"})
    prepared = prepare(a_trace([a_job(0, run=1), Job(id=10**6, **job)]), TWO, reservations=reserved)
    assert prepared.workload.rejected == {1: why}


def test_whom_a_reservation_admits() -> None:
    def admits(user: str, account: str, **said: str) -> bool:
        (r,) = kept(r={"StartTime": 0, "EndTime": 1, "Nodes": "0", **said})
        return r.admits(user, account)

    assert admits("ann", "lab", Users="ann,bob")
    assert not admits("cat", "lab", Users="ann,bob")
    assert admits("cat", "lab", Users="-ann")
    assert not admits("ann", "lab", Users="ann", Accounts="dept")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "must be a whole second"),
        ({"StartTime": 5}, "either EndTime or Duration"),
        ({"StartTime": 5, "EndTime": 9, "Duration": "1"}, "either EndTime or Duration"),
        ({"StartTime": 5, "EndTime": 5, "Nodes": "0"}, "ends at 5"),
        ({"StartTime": 5, "Duration": "soon", "Nodes": "0"}, "must be a time as Slurm writes it"),
        ({"StartTime": 5, "EndTime": 9}, "must be numbers of nodes"),
        ({"StartTime": 5, "EndTime": 9, "Nodes": "a1"}, "must be numbers of nodes"),
        ({"StartTime": 5, "EndTime": 9, "Nodes": "3-1"}, "names no node"),
        ({"StartTime": 5, "EndTime": 9, "Nodes": "0-2"}, "there is no node 2"),
        ({"StartTime": 5, "EndTime": 9, "Nodes": "0", "Users": "ann,-bob"}, "not both"),
        ({"StartTime": 5, "EndTime": 9, "Nodes": "0", "Flags": "DAILY"}, "DAILY is not modelled"),
        ({"StartTime": 5, "EndTime": 9, "Nodes": "0", "Node": "1"}, "unknown key"),
    ],
)
def test_a_mistake_is_named_with_its_place(row: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        kept(r=row)
    assert str(raised.value.field).startswith("reservation.r")


def test_the_command_reads_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = tmp_path / "t.cluster.json"
    cluster.write_text('[{"count": 2, "cpus": 2}]')
    trace = tmp_path / "t.csv"
    write_native(a_trace([a_job(0, run=10, cpus=4), a_job(1, run=10, cpus=1, reservation="r")]), trace)
    file = tmp_path / "r.toml"
    file.write_text('[reservation.r]\nStartTime = 5\nEndTime = 50\nNodes = "1"\n')
    command = ["replay", str(trace), "--policy", "fcfs", "--backfill", "none", "--jobs-out", str(tmp_path / "jobs.csv")]
    with pytest.raises(SystemExit) as done:
        main([*command, "--reservations", str(file)])
    assert not done.value.code
    rows = (tmp_path / "jobs.csv").read_text().splitlines()
    start = rows[0].split(",").index("start_time")
    assert [r.split(",")[start] for r in rows[1:]] == ["50", "5"]
    capsys.readouterr()
    file.write_text("[reservation.r]\nStartTime = 5\n")
    with pytest.raises(SystemExit) as done:
        main([*command, "--reservations", str(file)])
    assert done.value.code
    said = capsys.readouterr().err
    assert "r.toml: reservation.r: must have either EndTime or Duration" in said
    assert len(said.strip().splitlines()) <= 2
    with pytest.raises(SystemExit):
        main([*command, "--reservations", str(tmp_path / "none.toml")])


ONE = (
    "ReservationName=root_1 StartTime=1700000000 EndTime=1700003600 Duration=01:00:00 Nodes=a100-[1-2] NodeCnt=2 "
    "CoreCnt=128 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=128 Users=root "
    "Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)"
)


def test_what_scontrol_says_of_reservations() -> None:
    cpus = {"a100-1": 64, "a100-2": 64}
    (found,) = parsed(ONE, cpus)
    assert (found.name, found.start, found.end, found.nodes) == ("root_1", 1700000000, 1700003600, ("a100-1", "a100-2"))
    assert (found.users, found.accounts) == (("root",), ())
    assert "MAINT" in found.flags
    assert parsed("No reservations in the system\n", cpus) == ()
    assert parsed(ONE.replace("TRES=cpu=128", "TRES=cpu=8"), cpus) == ()
    assert parsed(ONE.replace("Nodes=a100-[1-2]", "Nodes=(null)"), cpus) == ()


def test_nodes_of_other_classes_stay_open() -> None:
    cluster = a_cluster(NodeClass(1, gpu_type="A100", gpus=2, cpus=4), NodeClass(1, gpu_type="T4", gpus=2, cpus=4))
    reserved = kept(r={"StartTime": 5, "EndTime": 500, "Nodes": "0"})
    ran = replay(cluster, [job := a_job(0, run=100, gpus=1)], "fcfs", "easy", "best-fit", reservations=reserved)
    assert ran[job.id].nodes == ((1, 1),)
