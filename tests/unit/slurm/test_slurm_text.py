"""What Debian 12's Slurm 22.05.8 printed for a known set of jobs, read back as data."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_rl.errors import SlurmError
from slurm_rl.slurm import text
from slurm_rl.slurm.command import records
from slurm_rl.slurm.model import PriorityFactors, SlurmJob

Recorded = Callable[[str], str]


@pytest.fixture
def jobs(recorded: Recorded, mark: str) -> dict[str, SlurmJob]:
    factors = text.factors(recorded("22.05/sprio.txt"), mark)
    found = text.jobs(recorded("22.05/squeue.txt"), mark, factors)
    return {f"{j.name}+{j.het_offset}" if j.het_offset else j.name: j for j in found}


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
    assert (job.job_id, job.array_job_id, job.array_task_id) == (3, 3, None)
    assert (job.array_tasks, job.array_task_count, job.array_max_running) == ("1,3,5,7,9", 5, 2)


def test_a_pending_job_has_constraints_nice_and_its_site_factor_read_back(jobs: dict[str, SlurmJob]) -> None:
    job = jobs["waiting"]
    assert (job.features, job.prefer, job.nice, job.time_limit) == ("a100|v100", "a100", 50, 7200)
    assert job.site_factor == -25
    assert job.factors == PriorityFactors(
        priority=1509,
        age=0,
        assoc=0,
        fairshare=1000,
        job_size=85,
        partition=500,
        qos=0,
        site=-25,
        tres=0,
        nice=50,
        fairshare_normalized=1.0,
    )


def test_priority_is_the_sum_of_the_factors_less_nice(jobs: dict[str, SlurmJob]) -> None:
    with_factors = [j.factors for j in jobs.values() if j.factors is not None]
    assert len(with_factors) == 5
    for f in with_factors:
        terms = f.age + f.assoc + f.fairshare + f.job_size + f.partition + f.qos + f.site + f.tres
        assert abs(f.priority - (terms - f.nice)) <= 2  # Slurm rounds each term by itself


def test_held_dependent_and_deferred_jobs_are_not_eligible(jobs: dict[str, SlurmJob]) -> None:
    now = 2 + max(j.submit_time or 0 for j in jobs.values())
    assert jobs["held by user"].held
    assert jobs["after"].dependency == "afterok:1(unfulfilled)"
    later = jobs["later"]
    assert later.eligible_time is not None
    assert later.submit_time is not None
    assert later.eligible_time - later.submit_time == 36_000
    eligible = {name for name, job in jobs.items() if job.eligible(now)}
    assert eligible == {"cpuonly", "array", "het", "het+1", "waiting"}
    assert later.eligible(later.eligible_time)


def test_components_of_a_heterogeneous_job_share_the_leaders_id(jobs: dict[str, SlurmJob]) -> None:
    first, second = jobs["het"], jobs["het+1"]
    assert (first.job_id, first.het_job_id, first.het_offset, first.gpus) == (8, 8, 0, {"a100": 8})
    assert (second.job_id, second.het_job_id, second.het_offset, second.gpus) == (9, 8, 1, {"t4": 1})


def test_an_exclusive_job_without_limit_is_given_all_gpus_of_its_nodes(jobs: dict[str, SlurmJob]) -> None:
    job = jobs["exclusive"]
    assert job.exclusive
    assert job.time_limit is None
    assert job.gpus == {"t4": 8}


def test_an_untyped_request_stays_untyped(jobs: dict[str, SlurmJob]) -> None:
    assert jobs["held by user"].gpus == {"": 1}
    assert jobs["later"].gpus == {"": 2}


def test_a_job_name_cannot_forge_fields_or_records(recorded: Recorded, mark: str) -> None:
    forged = recorded("22.05/squeue.txt").replace(f"{mark}single{mark}", f"{mark}x\n7|8 markx \x1f{mark}", 1)
    assert [j.name for j in text.jobs(forged, mark, {}) if j.job_id == 1] == ["x\n7|8 markx \x1f"]


def test_an_answer_cut_short_is_an_error_and_not_fewer_jobs(recorded: Recorded, mark: str) -> None:
    whole = recorded("22.05/squeue.txt")
    with pytest.raises(SlurmError, match="cut short"):
        text.jobs(whole[: len(whole) // 2], mark, {})


def test_a_field_that_is_no_number_names_the_job(mark: str) -> None:
    record = dict.fromkeys(text.JOB_FIELDS, "") | {"JobID": "5", "Nice": "much"}
    output = "".join(value + mark for value in record.values()) + "\n"
    with pytest.raises(SlurmError, match="job '5' is unreadable"):
        text.jobs(output, mark, {})


def test_no_jobs_at_all_is_an_empty_list(mark: str) -> None:
    assert text.jobs("", mark, {}) == []
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
    assert text.requested_gpus(counts, per_job, per_node, per_task, nodes=2, tasks=6) == expected


def test_of_a_job_in_several_partitions_the_best_factors_count(recorded: Recorded, mark: str) -> None:
    line = recorded("22.05/sprio.txt").splitlines()[0]
    better = line.replace(f"{mark}1542{mark}", f"{mark}9999{mark}")
    for order in ([line, better], [better, line]):
        assert text.factors("\n".join(order) + "\n", mark)[3].priority == 9999


def test_tres_terms_of_the_priority_are_summed(recorded: Recorded, mark: str) -> None:
    fields = recorded("22.05/sprio.txt").splitlines()[0].split(mark)
    fields[9] = "cpu=12.4,gres/gpu=30"
    assert text.factors(mark.join(fields) + "\n", mark)[3].tres == 42


def test_nodes_have_gpus_by_type_in_total_and_in_use(recorded: Recorded) -> None:
    nodes = {n.name: n for n in text.nodes(recorded("22.05/nodes.txt"))}
    assert len(nodes) == 6
    busy = nodes["a100-1"]
    assert (busy.state, busy.gpus, busy.gpus_allocated) == ("MIXED", {"a100": 8}, {"a100": 2})
    assert (busy.cpus, busy.cpus_allocated, busy.mem_mb, busy.mem_mb_allocated) == (64, 4, 524_288, 1024)
    assert (busy.features, busy.partitions) == (("a100",), ("batch",))
    assert nodes["a100-2"].gpus_allocated == {}
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
    (node,) = text.nodes(f"NodeName=n1 State={state} CPUTot=8\n")
    assert (node.state, node.flags, node.usable) == (base, flags, usable)


def test_a_nodes_reason_cannot_change_its_state() -> None:
    (node,) = text.nodes("NodeName=n1 State=DOWN CPUTot=8 Reason=said State=IDLE CPUTot=99 [root@now]\n")
    assert (node.state, node.cpus) == ("DOWN", 8)


def test_partitions(recorded: Recorded) -> None:
    (partition,) = text.partitions(recorded("22.05/partitions.txt"))
    assert (partition.name, partition.state, partition.default) == ("batch", "UP", True)
    assert partition.nodes == ("a100-1", "a100-2", "t4-1", "t4-2", "v100-1", "v100-2")
    assert (partition.max_time, partition.default_time) == (None, 3600)
    assert (partition.priority_tier, partition.priority_job_factor) == (1, 1)


def test_weights_and_settings(recorded: Recorded) -> None:
    config = text.config(recorded("22.05/config.txt"))
    weights = text.weights(config)
    assert (weights.age, weights.fairshare, weights.job_size, weights.partition, weights.qos) == (
        1000,
        1000,
        500,
        500,
        500,
    )
    assert weights.total == 3500
    assert weights.max_age == 86_400
    assert text.setting(config, "priorityweightfairshare") == "1000"
    assert text.setting(config, "JobSubmitPlugins") == ""
    assert text.weights({"PriorityWeightTRES": "CPU=1000,GRES/gpu=3000"}).total == 4000


def test_age_and_fairshare_weigh_nothing_without_the_accounting_database(recorded: Recorded) -> None:
    config = text.config(recorded("22.05/config.txt")) | {"AccountingStorageType": "accounting_storage/none"}
    weights = text.weights(config)
    assert (weights.age, weights.fairshare, weights.total) == (0, 0, 1500)


def test_fairshare_is_by_account_and_user() -> None:
    said = "root|||\n root|root|0.500000\n lab||\n  lab|ada|1.000000\n"
    assert text.fairshare(said) == {("root", "root"): 0.5, ("lab", "ada"): 1.0}


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
    health = text.health(said.splitlines(), "up", 0.01)
    assert (health.server_threads, health.agent_queue, health.dbd_agent_queue) == (3, 7, 11)
    assert (health.jobs_pending, health.jobs_running) == (10_053, 4)
    assert (health.main_last_cycle_us, health.main_mean_cycle_us) == (14_514, 7420)
    assert (health.backfill_last_cycle_us, health.backfill_mean_cycle_us) == (102_017, 59_986)
    assert health.backfill_last_depth == 10_005


def test_recorded_sdiag_is_read(recorded: Recorded) -> None:
    health = text.health(recorded("22.05/sdiag.txt").splitlines(), "up", 0.0)
    assert health.up
    assert health.main_last_cycle_us > 0


def test_cron_jobs_are_recognised() -> None:
    said = (
        "JobId=7 JobName=nightly UserId=root(0) CronJob=Yes CrontabSpec=0 3 * * *\n"
        "JobId=8 JobName=plain UserId=root(0)\n"
        "not a record CronJob=Yes\n"
    )
    assert text.cron_jobs(said) == frozenset({7})
