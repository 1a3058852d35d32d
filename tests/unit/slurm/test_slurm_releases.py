"""The table of releases, and that text and JSON of each recorded release say the same."""

from __future__ import annotations

import msgspec
import pytest
from recordings import FIXTURES, MARK, Recording

from slurm_rl.errors import SlurmError
from slurm_rl.slurm import history, jsonform, scontrol, sprio, squeue, squeue_more
from slurm_rl.slurm.model import SlurmJob
from slurm_rl.slurm.release import NEWEST, TABLE, Evidence, Release, prefer_is_sound, sound_prefer
from slurm_rl.traces.read import read_trace

# The columns of fixtures/25.11/squeue-array.txt.
COLUMNS_25_11 = (
    *("JobID", "ArrayJobID", "ArrayTaskID", "Name", "State", "UserName", "Account", "Partition", "QOS", "TimeLimit"),
    *("NumNodes", "tres-alloc", "tres-per-job", "tres-per-node", "tres-per-task", "Feature", "Prefer", "Dependency"),
    *("Reason", "PriorityLong", "Nice", "OverSubscribe", "HetJobID", "HetJobOffset", "StartTime", "SubmitTime"),
    "EligibleTime",
)


def as_fields(jobs: list[SlurmJob]) -> dict[int, dict[str, object]]:
    return {j.job_id: msgspec.structs.asdict(j) for j in jobs}


def test_text_and_json_agree_field_by_field(recording: Recording) -> None:
    factors = sprio.factors(recording("sprio.txt"), MARK)
    exclusive = frozenset[int]()
    if not recording.traits.json_exclusive:
        exclusive = squeue_more.exclusive_jobs(recording("exclusive.txt"), MARK)
    in_json = jsonform.jobs(recording("squeue.json").encode(), factors, exclusive)
    from_text = as_fields(recording.jobs())
    from_json = as_fields([j for j in in_json if j.pending or j.running])
    assert len(from_text) == 30
    assert set(from_json) == set(from_text)
    for job_id, fields in from_text.items():
        assert from_json[job_id] == fields


def test_nodes_agree_in_text_and_json(recording: Recording) -> None:
    from_text, from_json = scontrol.nodes(recording("nodes.txt")), jsonform.nodes(recording("nodes.json").encode())
    assert from_text == from_json
    assert len(from_text) == 6


def test_history_tells_what_ran_on_each_release(recording: Recording) -> None:
    jobs = history.parse(recording("sacct.txt"), MARK)
    ended = {j.name: j for j in jobs if j.end_time is not None}  # without "stopped", which was never eligible
    assert {name: j.state for name, j in ended.items()} == {
        "done": "COMPLETED",
        "failed": "FAILED",
        "tasks": "COMPLETED",
        "requeued": "REQUEUED",
    }
    done = ended["done"]
    assert (done.gpus_requested, done.gpus_allocated, done.time_limit, done.mem_mb) == (
        {"v100": 2},
        {"v100": 2},
        300,
        1024,
    )
    assert (ended["failed"].exit_code, done.exit_code) == (3, 0)
    assert sum(j.name == "tasks" for j in jobs) == 2
    assert {"None", "N/A", "(null)", "Unknown", "none"} <= {j.name for j in jobs}


def test_the_json_of_sacct_is_a_trace_on_each_release(recording: Recording) -> None:
    trace = read_trace(recording.directory / "sacct.json", format="sacct-json", cache=False)
    status, kind = trace.status.strings(), trace.gpu_type.strings()
    rows = zip(trace.job_id.tolist(), trace.run_time.tolist(), trace.num_gpus.tolist(), kind, status, strict=True)
    ended = [j for j in history.parse(recording("sacct.txt"), MARK) if j.end_time and j.state != "REQUEUED"]
    assert {row[0]: row[1:] for row in rows if row[-1] in ("COMPLETED", "FAILED")} == {
        j.job_id: (j.elapsed, sum(j.gpus_requested.values()), *j.gpus_requested, j.state) for j in ended
    }
    assert len(ended) == 4


def test_text_and_json_of_25_11_agree_in_what_was_recorded() -> None:
    directory = FIXTURES / "25.11"
    traits = TABLE[25, 11]
    odd = "it's 'a' | with\nlines=1 JobId=1"
    recorded = (directory / "squeue-array.txt").read_text().replace(odd, "odd").replace("(a100|v100)", "either")
    output = ""
    for line in recorded.splitlines():
        values = dict(zip((*COLUMNS_25_11, ""), line.split("|"), strict=True))
        values["Feature"] = values["Feature"].replace("either", "(a100|v100)")
        values |= {"CronJob": "No", "NumCPUs": "0", "NumTasks": "1", "NodeList": ""}
        output += "".join(values.get(field, "") + MARK for field in squeue.job_fields(traits)) + "\n"
    waiting = {
        4: squeue.Waiting(frozenset(range(2, 6)), 2),
        13: squeue.Waiting(frozenset({1, 3, 5, 7, 9}), 2),
        14: squeue.Waiting(frozenset(range(1, 401, 3)), 0),
    }
    from_text = as_fields(squeue.jobs(output, MARK, {}, traits, waiting=waiting))
    from_json = as_fields(jsonform.jobs((directory / "squeue.json").read_bytes(), {}))
    assert len(from_json) == 45
    assert set(from_json) == set(from_text)
    asked = (
        *("user", "account", "qos", "partitions", "state", "reason", "dependency", "cron", "array_job_id"),
        *("array_task_id", "array_tasks", "array_task_count", "array_max_running", "het_job_id", "het_offset"),
        *("time_limit", "nodes", "mem_mb", "tres", "features", "prefer", "exclusive", "priority", "nice"),
    )
    for job_id, fields in from_text.items():
        assert {k: from_json[job_id][k] for k in asked} == {k: fields[k] for k in asked}
        assert from_json[job_id]["name"] == (odd if fields["name"] == "odd" else fields["name"])


def test_nodes_of_25_11_are_read() -> None:
    nodes = {n.name: n for n in scontrol.nodes((FIXTURES / "25.11" / "nodes.txt").read_text())}
    assert (nodes["a100-1"].gpus, nodes["a100-1"].cpus_allocated) == ({"a100": 8}, 5)
    assert (nodes["a100-1"].state, nodes["a100-1"].flags) == ("MIXED", ("PLANNED",))


def test_the_table_says_how_each_row_is_known() -> None:
    assert {major for major, row in TABLE.items() if row.evidence is Evidence.TRIED} == {(22, 5), (24, 11), (26, 5)}
    assert all(bool(row.tried) is (row.evidence is not Evidence.SOURCE) for row in TABLE.values())


def test_a_newer_release_is_read_by_the_newest_row_and_not_known() -> None:
    later = Release(NEWEST[0] + 4, 5, 0)
    assert later.traits is TABLE[NEWEST]
    assert not later.known
    assert "only read, never written" in later.not_known()
    assert Release(25, 8).traits is TABLE[25, 5]
    assert not Release(25, 8).known


def test_an_older_release_is_refused_clearly() -> None:
    with pytest.raises(SlurmError, match=r"21\.08\.6 is too old: slurm-rl needs 22\.05 or later"):
        _ = Release(21, 8, 6).traits


@pytest.mark.parametrize(
    ("running", "sound", "from_when"),
    [
        (Release(22, 5, 8), False, "22.05.9"),
        (Release(22, 5, 9), True, "22.05.9"),
        (Release(23, 11, 10), False, "24.11.4"),
        (Release(24, 11, 5), True, "24.11.4"),
        (Release(26, 5, 1), False, "26.05.2"),
        (Release(30, 5, 0), True, "26.05.2"),
    ],
)
def test_prefer_is_used_only_where_it_is_sound(running: Release, sound: bool, from_when: str) -> None:
    assert (prefer_is_sound(running), sound_prefer(running)) == (sound, from_when)
