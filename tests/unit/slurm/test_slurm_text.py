"""What Slurm 22.05, 24.11 and 26.05 printed for a known set of jobs, read back as data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from recordings import Recording

from slurm_rl.errors import SlurmError
from slurm_rl.slurm import scontrol, sprio, squeue
from slurm_rl.slurm.command import records
from slurm_rl.slurm.model import SlurmJob
from slurm_rl.slurm.release import TABLE

Recorded = Callable[[str], str]
OLD = TABLE[22, 5]


@pytest.fixture
def jobs(recording: Recording) -> dict[str, SlurmJob]:
    """By name; components of a heterogeneous job and separate tasks of an array with their number."""
    found = {}
    for j in recording.jobs():
        number = j.het_offset or (j.array_task_id if j.name == "split" else None) or ("singleton" in j.dependency)
        found[f"{j.name}+{number}" if number else j.name] = j
    return found


def test_a_running_job_has_its_gpus_by_type_and_its_node(jobs: dict[str, SlurmJob]) -> None:
    job = jobs["single"]
    assert (job.state, job.gpus, job.cpus, job.mem_mb, job.nodes) == ("RUNNING", {"a100": 2}, 4, 1024, 1)
    assert job.node_list == ("a100-1",)
    assert job.time_limit == 1800
    assert job.end_time is not None
    assert job.start_time is not None
    assert job.end_time - job.start_time == 1800
    assert (job.user, job.partitions, job.qos) == ("root", ("batch",), "normal")
    assert job.running
    assert not job.pending
    assert not job.exclusive


def test_gpus_per_node_are_totalled_over_nodes(jobs: dict[str, SlurmJob]) -> None:
    job = jobs["spread"]
    assert (job.nodes, job.gpus, job.gpu_count, job.time_limit) == (2, {"v100": 16}, 16, 86_400)
    assert job.node_list == ("v100-1", "v100-2")


def test_waiting_array_tasks_are_one_record_with_a_count(jobs: dict[str, SlurmJob]) -> None:
    job = jobs["array"]
    assert (job.job_id, job.array_task_id) == (job.array_job_id, None)
    assert (job.array_tasks, job.array_task_count, job.array_max_running) == ("1,3,5,7,9", 5, 2)


def test_steps_are_spelt_out_because_scontrol_takes_none(jobs: dict[str, SlurmJob]) -> None:
    job = jobs["stepped"]
    assert job.array_tasks == ",".join(map(str, range(1, 401, 3)))
    assert (job.array_task_count, job.array_max_running) == (134, 7)


def test_an_irregular_array_is_whole(jobs: dict[str, SlurmJob]) -> None:
    assert jobs["squares"].array_tasks == "0-1," + ",".join(str(i * i) for i in range(2, 61))
    assert jobs["squares"].array_task_count == 61


def test_separate_tasks_of_an_array_are_records_of_their_own(jobs: dict[str, SlurmJob]) -> None:
    rest, fourth, last = jobs["split"], jobs["split+4"], jobs["split+9"]
    assert (rest.array_tasks, rest.array_task_count, rest.nice) == ("0-3,5-8", 8, 0)
    assert [(j.array_tasks, j.array_task_id, j.array_task_count, j.nice) for j in (fourth, last)] == [
        ("4", 4, 1, 5),
        ("9", 9, 1, 5),
    ]
    assert {j.array_job_id for j in (rest, fourth, last)} == {rest.job_id}


def test_a_pending_job_has_constraints_nice_and_its_site_factor_read_back(jobs: dict[str, SlurmJob]) -> None:
    job = jobs["waiting"]
    assert (job.features, job.prefer, job.nice, job.time_limit) == ("a100|v100", "a100", 50, 7200)
    assert job.site_factor == -25
    assert job.comment == "slurm-rl:off, please"
    assert job.factors is not None
    assert (job.factors.site, job.factors.nice, job.factors.partition, job.factors.qos) == (-25, 50, 500, 0)


def test_priority_is_the_sum_of_the_factors_less_nice(jobs: dict[str, SlurmJob]) -> None:
    with_factors = [j.factors for j in jobs.values() if j.factors is not None]
    assert len(with_factors) >= 15
    for f in with_factors:
        terms = f.age + f.assoc + f.fairshare + f.job_size + f.partition + f.qos + f.site + f.tres
        assert abs(f.priority - (terms - f.nice)) <= 2  # Slurm rounds each term by itself


def test_held_dependent_and_deferred_jobs_are_not_eligible(jobs: dict[str, SlurmJob]) -> None:
    now = 2 + max(j.submit_time or 0 for j in jobs.values())
    assert jobs["held by user"].held
    assert jobs["after"].dependency == f"afterok:{jobs['single'].job_id}(unfulfilled)"
    later = jobs["later"]
    assert later.eligible_time is not None
    assert later.submit_time is not None
    assert later.eligible_time - later.submit_time == 36_000
    waiting = {name for name, job in jobs.items() if job.pending}
    refused = {name for name in waiting if not jobs[name].eligible(now)}
    assert refused == {"held by user", "after", "after+True", "later", "requeued", "chosen"}
    assert later.eligible(later.eligible_time)


def test_components_of_a_heterogeneous_job_share_the_leaders_id(jobs: dict[str, SlurmJob]) -> None:
    first, second = jobs["het"], jobs["het+1"]
    assert (first.het_job_id, first.het_offset, first.gpus) == (first.job_id, 0, {"a100": 8})
    assert (second.het_job_id, second.het_offset, second.gpus) == (first.job_id, 1, {"t4": 1})


def test_an_exclusive_job_without_limit_is_given_all_gpus_of_its_nodes(jobs: dict[str, SlurmJob]) -> None:
    job = jobs["exclusive"]
    assert job.exclusive
    assert job.time_limit is None
    assert job.gpus == {"t4": 8}


def test_only_who_asked_for_whole_nodes_is_exclusive(jobs: dict[str, SlurmJob]) -> None:
    assert {name for name, job in jobs.items() if job.exclusive} == {"exclusive", "waits alone"}


def test_gpus_by_task_are_totalled_and_a_deadline_is_a_time(jobs: dict[str, SlurmJob]) -> None:
    job = jobs["by task"]
    assert (job.gpus, job.tasks) == ({"a100": 9}, 3)
    assert job.deadline is not None
    assert job.submit_time is not None
    assert abs(job.deadline - job.submit_time - 2 * 86_400) < 5


def test_what_people_write_stays_as_they_wrote_it(jobs: dict[str, SlurmJob]) -> None:
    odd = "it's 'a' \"näme\" | with\nlines=1 JobId=1 Priority=9"
    assert (jobs[odd].nice, jobs[odd].mem_mb) == (70, 3072)
    for word in ("None", "N/A", "(null)", "Unknown", "none"):
        assert jobs[word].comment == ("" if word == "(null)" else word)
    assert (jobs["chosen"].account, jobs["chosen"].comment) == ("none", "None")
    assert jobs["chosen"].required_nodes == ("t4-1",)


def test_a_requeued_job_tells_how_often_it_was(jobs: dict[str, SlurmJob]) -> None:
    assert (jobs["requeued"].restarts, jobs["requeued"].held, jobs["single"].restarts) == (1, True, 0)


def test_an_untyped_request_stays_untyped(jobs: dict[str, SlurmJob]) -> None:
    assert jobs["held by user"].gpus == {"": 1}
    assert jobs["later"].gpus == {"": 2}


def test_a_job_name_cannot_forge_fields_or_records(recorded: Recorded, mark: str) -> None:
    forged = recorded("22.05/squeue.txt").replace(f"{mark}single{mark}", f"{mark}x\n7|8 markx \x1f{mark}", 1)
    assert [j.name for j in squeue.jobs(forged, mark, {}, OLD) if j.name.startswith("x\n")] == ["x\n7|8 markx \x1f"]


def test_an_answer_cut_short_is_an_error_and_not_fewer_jobs(recorded: Recorded, mark: str) -> None:
    whole = recorded("22.05/squeue.txt")
    with pytest.raises(SlurmError, match="cut short"):
        squeue.jobs(whole[: len(whole) // 2], mark, {}, OLD)


def test_a_field_that_is_no_number_names_the_job(mark: str) -> None:
    record = dict.fromkeys(squeue.JOB_FIELDS, "") | {"JobID": "5", "Nice": "much"}
    output = "".join(value + mark for value in record.values()) + "\n"
    with pytest.raises(SlurmError, match="job '5' is unreadable"):
        squeue.jobs(output, mark, {}, OLD)


def test_no_jobs_at_all_is_an_empty_list(mark: str) -> None:
    assert squeue.jobs("", mark, {}, OLD) == []
    assert list(records("", ("a", "b"), mark)) == []


@pytest.mark.parametrize(
    ("counts", "per_job", "per_node", "per_task", "expected"),
    [
        ({"gres/gpu": 8, "gres/gpu:a100": 8}, "", "gres:gpu:a100:4", "", {"a100": 8}),
        ({"gres/gpu": 8}, "", "gres:gpu:a100:4", "", {"a100": 8}),  # the site tracks gres/gpu, but no types
        ({"cpu": 1}, "", "gres/gpu:a100:4", "", {"a100": 8}),  # the site tracks no GPUs at all
        ({"cpu": 1}, "gres:gpu:3", "", "", {"": 3}),
        ({"cpu": 1}, "", "", "gres:gpu:t4:1", {"t4": 6}),
        ({"gres/gpu": 4}, "", "", "gres:gpu:t4:1", {"t4": 4}),  # Slurm chose fewer tasks than we think
        ({"cpu": 1}, "", "", "", {}),
    ],
)
def test_gpus_are_found_whatever_the_site_tracks(
    counts: dict[str, int], per_job: str, per_node: str, per_task: str, expected: dict[str, int]
) -> None:
    assert squeue.requested_gpus(counts, per_job, per_node, per_task, nodes=2, tasks=6) == expected


def test_of_a_job_in_several_partitions_the_best_factors_count(recorded: Recorded, mark: str) -> None:
    line = recorded("22.05/sprio.txt").splitlines()[0]
    fields = line.split(mark)
    better = mark.join([fields[0], "9999", *fields[2:]])
    for order in ([line, better], [better, line]):
        assert sprio.factors("\n".join(order) + "\n", mark)[int(fields[0])].priority == 9999


def test_tres_terms_of_the_priority_are_summed(recorded: Recorded, mark: str) -> None:
    fields = recorded("22.05/sprio.txt").splitlines()[0].split(mark)
    fields[9] = "cpu=12.4,gres/gpu=30"
    assert sprio.factors(mark.join(fields) + "\n", mark)[int(fields[0])].tres == 42


def test_nodes_have_gpus_by_type_in_total_and_in_use(recording: Recording) -> None:
    nodes = {n.name: n for n in scontrol.nodes(recording("nodes.txt"))}
    assert len(nodes) == 6
    busy = nodes["a100-1"]
    assert (busy.state, busy.gpus, busy.gpus_allocated) == ("MIXED", {"a100": 8}, {"a100": 2})
    assert (busy.cpus, busy.cpus_allocated, busy.mem_mb, busy.mem_mb_allocated) == (64, 4, 524_288, 1024)
    assert (busy.features, busy.partitions) == (("a100",), ("batch",))
    assert nodes["a100-2"].gpus_allocated == {"a100": 8}
    assert nodes["t4-1"].state == "ALLOCATED"
    assert all(n.usable for n in nodes.values())


@pytest.mark.parametrize(
    ("state", "base", "flags", "usable"),
    [
        ("IDLE", "IDLE", (), True),
        ("IDLE+DRAIN", "IDLE", ("DRAIN",), False),
        ("DOWN*", "DOWN", ("NOT_RESPONDING",), False),
        ("IDLE+CLOUD", "IDLE", ("CLOUD",), True),
        ("IDLE*", "IDLE", ("NOT_RESPONDING",), False),
        ("MIXED+MAINT+RESERVED", "MIXED", ("MAINT", "RESERVED"), False),
        ("IDLE~", "IDLE", (), True),
    ],
)
def test_node_states(state: str, base: str, flags: tuple[str, ...], usable: bool) -> None:
    (node,) = scontrol.nodes(f"NodeName=n1 State={state} CPUTot=8\n")
    assert (node.state, node.flags, node.usable) == (base, flags, usable)


def test_a_nodes_reason_cannot_change_its_state() -> None:
    (node,) = scontrol.nodes("NodeName=n1 State=DOWN CPUTot=8 Reason=said State=IDLE CPUTot=99 [root@now]\n")
    assert (node.state, node.cpus) == ("DOWN", 8)


def test_partitions(recording: Recording) -> None:
    (partition,) = scontrol.partitions(recording("partitions.txt"))
    assert (partition.name, partition.state, partition.default) == ("batch", "UP", True)
    assert partition.nodes == ("a100-1", "a100-2", "t4-1", "t4-2", "v100-1", "v100-2")
    assert (partition.max_time, partition.default_time) == (None, 3600)
    assert (partition.priority_tier, partition.priority_job_factor) == (1, 1)


def test_weights_and_settings(recording: Recording) -> None:
    config = scontrol.config(recording("config.txt"))
    weights = scontrol.weights(config)
    assert (weights.age, weights.fairshare, weights.job_size, weights.partition, weights.qos) == (
        1000,
        1000,
        500,
        500,
        500,
    )
    assert weights.total == 3500
    assert weights.max_age == 86_400
    assert scontrol.setting(config, "priorityweightfairshare") == "1000"
    assert scontrol.setting(config, "JobSubmitPlugins") == ""
    assert scontrol.weights({"PriorityWeightTRES": "CPU=1000,GRES/gpu=3000"}).total == 4000


def test_age_and_fairshare_weigh_nothing_without_the_accounting_database(recorded: Recorded) -> None:
    config = scontrol.config(recorded("22.05/config.txt")) | {"AccountingStorageType": "accounting_storage/none"}
    weights = scontrol.weights(config)
    assert (weights.age, weights.fairshare, weights.total) == (0, 0, 1500)


def test_fairshare_is_by_account_and_user() -> None:
    said = "root|||\n root|root|0.500000\n lab||\n  lab|ada|1.000000\n"
    assert scontrol.fairshare(said) == {("root", "root"): 0.5, ("lab", "ada"): 1.0}


def test_health_tells_main_scheduler_and_backfill_apart() -> None:
    said = """Server thread count:  3
Agent queue size:     7
DBD Agent queue size: 11
Jobs pending:   10053
Jobs running:   4
Main schedule statistics (microseconds):
	Last cycle:   14514
	Mean cycle:   7420
Backfilling stats
	Last cycle: 102017
	Mean cycle: 59986
	Last depth cycle: 10005
"""
    health = scontrol.health(said.splitlines(), "up", 0.01)
    assert (health.server_threads, health.agent_queue, health.dbd_agent_queue) == (3, 7, 11)
    assert (health.jobs_pending, health.jobs_running) == (10_053, 4)
    assert (health.main_last_cycle_us, health.main_mean_cycle_us) == (14_514, 7420)
    assert (health.backfill_last_cycle_us, health.backfill_mean_cycle_us) == (102_017, 59_986)
    assert health.backfill_last_depth == 10_005


def test_recorded_sdiag_is_read(recording: Recording) -> None:
    health = scontrol.health(recording("sdiag.txt").splitlines(), "up", 0.0)
    assert health.up
    assert health.main_last_cycle_us > 0


def test_cron_jobs_are_recognised() -> None:
    said = (
        "JobId=7 JobName=nightly UserId=root(0) CronJob=Yes CrontabSpec=0 3 * * *\n"
        "JobId=8 JobName=plain UserId=root(0)\n"
        "not a record CronJob=Yes\n"
    )
    assert scontrol.cron_jobs(said) == frozenset({7})
