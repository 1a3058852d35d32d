"""What the dashboard asks for: counts of the machine, nodes with their jobs, a queue that is searched and sorted."""

from __future__ import annotations

from pathlib import Path

import pytest

from live.fake_slurm import NOW, FakeSlurm, a_job, a_running_job
from slurm_rl.config import Config
from slurm_rl.controller.explain import board
from slurm_rl.controller.explain.recent_waits import RecentWaits
from slurm_rl.controller.tick import Controller
from slurm_rl.obs.journal import Journal
from slurm_rl.obs.queue import SORTS, QueueFilter, QueueView
from slurm_rl.slurm.model import HistoryJob, SlurmNode


@pytest.fixture
def view(tmp_path: Path) -> QueueView:
    jobs = [a_job(i, user=("ann", "bob")[i % 2], gpus=i % 3, waited=100 * i) for i in range(1, 9)]
    config = Config(state_dir=str(tmp_path), policy="fcfs")
    with Journal(config.journal) as journal:
        slurm = FakeSlurm(*jobs, a_job(99, user="eve", reservation="later"), a_running_job(901, "n1"))
        controller = Controller(config, slurm, journal, clock=lambda: NOW)
        controller.tick()
        assert controller.report is not None
        return controller.report


def ids(view: QueueView, wanted: QueueFilter, user: str | None = None) -> list[int]:
    return [job.job_id for job in view.page(0, 100, user, wanted)[1]]


def test_a_queue_is_searched_by_user_name_and_id(view: QueueView) -> None:
    assert sorted(ids(view, QueueFilter(match="ANN"))) == [2, 4, 6, 8]
    assert ids(view, QueueFilter(match="job7")) == [7]
    assert ids(view, QueueFilter(match="99")) == [99]
    assert sorted(ids(view, QueueFilter(match="job"), "bob")) == [1, 3, 5, 7]
    assert view.page(0, 0, None, QueueFilter(match="ann"))[0] == 4


def test_a_queue_is_sorted_by_what_a_row_shows(view: QueueView) -> None:
    assert ids(view, QueueFilter(sort="job")) == [1, 2, 3, 4, 5, 6, 7, 8, 99]
    assert ids(view, QueueFilter(sort="job", descending=True))[:2] == [99, 8]
    gpus = [job.gpus for job in view.page(0, 100, None, QueueFilter(sort="gpus"))[1]]
    assert gpus == sorted(gpus)
    waits = [job.wait for job in view.page(0, 100, None, QueueFilter(sort="wait"))[1]]
    assert waits == sorted(waits, reverse=True) or waits == sorted(waits)
    for name in SORTS:
        assert sorted(ids(view, QueueFilter(sort=name))) == [1, 2, 3, 4, 5, 6, 7, 8, 99]


def test_a_partition_has_its_own_queue(view: QueueView) -> None:
    assert len(ids(view, QueueFilter(partition="batch"))) == 9
    assert ids(view, QueueFilter(partition="other")) == []


def test_counts_name_no_job() -> None:
    state = FakeSlurm(a_job(1, waited=60), a_job(2, waited=120), a_running_job(901, "n1")).snapshot()
    told = board.overview(board.counts(state), {"batch": {"jobs": 3, "median": 5.0, "p95": 9.0}})
    assert (told["pending"], told["running"]) == (2, 1)
    (partition,) = told["partitions"]
    assert partition["now"] == {"median": 90.0, "p95": 117.0}
    assert partition["week"]["median"] == 5.0
    assert told["gpus"] == [{"type": "a100", "used": 8, "idle": 8, "down": 0}]


def test_gpus_of_a_node_that_takes_no_jobs_are_down() -> None:
    nodes = [
        SlurmNode(name="a", state="DOWN", gpus={"t4": 4}),
        SlurmNode(name="b", state="IDLE", gpus={"t4": 4, "": 2}, gpus_allocated={"t4": 1}),
    ]
    assert board.gpus_by_type(nodes) == [
        {"type": "t4", "used": 1, "idle": 3, "down": 4},
        {"type": "gpu", "used": 0, "idle": 2, "down": 0},
    ]


def test_other_users_jobs_on_nodes_are_counted_where_they_are_private() -> None:
    state = FakeSlurm(a_running_job(901, "n1"), a_running_job(902, "n2")).snapshot()
    user = state.jobs[0].user
    everything = {node["name"]: node for node in board.nodes(state, None)}
    assert [job["job_id"] for job in everything["n1"]["jobs"]] == [901]
    assert everything["n1"]["others"] == 0
    stranger = {node["name"]: node for node in board.nodes(state, user + "x")}
    assert (stranger["n1"]["jobs"], stranger["n1"]["others"]) == ([], 1)


def ended(end: int, wait: int, partition: str = "batch") -> HistoryJob:
    return HistoryJob(
        job_id=1, display_id="1", name="", user="", account="", partition=partition, qos="", state="COMPLETED",
        submit_time=end - 100 - wait, eligible_time=None, start_time=end - 100, end_time=end, elapsed=100,
        time_limit=None, nodes=1, cpus=1, mem_mb=0, gpus_requested={}, gpus_allocated={}, node_list=(), priority=1,
        exit_code=0,
    )  # fmt: skip


def test_the_week_forgets_what_is_older() -> None:
    waits = RecentWaits()
    waits.learn([ended(1_000_000, 10), ended(1_000_001, 30), ended(1_000_002, 7, "gpu"), ended(100, 9999)])
    told = waits.by_partition(1_000_100)
    assert told["batch"] == {"jobs": 2, "median": 20.0, "p95": 29.0}
    assert told["gpu"] == {"jobs": 1, "median": 7.0, "p95": 7.0}


def test_decisions_are_the_journal_newest_first(tmp_path: Path) -> None:
    config = Config(state_dir=str(tmp_path), policy="sjf@limit", mode="shadow")
    with Journal(config.journal) as journal:
        slurm = FakeSlurm(*(a_job(i, limit=600 * i, waited=10 * i) for i in range(1, 6)))
        Controller(config, slurm, journal, clock=lambda: NOW).tick()
        rows = journal.decisions(100)
        assert rows
        assert [row[0] for row in rows] == sorted((row[0] for row in rows), reverse=True)
        assert journal.decisions(1, before=rows[0][0])[0] == rows[1]
        assert {row[2] for row in journal.decisions(100, job_id=rows[0][2])} == {rows[0][2]}
        assert journal.decisions(100, status="applied") == []
        assert journal.changes_since(0.0) == {"shadow": len(rows)}
