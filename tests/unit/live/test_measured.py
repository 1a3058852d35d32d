"""`explain` of a job that has started: what it used, for its owner and for admins."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.cli.app import main
from slurm_rl.config import Config, load
from slurm_rl.controller.live import ControllerLive
from slurm_rl.errors import InputError
from slurm_rl.obs.journal import Journal
from slurm_rl.serve.ask import ask
from slurm_rl.serve.run import server
from slurm_rl.telemetry.measured import MeasuredJobs

from .conftest import MakeController
from .fake_slurm import FakeSlurm, a_job
from .test_service import as_nobody


def a_record(job: int, user: str, **values: Any) -> dict[str, Any]:
    record = {"node": "n1", "ring": "r", "number": job, "job_id": job, "user": user}
    record |= {"start": time.time() - 500, "end": time.time() - 200}
    record |= {"gpu_type": "a100", "gpus": 8, "gpus_used": 2, "energy_j": 3.6e6, "memory_peak_mb": 4096}
    record |= {"percents": [[0, 1800.0], [44, 600.0]], "idle_gpu_minutes": 30.0, "gpu_seconds": 2400.0}
    return record | {"unmeasured_seconds": 0.0, "slowed_seconds": 0.0, "shared": False, "complete": True} | values


@pytest.fixture
def path(controller: MakeController, journal: Journal, tmp_path: Path) -> Iterator[Path]:
    shared = tmp_path / "shared"
    shared.mkdir()
    records = [a_record(71, "nobody"), a_record(72, "root", idle_gpu_minutes=31.0), a_record(73, "")]
    (shared / "n1.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    now = {"node": "n1", "jobs": [a_record(74, "root")], "watts": {}}
    (shared / "n1.now.json").write_text(json.dumps(now))
    slurm = FakeSlurm(a_job(1, user="root"), SlurmUser=f"me({os.getuid()})")
    live = ControllerLive(controller(slurm), journal)
    live.controller.tick()
    with tempfile.TemporaryDirectory(prefix="srl-") as directory:
        Path(directory).chmod(0o755)
        where = Path(directory) / "s.sock"
        config = Config(socket=str(where), request_timeout_ms=5000, state_dir=str(tmp_path), telemetry_dir=str(shared))
        jobs = live.measurements = MeasuredJobs(config, live.metrics.registry)
        runner, sockets = server(config, live)
        thread = threading.Thread(target=runner.run, kwargs={"sockets": sockets})
        thread.start()
        while not runner.started or jobs.of(74) is None:
            time.sleep(0.01)
        yield where
        runner.should_exit = True
        thread.join()
        jobs.close()
        for listener in sockets:
            listener.close()


def test_an_admin_sees_every_job(path: Path) -> None:
    status, said = ask(path, "GET", "/v1/jobs/71/explain")
    assert status == 200
    assert (said["measured"]["gpus"], said["measured"]["gpus_used"], said["measured"]["util_mean"]) == (8, 2, 11.0)
    assert ask(path, "GET", "/v1/jobs/74/explain")[1]["measured"]["running"]
    assert ask(path, "GET", "/v1/jobs/99/explain")[0] == 404
    assert "rank" in ask(path, "GET", "/v1/jobs/1/explain")[1]  # a pending job is explained as ever


def test_running_jobs_are_listed_for_the_dashboard(path: Path) -> None:
    status, said = ask(path, "GET", "/v1/measured")
    assert status == 200
    assert [(j["job_id"], j["running"]) for j in said["jobs"]] == [(74, True)]
    assert "/v1/measured" in ask(path, "GET", "/ui/use.js")[1]
    assert ask(path, "GET", "/v1/measured?limit=0")[0] == 422


def test_ended_jobs_are_listed_the_idlest_first(path: Path) -> None:
    said = ask(path, "GET", "/v1/measured?ended=3600")[1]
    assert [(j["job_id"], j["running"]) for j in said["jobs"]] == [(72, False), (71, False), (73, False)]
    assert len(ask(path, "GET", "/v1/measured?ended=3600&limit=1")[1]["jobs"]) == 1
    assert ask(path, "GET", "/v1/measured?ended=-1")[0] == 422


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_user_sees_only_their_own(path: Path) -> None:
    assert as_nobody(path, "GET", "/v1/jobs/71/explain")[1]["measured"]["user"] == "nobody"
    for job in (72, 73, 74):
        status, said = as_nobody(path, "GET", f"/v1/jobs/{job}/explain")
        assert (status, said) == (403, {"detail": f"job {job} is not yours"})
    assert as_nobody(path, "GET", "/v1/measured") == (200, {"jobs": []})
    ended = as_nobody(path, "GET", "/v1/measured?ended=3600")[1]
    assert [j["job_id"] for j in ended["jobs"]] == [71]


def test_the_command_says_it_in_words(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "71", "--socket", str(path)])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "your job used 2 of 8 a100 GPUs at 11%" in said
    assert "1 kWh" in said


def test_trouble_is_a_metric(path: Path) -> None:
    text = ask(path, "GET", "/metrics")[1]
    assert 'slurmrl_telemetry_sources{state="well"} 1.0' in text
    assert 'slurmrl_telemetry_sources{state="trouble"} 0.0' in text


def test_agents_need_a_token(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('telemetry_agents = "gpu01:9410"\n')
    with pytest.raises(InputError, match="needs telemetry_token_file"):
        load(tmp_path / "c.toml", {})
