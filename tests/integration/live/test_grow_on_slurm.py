"""A training job on a real Slurm: it grows, is warned, saves, is requeued, resumes grown and ends before its limit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.cli import main
from slurm_rl.errors import SlurmError
from slurm_rl.grow import checkpoint
from slurm_rl.grow.table import load_cells
from slurm_rl.lab.lab import Lab

from ..conftest import empty_queue
from .on_lab import until

# Jobs run this Python, which a release's root may hide.
pytestmark = [pytest.mark.slurm, pytest.mark.releases("installed")]
ROOT = Path(__file__).parents[3]


def submit_as_printed(lab: Lab, directory: Path, epochs: int, **changed: str) -> str:
    """Submits the sbatch example of docs/grow.md, to the letter; its limit and warning come from the environment."""
    found = re.search(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", (ROOT / "docs/grow.md").read_text(), re.S)
    assert found is not None, "docs/grow.md has no sbatch example"
    (directory / "job.sh").write_text(found[1])
    (directory / "examples").symlink_to(ROOT / "examples")
    ours = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "EPOCHS": str(epochs),
        "SLURM_RL_GROW_LOG": str(directory / "events"),
        "SLURM_RL_GROW_POLICY": "always-widen",
        "SBATCH_MEM_PER_NODE": "1G",
        "SBATCH_OUTPUT": str(directory / "out"),
    }
    words = [f"{name}={value}" for name, value in (ours | changed).items()]
    return lab.run("env", *words, "sbatch", "--parsable", f"--chdir={directory}", f"{directory}/job.sh").strip()


def read(events: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []


def kinds(events: Path) -> list[str]:
    return [e["event"] for e in read(events)]


def field(lab: Lab, job: str, name: str) -> str:
    found = re.search(rf"\b{name}=(\S+)", lab.run("scontrol", "show", "job", job))
    assert found is not None, name
    return found[1]


def release(lab: Lab, job: str) -> None:
    """Slurm holds a requeued job back for two minutes; an administrator may release it at once."""
    if field(lab, job, "JobState") == "PENDING":
        with suppress(SlurmError):  # it has started meanwhile
            lab.run("scontrol", "update", f"JobId={job}", "StartTime=now")


@pytest.fixture(scope="module")
def two_jobs(shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, Path]]]:
    """Two trainings that wait for their limits at the same time: one that Slurm warns, one that ends by itself."""
    empty_queue(shared_lab)
    warned, alone = tmp_path_factory.mktemp("warned"), tmp_path_factory.mktemp("alone")
    limit = {"SBATCH_TIMELIMIT": "3", "SBATCH_SIGNAL": "B:USR1@75"}
    first = submit_as_printed(shared_lab, warned, 1_000_000, **limit)
    wrap = (
        f"export SLURM_RL_GROW_LOG={alone}/events OMP_NUM_THREADS=1; "
        f"exec {sys.executable} {ROOT}/examples/grow_digits.py --epochs 1000000 --checkpoint {alone}/c.pt"
    )
    options = ("--parsable", "--time=2", "--gpus=1", "--mem=1G", f"--output={alone}/out", f"--wrap={wrap}")
    second = shared_lab.run("sbatch", *options).strip()
    yield {"warned": (first, warned), "alone": (second, alone)}
    empty_queue(shared_lab)


def test_slurm_warns_a_job_which_is_requeued_and_resumes_grown(
    shared_lab: Lab, two_jobs: dict[str, tuple[str, Path]]
) -> None:
    """The warning is Slurm's own: --signal, 75 to 105 seconds before a limit of three minutes ends.

    Before that the script must have imported torch, on a busy machine too.
    """
    job, directory = two_jobs["warned"]
    events = directory / "events"
    until(lambda: "requeued" in kinds(events), "Slurm has warned the job and it was put back", 300)
    said = read(events)
    order = [kinds(events).index(kind) for kind in ("grew", "warned", "requeued")]
    assert order == sorted(order)
    assert "saved" in kinds(events)[order[1] : order[2]]
    warned = said[order[1]]
    assert 0 < warned["left"] <= 180 - 60, "the limit had not ended when Slurm warned"
    before = [e for e in said[: order[2]] if e["event"] == "grew"]

    def resumed() -> bool:
        release(shared_lab, job)
        return "resumed" in kinds(events)

    until(resumed, "the training has resumed", 300)
    back = next(e for e in read(events) if e["event"] == "resumed")
    assert back["steps"] == len(before)
    assert back["epoch"] >= before[-1]["epoch"]
    assert field(shared_lab, job, "Restarts") >= "1"
    shared_lab.run("scancel", job)


def test_a_job_ends_by_itself_before_its_limit(shared_lab: Lab, two_jobs: dict[str, tuple[str, Path]]) -> None:
    """No warning, no requeue: the Grower alone sees that the next epoch would not fit."""
    job, directory = two_jobs["alone"]
    states = ("PENDING", "RUNNING", "COMPLETING")
    until(lambda: field(shared_lab, job, "JobState") not in states, "the job has ended", 300)
    assert field(shared_lab, job, "JobState") == "COMPLETED"
    assert field(shared_lab, job, "RunTime") <= "00:02:00"
    assert "saved" in kinds(directory / "events")
    assert "out of time" in (directory / "out").read_text()


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


@pytest.mark.soak
def test_a_training_longer_than_its_limit_ends_after_some_runs(slurm: Lab, tmp_path: Path) -> None:
    """At Slurm's own pace: warned, requeued, held back for two minutes, resumed grown, until it is done."""
    tried = tmp_path / "tried.pt"
    words = ["--epochs", "40", "--checkpoint", str(tried)]
    subprocess.run([sys.executable, ROOT / "examples/grow_digits.py", *words], check=True, capture_output=True)
    epochs = int(40 * 150 / checkpoint.load(tried)[0].elapsed)  # about 150 s, more than a run has
    job = submit_as_printed(slurm, tmp_path, epochs, SBATCH_TIMELIMIT="2", SBATCH_SIGNAL="B:USR1@45")
    states = {"PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING"}
    until(lambda: field(slurm, job, "JobState") not in states, "the training is done", 1800)
    events = tmp_path / "events"
    assert field(slurm, job, "JobState") == "COMPLETED", (tmp_path / "out").read_text()
    assert field(slurm, job, "RunTime") < "00:02:00"
    assert int(field(slurm, job, "Restarts")) == kinds(events).count("requeued") == kinds(events).count("resumed") >= 1
    assert f"epoch {epochs}: " in (tmp_path / "out").read_text()
    # Each run ended before its limit: its events lie within two minutes.
    runs: list[list[float]] = [[]]
    for event in read(events):
        if event["event"] == "resumed":
            runs.append([])
        runs[-1].append(event["time"])
    assert all(run[-1] - run[0] < 120 for run in runs)
    steps = [e["steps"] for e in read(events) if e["event"] == "resumed"]
    assert steps[0] >= 1
    assert steps == sorted(steps)
