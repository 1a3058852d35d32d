"""Queue pressure: what a job of a given shape would wait."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_rl.config import Config
from slurm_rl.controller.live import ControllerLive
from slurm_rl.grow.pressure import ask_pressure
from slurm_rl.obs.journal import Journal
from slurm_rl.obs.queue import JobView
from slurm_rl.serve.ask import ask
from slurm_rl.serve.pressure import measure
from slurm_rl.serve.run import server

from .conftest import MakeController
from .fake_slurm import FakeSlurm, a_job, a_running_job


def a_row(
    job: int, *, gpus: int = 1, limit: int = 3600, partition: str = "batch", start: float | None = None
) -> JobView:
    return JobView(job, 0, "u", "a", "n", partition, gpus, 1, limit, 0, "", 0, expected_start=start)


@dataclass
class LiveQueue:
    rows: list[JobView] = field(default_factory=list)
    time: float = 1000.0
    tick: int = 7
    max_times: dict[str, int | None] = field(default_factory=dict)

    def page(self, offset: int, limit: int, user: str | None = None) -> tuple[int, list[JobView]]:
        return len(self.rows), self.rows[offset : offset + limit]


def test_waits_are_those_of_jobs_like_it() -> None:
    view: Any = LiveQueue(
        [
            a_row(1, gpus=1, limit=600, start=1060.0),
            a_row(2, gpus=4, limit=600, start=1500.0),
            a_row(3, gpus=8, limit=7200, start=3000.0),
            a_row(4, gpus=8, limit=7200, partition="other", start=9000.0),
            a_row(5, gpus=4, limit=7200),
        ]
    )
    said = measure(view, "batch", 4)
    assert said == {
        "time": 1000.0, "tick": 7, "pending": 4, "like": 3, "wait": {"median": 1250.0, "low": 500.0, "high": 2000.0},
        "max_time": None, "allowed": True,
    }  # fmt: skip
    assert measure(view, "batch", 4, 3600)["wait"]["median"] == 2000.0, "a longer limit waits longer"
    assert measure(view, "batch", 16)["wait"] is None, "nobody like it waits, but others do"
    assert measure(view, "empty", 16)["wait"] == {"median": 0.0, "low": 0.0, "high": 0.0}
    assert measure(view)["pending"] == 5


def test_a_limit_beyond_the_partitions_is_not_allowed() -> None:
    view: Any = LiveQueue(max_times={"short": 3600, "long": 86_400, "any": None})

    def asked(partition: str, limit: int) -> tuple[Any, Any]:
        said = measure(view, partition, 1, limit)
        return said["max_time"], said["allowed"]

    assert asked("short", 3600) == (3600, True)
    assert asked("short", 3601) == (3600, False)
    assert asked("short,long", 7200) == (86_400, True), "either of them will do"
    assert asked("any", 10**8) == (None, True)
    assert asked("short,any", 10**8) == (None, True)
    assert asked("unheard-of", 10**8) == (None, True)


def test_no_service_no_word(tmp_path: Path) -> None:
    assert ask_pressure(tmp_path / "none", partition="batch", gpus=1) is None


def test_the_service_answers_on_its_socket(controller: MakeController, journal: Journal) -> None:
    jobs = [a_job(i, limit=1000 * i, user="root") for i in range(1, 6)]
    slurm = FakeSlurm(*jobs, a_running_job(901, "n1"), a_running_job(902, "n2"), SlurmUser=f"me({os.getuid()})")
    live = ControllerLive(controller(slurm), journal)
    with tempfile.TemporaryDirectory(prefix="srl-") as directory:
        where = Path(directory) / "s.sock"
        runner, sockets = server(Config(socket=str(where), request_timeout_ms=5000), live)
        thread = threading.Thread(target=runner.run, kwargs={"sockets": sockets})
        thread.start()
        try:
            while not runner.started:
                time.sleep(0.01)
            status, said = ask(where, "GET", "/v1/pressure")
            assert (status, said["detail"]) == (404, "no tick has observed the queue yet")
            live.controller.tick()
            found = ask_pressure(where, partition="", gpus=1)
            assert found is not None
            assert (found.pending, found.like) == (5, 5)
            assert found.wait is not None
            assert found.wait >= 0
            longest = ask_pressure(where, partition="", gpus=1, time_limit=5000)
            assert longest is not None
            assert longest.like == 1
            assert ask(where, "GET", "/v1/pressure?gpus=-1")[0] == 422
        finally:
            runner.should_exit = True
            thread.join()
            for listener in sockets:
                listener.close()
