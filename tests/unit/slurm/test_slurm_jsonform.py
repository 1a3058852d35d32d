"""Slurm's JSON in its release families: openapi v0.0.38 as recorded, data_parser v0.0.41 as documented."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from slurm_rl.errors import SlurmError
from slurm_rl.slurm import jsonform

Recorded = Callable[[str], str]


def test_data_parser_running_job(recorded: Recorded) -> None:
    job = _jobs(recorded("24.05/squeue.json"))[0]
    assert (job.job_id, job.state, job.user, job.nice, job.priority) == (4711, "RUNNING", "ada", 100, 12_345)
    assert (job.gpus, job.nodes, job.cpus, job.mem_mb) == ({"a100": 8}, 2, 16, 131_072)
    assert job.node_list == ("gpu01", "gpu02")
    assert job.features == "a100|h100"
    assert job.time_limit == 7140
    assert (job.submit_time, job.start_time, job.end_time) == (1_750_000_000, 1_750_000_060, 1_750_007_200)
    assert job.reason == ""
    assert job.array_job_id == 0


def test_data_parser_array_with_unset_infinite_and_null(recorded: Recorded) -> None:
    job = _jobs(recorded("24.05/squeue.json"))[1]
    assert (job.array_job_id, job.array_tasks, job.array_task_count, job.array_max_running) == (4712, "3-10", 8, 4)
    assert job.time_limit is None
    assert job.eligible_time is None
    assert job.start_time is None
    assert job.het_job_id == 0
    assert job.partitions == ("gpu", "any")
    assert job.gpus == {"": 2}  # gres/gpu:2, not tracked as TRES
    assert not job.eligible(2e9)


def test_data_parser_cron_and_held(recorded: Recorded) -> None:
    job = _jobs(recorded("24.05/squeue.json"))[2]
    assert job.cron
    assert job.held
    assert job.time_limit is None


def test_data_parser_nodes(recorded: Recorded) -> None:
    busy, drained = jsonform.nodes(recorded("24.05/nodes.json").encode())
    assert (busy.gpus, busy.gpus_allocated, busy.features) == ({"a100": 4}, {"a100": 4}, ("a100", "ib"))
    assert busy.usable
    assert (drained.gpus, drained.gpus_allocated) == ({"h100": 2, "a100": 2}, {})
    assert not drained.usable


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5),
        (5.0, 5),
        ("7", 7),
        (None, None),
        ({}, None),
        (4_294_967_294, None),
        (True, None),
        ({"set": True, "infinite": False, "number": 3}, 3),
        ({"set": False, "infinite": False, "number": 3}, None),
        ({"set": True, "infinite": True, "number": 0}, None),
    ],
)
def test_numbers_of_every_family(value: Any, expected: int | None) -> None:
    assert jsonform.number(value) == expected


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("{", "unreadable"),
        ("[]", "unreadable"),
        ('{"nodes": []}', "no list of jobs"),
        ('{"jobs": [], "errors": [{"error": "Access denied", "error_number": 1}]}', "Access denied"),
        ('{"jobs": [{"name": "x"}]}', "without job_id"),
    ],
)
def test_unusable_json_is_one_clear_error(data: str, complaint: str) -> None:
    with pytest.raises(SlurmError, match=complaint):
        jsonform.jobs(data.encode(), {})


def test_a_minimal_job_of_an_unknown_release_is_still_read() -> None:
    (job,) = jsonform.jobs(json.dumps({"jobs": [{"job_id": 1, "job_state": ["PENDING"]}]}).encode(), {})
    assert (job.job_id, job.nodes, job.gpus) == (1, 1, {})


def _jobs(data: str, factors: Any = None) -> list[Any]:
    return jsonform.jobs(data.encode(), factors or {})
