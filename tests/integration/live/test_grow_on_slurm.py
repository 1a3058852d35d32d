"""A training job on a real Slurm: it grows, is warned, saves, is requeued, resumes grown and ends before its limit."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.cli import main
from slurm_rl.grow.table import load_cells
from slurm_rl.lab.lab import Lab

from .on_lab import until

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).parents[3]


def the_documented_script(directory: Path, events: Path) -> str:
    """The sbatch example of docs/grow.md, with this Python and shorter times."""
    text = (ROOT / "docs/grow.md").read_text()
    found = re.search(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", text, re.S)
    assert found is not None, "docs/grow.md has no sbatch example"
    script = found[1]
    for pattern, ours in (
        (r"--time=\S+", "--time=4"),
        (r"--signal=B:USR1@\d+", "--signal=B:USR1@60"),
        (r"--gpus=1", "--gpus=1\n#SBATCH --mem=1G"),
        (r"exec python examples/grow_digits.py", f"exec {sys.executable} {ROOT}/examples/grow_digits.py"),
        (r"--epochs 200", "--epochs 100000"),
    ):
        script, count = re.subn(pattern, ours, script)
        assert count == 1, pattern
    export = f"export SLURM_RL_GROW_LOG={events} SLURM_RL_GROW_POLICY=always-widen OMP_NUM_THREADS=1\n"
    return script.replace("exec ", export + "exec ")


def read(events: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []


def kinds(events: Path) -> list[str]:
    return [e["event"] for e in read(events)]


def test_a_job_grows_is_warned_requeued_and_resumes_grown(slurm: Lab, tmp_path: Path) -> None:
    events, script = tmp_path / "events", tmp_path / "job.sh"
    script.write_text(the_documented_script(tmp_path, events))
    job = slurm.run("sbatch", "--parsable", f"--chdir={tmp_path}", f"--output={tmp_path}/out", str(script)).strip()
    until(lambda: "grew" in kinds(events), "the network has grown", 240)
    # Slurm's own warning comes 60 to 120 seconds before the end; the test need not wait for it.
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    until(lambda: "requeued" in kinds(events), "the job was put back", 120)
    said = read(events)
    assert kinds(events).index("warned") < kinds(events).index("requeued")
    assert "saved" in kinds(events)[kinds(events).index("warned") :]
    before = [e for e in said if e["event"] == "grew"]

    # Slurm holds a requeued job back for two minutes; an administrator may release it at once.
    def released() -> bool:
        state = slurm.run("squeue", "-h", "-j", job, "-o", "%T").strip()
        if state == "PENDING":
            slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        return "resumed" in kinds(events)

    until(released, "the training has resumed", 300)
    resumed = next(e for e in read(events) if e["event"] == "resumed")
    assert resumed["steps"] == len(before)
    assert resumed["epoch"] >= before[-1]["epoch"]
    shown = slurm.run("scontrol", "show", "job", job)
    assert re.search(r"Restarts=[1-9]", shown)


def test_a_job_ends_by_itself_before_its_limit(slurm: Lab, tmp_path: Path) -> None:
    """No warning, no requeue: the Grower alone sees that the next epoch would not fit."""
    events = tmp_path / "events"
    wrap = (
        f"export SLURM_RL_GROW_LOG={events} OMP_NUM_THREADS=1; "
        f"exec {sys.executable} {ROOT}/examples/grow_digits.py --epochs 1000000 --checkpoint {tmp_path}/c.pt"
    )
    options = ("--parsable", "--time=3", "--gpus=1", "--mem=1G", f"--output={tmp_path}/out", f"--wrap={wrap}")
    job = slurm.run("sbatch", *options).strip()

    def state() -> str:
        found = re.search(r"JobState=(\S+)", slurm.run("scontrol", "show", "job", job))
        return found[1] if found else "?"

    until(lambda: state() not in ("PENDING", "RUNNING", "COMPLETING"), "the job has ended", 300)
    shown = slurm.run("scontrol", "show", "job", job)
    assert state() == "COMPLETED", shown
    (run,) = re.findall(r"RunTime=(\S+)", shown)
    assert run <= "00:03:00"
    assert "saved" in kinds(events)
    assert "out of time" in (tmp_path / "out").read_text()


def test_tables_are_made_by_a_job_array(
    slurm: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.slurm_conf))
    words = ["grow", "simulate", "--out", str(tmp_path / "tables"), "--tasks", "checker-2,spirals-1", "--seeds", "2"]
    small = ["--moments", "1", "--longest", "2", "--executor", "slurm", "--slurm", "mem=1G", "--wait", "--json"]
    began = time.time()
    for made in (4, 0):
        with pytest.raises(SystemExit) as ended:
            main([*words, *small])
        said = json.loads(capsys.readouterr().out)
        assert ended.value.code == 0, said
        assert len(said["jobs"]) == made
        assert len({j["job"].partition("_")[0] for j in said["jobs"]}) == (1 if made else 0)
    cells = load_cells(tmp_path / "tables")
    assert sorted((c.task, c.seed) for c in cells) == [
        ("checker-2", 0), ("checker-2", 1), ("spirals-1", 0), ("spirals-1", 1)
    ]  # fmt: skip
    assert all(f.stat().st_mtime >= began for f in (tmp_path / "tables").glob("*.json"))
