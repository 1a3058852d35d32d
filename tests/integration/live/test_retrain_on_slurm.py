"""A site's own history on a real Slurm with accounting becomes a candidate model, and the candidate is promoted."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.cli import main
from slurm_rl.controller.promote import Promotions
from slurm_rl.lab.lab import Lab
from slurm_rl.obs.journal import Journal
from slurm_rl.policy.checkpoint import load_model

from ..conftest import LabFactory
from .on_lab import until

pytestmark = pytest.mark.slurm

JOBS, WAVES = 208, 4


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    """A command's exit code and its JSON."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def make_history(lab: Lab) -> None:
    """Waves of short jobs of five users, more than the cluster can run at once."""
    dice = random.Random(5)
    for _ in range(WAVES):
        rows = [
            f"sbatch --output=/dev/null --mem=100 --nodes=1 --gpus={dice.choice([1, 1, 2, 4])} "
            f"--time={dice.choice([5, 10, 60])} --job-name={dice.choice('abcde')} "
            f"--wrap='exec sleep {dice.choice([0, 0.5, 1])}' >/dev/null"
            for _ in range(JOBS // WAVES)
        ]
        lab.run("xargs", "-P", "4", "-d", "\n", "-I", "{}", "sh", "-c", "{}", stdin="\n".join(rows) + "\n", timeout=60)
        time.sleep(2)

    def ended() -> bool:
        states = lab.run("sacct", "-a", "-X", "-n", "-P", "-o", "State").split()
        return states.count("COMPLETED") == JOBS

    until(ended, "the database knows that all jobs have ended", 90)


def stretch(lab: Lab, factor: int) -> None:
    """Makes a second of history an hour, as if the jobs were those of days: nobody learns from waits of seconds."""
    now = int(time.time()) + 2  # a job may have ended in this very second
    # A job that took half a second counts as one of 0 s: every run gets a second more.
    columns = {"time_submit": 0, "time_eligible": 0, "time_start": 0, "time_end": 1}
    moved = ", ".join(f"{c} = {now} - ({now} - {c} - {more}) * {factor}" for c, more in columns.items())
    socket = lab.directory / "run" / "mariadb.socket"
    statement = f"UPDATE lab_job_table SET {moved}, timelimit = timelimit * {factor // 20}"
    lab.run("mariadb", f"--socket={socket}", "-u", "root", "slurm_acct", "-e", statement)


def test_history_becomes_a_candidate_and_the_candidate_is_promoted(
    start_lab: LabFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = start_lab("a100:8*2,t4:8*1", accounting=True)
    out = tmp_path / "november"
    retrain = ("retrain", "--from-slurm", "--slurm-conf", lab.slurm_conf, "--out", out, "--days", 7)
    retrain += ("--iterations", 1, "--generations", 1, "--scenes", 4, "--jobs", 100)
    code, said = run(capsys, *retrain)
    assert (code, "has 0 finished jobs of the last 7 days" in said["error"]["message"]) == (2, True)

    make_history(lab)
    code, said = run(capsys, *retrain)
    assert (code, "too little queueing" in said["error"]["message"]) == (2, True), said
    assert not out.exists(), "nothing is left of it"

    stretch(lab, 3600)
    code, said = run(capsys, *retrain)
    assert (code, said.get("jobs")) == (0, JOBS), said
    assert set(said["ratios"]) == {"multifactor", f"rl:{out / 'model'}", "rl:default", "sjf@user", "fcfs"}
    assert set(said["better_than"]) == {"multifactor", "rl:default"}
    mine = said["ratios"][f"rl:{out / 'model'}"]
    assert mine["mean_wait"] > 0
    manifest = load_model(out / "model").manifest
    assert manifest["init_from"] == "default"
    assert manifest["fitted"]["style"] in {"as trained", "wide", "narrow"}
    assert "styles" not in manifest
    assert manifest["scores"]["test_mean_wait"] == pytest.approx(mine["mean_wait"], abs=1e-4)
    assert [t["jobs"] for t in manifest["traces"].values()] == [JOBS]
    assert json.loads((out / "evaluation.json").read_text()) == said["ratios"]

    # The gate compares with multifactor, since no model is in charge. Which way it goes is up to these jobs.
    config = tmp_path / "slurm-rl.toml"
    config.write_text(f'policy = "rl:current"\nstate_dir = "{tmp_path}/state"\nslurm_conf = "{lab.slurm_conf}"\n')
    fitted = tmp_path / "fitted"
    code, said = run(
        capsys, "models", "fit", "default", "--from-slurm", "--config", config, "--days", 7, "--out", fitted
    )
    assert code == 0, said
    assert set(said["ratios"]) == {"as trained", "wide", "narrow"}
    assert load_model(fitted).manifest["fitted"]["style"] == said["style"]
    code, said = run(capsys, "models", "promote", out / "model", "--config", config, "--days", 7)
    (record,) = Journal(tmp_path / "state" / "journal.sqlite").promotions()
    assert json.loads(record[5])["jobs"] == JOBS
    current = Promotions(tmp_path / "state").current()
    if record[1] == "refused":
        assert (code, current) == (3, None)
        assert "is not promoted" in said["error"]["message"]
    else:
        assert (code, said["what"], said["in_use"]) == (0, "promoted", True)
        assert current is not None
        assert current.digest == load_model(out / "model").digest
