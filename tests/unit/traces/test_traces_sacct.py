"""Slurm's accounting exports: text and JSON, steps, requeues, arrays and heterogeneous jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_builders import a_file, jobs

from slurm_rl.errors import InputError
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.slurmjobs import duration, gigabytes, gpus_of
from slurm_rl.traces.trace import Note

HEADER = (
    "JobID|JobIDRaw|Submit|Start|End|Elapsed|Timelimit|State|User|Account|Partition|QOS|NNodes|ReqCPUS|ReqMem|ReqTRES|"
    "JobName|Priority"
)


def a_row(
    job_id: str,
    raw: str = "",
    *,
    submit: str = "2024-03-01T10:00:00",
    start: str = "2024-03-01T10:05:00",
    end: str = "2024-03-01T11:05:30",
    elapsed: str = "01:00:30",
    limit: str = "1-00:00:00",
    state: str = "COMPLETED",
    tres: str = "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1",
    nodes: str = "1",
) -> str:
    fields = [job_id, raw or job_id, submit, start, end, elapsed, limit, state, "ann", "lab", "gpu", "normal", nodes]
    return "|".join([*fields, "8", "64G", tres, "train", "1234"])


class TestText:
    def test_a_job(self, tmp_path: Path) -> None:
        trace = read_trace(a_file(tmp_path, "sacct.txt", HEADER, a_row("12")))
        assert trace.meta["format"] == "sacct"
        assert trace.meta["time_origin"] == 1709287200  # 2024-03-01 10:00:00 UTC
        assert jobs(trace, "job_id", "submit_time", "run_time", "time_limit", "num_gpus", "gpu_type") == [
            (12, 0, 3630, 86400, 2.0, "a100")
        ]
        assert jobs(
            trace, "num_nodes", "cpus", "mem_gb", "user", "account", "partition", "qos", "status", "job_name"
        ) == [(1, 8.0, 64.0, "ann", "lab", "gpu", "normal", "COMPLETED", "train")]
        assert trace.priority.tolist() == [1234.0]

    def test_a_trailing_bar_and_unix_times(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "sacct.txt",
            "JobIDRaw|Submit|Start|End|ElapsedRaw|TimelimitRaw|State|AllocTRES|",
            "5|1700000000|1700000010|1700000110|100|30|TIMEOUT|cpu=4,gres/gpu=4,mem=2048M,node=2|",
            "6|1700000005|1700000010|1700000020|10|UNLIMITED|CANCELLED by 1000|cpu=1,mem=500K,node=1|",
        )
        trace = read_trace(path)
        assert jobs(trace, "job_id", "submit_time", "run_time", "time_limit", "num_gpus", "cpus", "num_nodes") == [
            (5, 0, 100, 1800, 4.0, 4.0, 2),
            (6, 5, 10, -1, 0.0, 1.0, 1),
        ]
        assert trace.status.strings() == ["TIMEOUT", "CANCELLED"]
        assert trace.mem_gb.tolist() == [2.0, 500 / 1024 / 1024]

    def test_steps_and_jobs_that_never_ran_are_left_out_and_counted(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "sacct.txt",
            HEADER,
            a_row("12"),
            a_row("12.batch"),
            a_row("12.0"),
            a_row("13", start="None", end="2024-03-01T10:06:00", elapsed="00:00:00", state="CANCELLED by 7"),
            a_row("14", end="Unknown", state="RUNNING"),
        )
        trace = read_trace(path)
        assert trace.job_id.tolist() == [12]
        assert trace.notes == (
            Note("job steps belong to their job", 2, (3, 4), dropped=True),
            Note("not finished: its run time is unknown", 1, (6,), dropped=True),
            Note("never started", 1, (5,), dropped=True),
        )

    def test_a_requeued_job_counts_once(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "sacct.txt",
            HEADER,
            a_row("12", state="NODE_FAIL", elapsed="00:10:00"),
            a_row("12", submit="2024-03-01T10:20:00", start="2024-03-01T10:30:00", elapsed="00:50:00"),
        )
        trace = read_trace(path)
        assert jobs(trace, "job_id", "submit_time", "run_time", "status") == [(12, 0, 3000, "COMPLETED")]
        assert [(n.rows, n.lines, n.dropped) for n in trace.notes] == [(1, (2,), True)]

    def test_a_resized_job_ran_for_the_sum_of_its_sizes(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "sacct.txt",
            HEADER,
            a_row("12", state="RESIZING", elapsed="00:10:00", tres="cpu=8,gres/gpu:a100=4,mem=64G,node=1"),
            a_row("12", start="2024-03-01T10:40:00", elapsed="00:50:00"),
            a_row("13", state="RESIZING", elapsed="00:10:00"),
        )
        trace = read_trace(path)
        assert jobs(trace, "job_id", "submit_time", "run_time", "num_gpus", "status") == [
            (12, 0, 3600, 2.0, "COMPLETED")
        ]
        assert trace.notes == (
            Note("resized and not finished since", 1, (4,), dropped=True),
            Note("earlier sizes of resized jobs: added to their last", 1, (2,), dropped=True),
        )

    def test_a_job_without_a_limit_is_noted(self, tmp_path: Path) -> None:
        for column in ("Timelimit", "TimelimitRaw"):
            head = f"JobIDRaw|Submit|Start|End|Elapsed|{column}|State"
            row = "6|1700000005|1700000010|1700000020|00:00:10|UNLIMITED|COMPLETED"
            trace = read_trace(a_file(tmp_path, f"{column}.txt", head, row))
            assert trace.time_limit.tolist() == [-1]
            assert trace.notes == (Note("no time limit (UNLIMITED): taken as unknown", 1, (2,), dropped=False),)

    def test_array_tasks_are_jobs_and_het_parts_are_not(self, tmp_path: Path) -> None:
        path = a_file(
            tmp_path,
            "sacct.txt",
            HEADER,
            a_row("20_1", "21"),
            a_row("20_2", "22"),
            a_row("30+0", "30", tres="cpu=8,gres/gpu:a100=2,mem=64G,node=1"),
            a_row("30+1", "31", tres="cpu=8,mem=16G,node=2", nodes="2"),
        )
        trace = read_trace(path)
        assert jobs(trace, "job_id", "num_gpus", "gpu_type", "num_nodes", "cpus", "mem_gb") == [
            (21, 2.0, "a100", 1, 8.0, 64.0),
            (22, 2.0, "a100", 1, 8.0, 64.0),
            (30, 2.0, "a100", 3, 16.0, 80.0),
        ]

    def test_a_bar_in_a_job_name_is_a_bad_row(self, tmp_path: Path) -> None:
        bad = a_row("13").replace("train", "a|b")
        trace = read_trace(a_file(tmp_path, "sacct.txt", HEADER, a_row("12"), bad, a_row("14")))
        assert trace.job_id.tolist() == [12, 14]
        assert trace.notes == (Note("19 fields, expected 18", 1, (3,), dropped=True),)

    def test_memory_of_old_releases(self, tmp_path: Path) -> None:
        header = "JobID|Submit|Start|End|Elapsed|State|NNodes|ReqCPUS|ReqMem"
        row = "{}|2020-01-01T00:00:00|2020-01-01T00:00:00|2020-01-01T00:01:00|00:01:00|COMPLETED|2|8|{}"
        trace = read_trace(a_file(tmp_path, "s.txt", header, row.format(1, "2000Mc"), row.format(2, "4Gn")))
        assert trace.mem_gb.tolist() == [8 * 2000 / 1024, 8.0]

    def test_a_missing_column_says_how_to_export(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"lacks the column 'submit' \(export with sacct"):
            read_trace(a_file(tmp_path, "s.txt", "JobID|State|Elapsed", "1|COMPLETED|00:01:00"))


def a_json_job(job_id: int, **changes: object) -> dict[str, object]:
    """As 22.05 writes it: plain numbers, the state as text."""
    tres = [
        {"type": "cpu", "name": None, "id": 1, "count": 8},
        {"type": "mem", "name": None, "id": 2, "count": 65536},
        {"type": "node", "name": None, "id": 4, "count": 2},
        {"type": "gres", "name": "gpu", "id": 1001, "count": 4},
        {"type": "gres", "name": "gpu:a100", "id": 1002, "count": 4},
    ]
    return {
        "job_id": job_id,
        "name": "train",
        "user": "ann",
        "account": "lab",
        "partition": "gpu",
        "qos": "normal",
        "priority": 77,
        "array": {"job_id": 0, "task_id": None},
        "het": {"job_id": 0, "job_offset": None},
        "state": {"current": "COMPLETED", "reason": "None"},
        "time": {"elapsed": 90, "submission": 1_700_000_000, "start": 1_700_000_100, "end": 1_700_000_190, "limit": 60},
        "tres": {"requested": tres, "allocated": tres},
    } | changes


class TestJson:
    def read(self, folder: Path, *entries: object) -> list[tuple[object, ...]]:
        path = folder / "sacct.json"
        path.write_text(json.dumps({"meta": {"Slurm": {}}, "jobs": entries, "errors": []}), encoding="utf-8")
        self.trace = read_trace(path)
        return jobs(
            self.trace, "job_id", "submit_time", "run_time", "time_limit", "num_gpus", "gpu_type", "num_nodes", "mem_gb"
        )

    def test_22_05(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, a_json_job(7)) == [(7, 0, 90, 3600, 4.0, "a100", 2, 64.0)]
        assert self.trace.meta["format"] == "sacct-json"
        assert jobs(self.trace, "user", "account", "partition", "qos", "status", "job_name", "priority", "cpus") == [
            ("ann", "lab", "gpu", "normal", "COMPLETED", "train", 77.0, 8.0)
        ]

    def test_newer_releases_wrap_numbers_and_list_states(self, tmp_path: Path) -> None:
        wrapped = {"set": True, "infinite": False, "number": 60}
        time = {"elapsed": 90, "submission": 1_700_000_000, "start": 1_700_000_100, "limit": wrapped}
        endless = {**time, "limit": {"set": False, "infinite": True, "number": 0}}
        rows = self.read(
            tmp_path,
            a_json_job(7, time=time, state={"current": ["TIMEOUT"]}, priority={"set": True, "number": 5}),
            a_json_job(8, time=endless),
        )
        assert rows == [(7, 0, 90, 3600, 4.0, "a100", 2, 64.0), (8, 0, 90, -1, 4.0, "a100", 2, 64.0)]
        assert self.trace.status.strings() == ["TIMEOUT", "COMPLETED"]

    def test_arrays_het_jobs_and_unreadable_entries(self, tmp_path: Path) -> None:
        rows = self.read(
            tmp_path,
            a_json_job(40, array={"job_id": 40, "task_id": 1}),
            a_json_job(41, array={"job_id": 40, "task_id": 2}),
            a_json_job(50, het={"job_id": 50, "job_offset": 0}),
            a_json_job(51, het={"job_id": 50, "job_offset": 1}),
            {"job_id": 60},
        )
        assert [(r[0], r[4], r[6]) for r in rows] == [(40, 4.0, 2), (41, 4.0, 2), (50, 8.0, 4)]
        assert Note("the entry is unreadable", 1, (5,), dropped=True) in self.trace.notes

    def test_no_jobs_list(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="jobs"):
            read_trace(a_file(tmp_path, "s.json", '{"meta": {}, "jobs": 5}'))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gres/gpu=2", (2, "")),
        ("cpu=4,gres/gpu:a100=2,gres/gpu=2", (2, "a100")),
        ("gres:gpu:v100:3", (3, "v100")),
        ("gres/gpu:a100=2,gres/gpu:v100=1", (3, "")),
        ("cpu=4,mem=1G", (0, "")),
    ],
)
def test_gpus_of(text: str, expected: tuple[int, str]) -> None:
    assert gpus_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("00:01:30", 90), ("1-02:03:04", 93784), ("05:10", 310), ("00:00:01.500", 1)]
)
def test_duration(text: str, expected: float) -> None:
    assert duration(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("16G", 16.0), ("1024M", 1.0), ("2T", 2048.0), ("512", 0.5)])
def test_gigabytes(text: str, expected: float) -> None:
    assert gigabytes(text) == expected
