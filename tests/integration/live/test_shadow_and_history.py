"""With an accounting database: estimates learn from finished jobs, and a shadow period can be replayed both ways."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.cli import main
from slurm_rl.config import Config
from slurm_rl.controller.tick import Controller
from slurm_rl.lab.lab import Lab
from slurm_rl.obs.journal import Journal
from slurm_rl.policy.checkpoint import save_model
from slurm_rl.policy.network import LAYOUT
from slurm_rl.slurm.cli import CliClient

from .on_lab import until

pytestmark = pytest.mark.slurm


def sbatch(lab: Lab, name: str, seconds: float, *options: str) -> int:
    arguments = ("--parsable", "--output=/dev/null", "--mem=1G", f"--job-name={name}", "--gpus=a100:8", *options)
    return int(lab.run("sbatch", *arguments, f"--wrap=exec sleep {seconds}").strip())


def test_shadow_learns_and_its_report_replays_both_ways(
    slurm: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = CliClient(slurm.slurm_conf)
    config = Config(mode="shadow", policy="sjf@user", state_dir=str(tmp_path), slurm_conf=str(slurm.slurm_conf))
    began = time.time()
    shadow = Controller(config, client, Journal(config.journal))
    shadow.tick()
    done = [sbatch(slurm, "long", 9, "--time=60"), *(sbatch(slurm, "quick", 2, "--time=60") for _ in range(3))]

    def finished() -> bool:
        ended = {j.job_id for j in client.history(began - 60, time.time()) if j.state == "COMPLETED"}
        return ended >= set(done)

    until(finished, "the database knows the jobs that have ended", 60)

    # Both wait with a limit of an hour; history tells them apart by name.
    for _ in range(2):
        sbatch(slurm, "fill", 600, "--time=120")
    until(lambda: sum(j.running for j in client.snapshot().jobs) == 2, "the nodes are taken")
    long, quick = sbatch(slurm, "long", 9, "--time=60"), sbatch(slurm, "quick", 2, "--time=60")
    learned = Controller(config, client, Journal(config.journal))
    learned.tick()
    assert learned.run_times.seen >= 4
    assert learned.report is not None
    first, second = learned.report.job(quick), learned.report.job(long)
    assert first is not None
    assert second is not None
    assert (first.rank, second.rank) == (0, 1)
    assert 1 < first.estimate < second.estimate < 60, "an hour is their limit"

    file = tmp_path / "slurm-rl.toml"
    file.write_text(f'mode = "shadow"\nstate_dir = "{tmp_path}"\nslurm_conf = "{slurm.slurm_conf}"\n')
    with pytest.raises(SystemExit) as ended:
        main(["shadow-report", "--config", str(file), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0, report
    assert (report["ticks"], report["policy"]) == (2, "sjf@user")
    assert report["jobs"] >= 4
    assert report["slurm"]["completed"] == report["slurm_rl"]["completed"] == report["jobs"]
    assert not any(j.site_factor for j in client.snapshot().jobs)

    # The replay gate reads the same history, and does not judge by a handful of jobs.
    tensors = {name: np.ones(shape, dtype=np.float32) for name, shape in LAYOUT.items()}
    save_model(tmp_path / "model", tensors, {"algorithm": "none"})
    with pytest.raises(SystemExit) as ended:
        main(["models", "promote", f"{tmp_path}/model", "--config", str(file), "--days", "0.001", "--json"])
    assert ended.value.code == 2
    assert "jobs tells nothing" in json.loads(capsys.readouterr().out)["error"]["message"]
