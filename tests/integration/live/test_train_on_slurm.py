"""`slurm-rl train --executor slurm` on a real Slurm: one job a seed, and the best is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.cli import main
from slurm_rl.lab.lab import Lab
from slurm_rl.policy.checkpoint import load_model

pytestmark = pytest.mark.slurm


def train(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    small = ("--iterations", 1, "--scenes", 6, "--jobs", 300, "--generations", 0)
    with pytest.raises(SystemExit) as ended:
        main([*map(str, ("train", "--executor", "slurm", *small, *words)), "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.mark.releases("installed")  # its jobs run this Python, which is not in a root
def test_seeds_are_trained_as_jobs_and_the_best_is_chosen(
    slurm: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.slurm_conf))
    code, said = train(capsys, "--out", tmp_path, "--slurm", "partition=nowhere")
    assert (code, "nvalid partition" in said["error"]["message"]) == (5, True)

    code, said = train(capsys, "--out", tmp_path, "--slurm", "mem=2G", "--slurm", "begin=now+1hour", "--seeds", 2)
    assert (code, [j["seed"] for j in said["jobs"]]) == (0, [0, 1])
    shown = slurm.run("squeue", "-h", "-o", "%i %j %m %C")
    for job in said["jobs"]:
        assert f"{job['job']} slurm-rl-train-{job['seed']} 2G 2" in shown
        slurm.run("scancel", job["job"])

    code, said = train(capsys, "--out", tmp_path, "--slurm", "mem=2G", "--seeds", 2, "--wait")
    assert code == 0, said
    scores = {s: load_model(tmp_path / f"seed-{s}" / "model").manifest["scores"]["validation_score"] for s in (0, 1)}
    assert said["seeds"] == {str(s): pytest.approx(v, abs=1e-4) for s, v in scores.items()}
    assert said["seed"] == min(scores, key=lambda s: scores[s])
    best = load_model(tmp_path / "model")
    assert best.digest == load_model(tmp_path / f"seed-{said['seed']}" / "model").digest == said["sha256"]
    assert best.manifest["seeds"] == said["seeds"]
    log = Path(said["jobs"][1]["log"]).read_text()
    assert f"--out {tmp_path}/seed-1 " in log
    assert "--resume" in log, "a job that is queued again goes on where it was"
