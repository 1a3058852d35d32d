"""Measured watts and speeds in the controller's plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_rl.cli import main
from slurm_rl.config import Config
from slurm_rl.controller.gpu_figures import GpuFigures, ran_on
from slurm_rl.domain.cluster import default_watts
from slurm_rl.place.speed import read_speeds
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import HistoryJob
from slurm_rl.telemetry.store import Store

from .conftest import MakeController
from .fake_slurm import FakeSlurm, a_job, a_running_job


def a_record(job: int, start: float, **values: Any) -> dict[str, Any]:
    record = {"node": "n1", "number": job, "job_id": job, "user": "u", "start": start, "end": start + 60}
    record |= {"gpu_type": "a100", "gpus": 1, "gpus_used": 1, "energy_j": 1.0, "memory_peak_mb": 1}
    record |= {"percents": [[50, 60.0]], "idle_gpu_minutes": 0.0, "gpu_seconds": 60.0}
    return record | {"unmeasured_seconds": 0.0, "slowed_seconds": 0.0, "shared": False, "complete": True} | values


def a_row(job: int, kind: str, seconds: int, *, name: str = "train", **changed: Any) -> HistoryJob:
    given: dict[str, Any] = {
        "job_id": job, "display_id": str(job), "name": name, "user": "u", "account": "a", "partition": "p", "qos": "",
        "state": "COMPLETED", "submit_time": 0, "eligible_time": 0, "start_time": 1000, "end_time": 1000 + seconds,
        "elapsed": seconds, "time_limit": 9999, "nodes": 1, "cpus": 1, "mem_mb": 1, "gpus_requested": {"": 1},
        "gpus_allocated": {kind: 1}, "node_list": ("n1",), "priority": 1, "exit_code": 0,
    }  # fmt: skip
    return HistoryJob(**given | changed)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "telemetry.sqlite")
    yield made
    made.close()


def test_the_plan_reckons_with_measured_watts(controller: MakeController, store: Store) -> None:
    """An hour held at 250 W and an hour free at 30 W, against the published 400 and 50."""
    slurm = FakeSlurm(a_job(1), a_running_job(901, "n1"))
    live = controller(slurm, placement="greedy", placement_weights="energy=100")
    live.tick()
    assert live.observed is not None

    def watts() -> list[float]:
        assert live.observed is not None
        world = live.observed[0].snapshot.world
        return sorted({float(w) for w in world["nodes"]["watts"]})

    kinds = {kind for node in live.client.snapshot().nodes for kind in node.gpus}
    published = watts()
    live.learning.gpus.measured = store
    store.now("n1", [], {kind: [3600.0, 3600 * 250.0, 3600.0, 3600 * 30.0] for kind in kinds})
    slurm.now += 1000
    live.tick()
    gpus = {n.gpus[k] for n in live.client.snapshot().nodes for k in n.gpus}
    idle, busy = default_watts("v100", 0)
    assert watts() == pytest.approx(sorted((busy - idle + g * 220.0) / g for g in gpus))
    assert watts() != published
    store.now("n1", [], {kind: [3599.0, 3600 * 250.0, 3600.0, 3600 * 30.0] for kind in kinds})
    slurm.now += 1000
    live.tick()
    assert watts() == published, "less than an hour is not believed"


def test_a_run_that_others_or_heat_had_part_in_tells_nothing(store: Store) -> None:
    records = {1: {}, 2: {"shared": True}, 3: {"slowed_seconds": 4.0}, 4: {"slowed_seconds": 2.0}}
    store.add("n1", "r", [a_record(job, 1000.0, **values) for job, values in records.items()])
    told = {job: ran_on(a_row(job, "a100", 60), store.run(job, 1000.0)) for job in (1, 2, 3, 4, 5)}
    assert [job for job, ran in told.items() if ran is None] == [2, 3]
    assert (told[1].busy, told[5].busy) == (0.5, 1.0)  # type: ignore[union-attr]
    untyped = ran_on(a_row(1, "", 60), store.run(1, 1000.0))
    assert untyped is not None, "the agent knows the type where the accounting does not"
    assert (untyped.gpu_type, untyped.gpus) == ("a100", 1)
    assert ran_on(a_row(9, "", 60)) is None
    assert ran_on(a_row(1, "a100", 60, state="FAILED"), store.run(1, 1000.0)) is None


def test_speeds_follow_records_that_come_late_and_survive_a_reload(store: Store) -> None:
    figures = GpuFigures(Config(gpu_speeds="learned"))
    figures.measured = store
    rows = [a_row(i, "a100" if i % 2 else "v100", 100 if i % 2 else 400) for i in range(1, 401)]
    figures.learn(rows, now=2000.0)
    assert figures.speeds.speed("a100") / figures.speeds.speed("v100") == pytest.approx(4.0, rel=0.05)
    # The records say that the GPUs idled: the class needs no fast type, and the types are as published.
    store.add("n1", "r", [a_record(i, 1000.0, percents=[[0, 60.0]]) for i in range(1, 401)])
    figures.learn([], now=2100.0)
    assert figures.speeds.speed("a100") / figures.speeds.speed("v100") == pytest.approx(2.0, rel=0.01)
    own = [figures.speeds.speed(kind, "u", "train") for kind in ("a100", "v100")]
    assert own[0] / own[1] == pytest.approx(4.0, rel=0.05)
    figures.follow(Config(gpu_speeds="learned"))
    assert figures.speeds.speed("a100", "u", "train") == pytest.approx(own[0])
    figures.follow(Config(gpu_speeds="a100=3"))
    figures.learn(rows, now=2200.0)
    assert figures.speeds.speed("a100", "u", "train") == 3.0


def test_learned_speeds_reach_the_placement(controller: MakeController, store: Store) -> None:
    slurm = FakeSlurm(a_job(1, user="u", name="j"), a_job(2), a_running_job(901, "n1"))
    live = controller(slurm, placement="greedy", gpu_speeds="learned")
    live.learning.gpus.measured = store
    (kind,) = {kind for node in live.client.snapshot().nodes for kind in node.gpus}
    rows = [a_row(i, kind if i % 2 else "t4", 100 if i % 2 else 900, name="j") for i in range(1, 401)]
    live.learning.gpus.learn(rows, now=2000.0)
    live.tick()
    assert live.observed is not None
    world = live.observed[0].snapshot.world
    rows_of = world["requests"]["row"][world["jobs"]["request"]]
    view = live.observed[0]
    own = {view.jobs[i].job_id: set(world["speed"][rows_of[i]].tolist()) for i in range(len(view.jobs))}
    speeds = live.learning.gpus.speeds
    assert any(np.isclose(s, speeds.speed(kind, "u", "j")) for s in own[1])
    assert any(np.isclose(s, speeds.speed(kind)) for s in own[2]), "a job of another class goes by its type"
    assert own[1] != own[2]


def test_the_command_writes_a_matrix_that_replay_reads(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [a_row(i, "", 100 if i % 2 else 400, name="bert") for i in range(1, 101)]
    records = [a_record(i, 1000.0, gpu_type="a100" if i % 2 else "v100", percents=[[99, 60.0]]) for i in range(1, 101)]
    store.add("n1", "r", records)
    monkeypatch.setattr(CliClient, "history", lambda self, start, end: [*rows, a_row(500, "t4", 50)])
    out = tmp_path / "speeds.json"
    with pytest.raises(SystemExit) as ended:
        main(["node-agent", "fit-speeds", "--since", "2026-01-01", "--out", str(out),
              "--telemetry", str(tmp_path / "telemetry.sqlite"), "--json"])  # fmt: skip
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["runs"], said["measured"], said["classes"]) == (101, 100, 1)
    matrix = read_speeds(out)
    ratio = matrix.speed("a100", "u", "bert") / matrix.speed("v100", "u", "bert")
    assert ratio == pytest.approx(4.0, rel=0.1)
    assert matrix.speed("t4") == pytest.approx(0.45)
