"""The trainer: a used directory is refused, and a run killed anywhere goes on where it was, and says so."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slurm_rl.cli import main
from slurm_rl.errors import InputError
from slurm_rl.policy.meta import load_any, load_meta
from slurm_rl.policy.regime import DEADLINE_PART, REGIME_FEATURES, REGIME_PART
from slurm_rl.train.algorithms.catalogue import ALGORITHMS, algorithm_names
from slurm_rl.train.algorithms.ppo import PpoSettings
from slurm_rl.train.recipe import train_model
from slurm_rl.train.settings import SearchSettings, Settings, TrainingStopped
from slurm_rl.train.trainer import Trainer

ROOT = Path(__file__).parents[3]
SMALL = ["--iterations", "2", "--scenes", "3", "--jobs", "200", "--generations", "2", "--lessons", "3"]


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as end:
        main([*map(str, words), "--json"])
    return int(end.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("left", ["training.pt", "curve.csv", "model", "seed-1/training.pt"])
@pytest.mark.parametrize("executor", ["local", "slurm"])
def test_a_used_directory_is_refused_and_stays_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, left: str, executor: str
) -> None:
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).write_text("an older training")
    code, said = call(capsys, "train", "--out", tmp_path, "--seeds", 2, "--executor", executor, *SMALL)
    assert code == InputError.exit_code
    message = said["error"]["message"]
    assert left in message
    assert "--resume" in message
    assert "another --out" in message
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / left]
    assert (tmp_path / left).read_text() == "an older training"


TINY = Settings(
    iterations=2, scenes=3, jobs=200, validation=2, lessons=3, search=SearchSettings(generations=2, pairs=1)
)
KILLED = """
import os, signal, sys
from pathlib import Path
from slurm_rl.train.recipe import train_model
from slurm_rl.train.trainer import Trainer
from tests.unit.train.test_trainer import TINY

save, left = Trainer.save, [int(sys.argv[2])]

def save_and_die(self):
    save(self)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

Trainer.save = save_and_die
train_model(TINY, [], Path(sys.argv[1]), resume=True, say=lambda text: print(text, flush=True))
"""


def same_training(one: Path, two: Path) -> None:
    """Two trainings made the same network, by the same course."""
    assert load_any(one / "model").digest == load_any(two / "model").digest
    curves = [(place / "curve.csv").read_text() for place in (one, two)]
    assert curves[0] == curves[1]
    assert [line.split(",")[0] for line in curves[0].splitlines()] == ["iteration", "0", "1", "2"]


def test_a_training_killed_twice_ends_as_one_that_was_not(tmp_path: Path) -> None:
    def killed_at(save: int) -> str:
        words = [sys.executable, "-c", KILLED, str(tmp_path / "parts"), str(save)]
        ended = subprocess.run(words, check=False, timeout=600, capture_output=True, text=True, cwd=ROOT)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        return ended.stdout

    # Saved are: the lessons, two generations of the search, the start and the iterations of the algorithm.
    assert "nothing to resume" in killed_at(2)
    assert not (tmp_path / "parts" / "curve.csv").exists()
    assert "resuming after search 1 of 2" in killed_at(3)
    said: list[str] = []
    train_model(TINY, [], tmp_path / "parts", resume=True, say=said.append)
    assert said == [f"{tmp_path / 'parts'}: resuming after ppo 1 of 2"]
    train_model(TINY, [], tmp_path / "whole")
    same_training(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("algorithm", [name for name in algorithm_names() if name != "ppo"])
def test_every_algorithm_goes_on_where_it_was(tmp_path: Path, algorithm: str) -> None:
    few: dict[str, float] = {
        "updates": 4,
        "batch": 32,
        "alone": 0,
        "paired": 1,
        "sites": 0,
    }  # where it has these settings
    own = {f.name for f in fields(ALGORITHMS[algorithm].settings({}))}
    settings = replace(TINY, algorithm=algorithm, options={k: v for k, v in few.items() if k in own})
    model = train_model(settings, [], tmp_path / "whole")
    assert model.manifest["algorithm"] == algorithm

    class Stopped(Exception):
        pass

    def stop(row: dict[str, float]) -> None:
        if row["iteration"] == 1:
            raise Stopped

    with pytest.raises(Stopped):
        train_model(settings, [], tmp_path / "parts", report=stop)
    train_model(settings, [], tmp_path / "parts", resume=True)
    same_training(tmp_path / "whole", tmp_path / "parts")


def test_a_run_of_other_settings_or_another_release_is_not_resumed(tmp_path: Path) -> None:
    trainer = Trainer(Settings(), [], tmp_path)
    trainer.save()
    with pytest.raises(TrainingStopped, match=r"other settings \(jobs, seed\)"):
        Trainer(Settings(jobs=100, seed=1), [], tmp_path).restore()
    assert Trainer(Settings(iterations=99), [], tmp_path).restore() == "imitate 0 of 1"
    torch.save({"settings": {}, "iteration": 3}, tmp_path / "training.pt")
    with pytest.raises(TrainingStopped, match="earlier release"):
        Trainer(Settings(), [], tmp_path).restore()


def test_settings_of_an_algorithm_are_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, said = call(capsys, "train", "--out", tmp_path, "--set", "clipp=0.1")
    assert (code, "ppo has no setting 'clipp'" in said["error"]["message"]) == (InputError.exit_code, True)
    assert ALGORITHMS["ppo"].settings({"epochs": 5.0, "clip": 0.1}) == PpoSettings(epochs=5, clip=0.1)


def test_a_choice_of_policies_is_trained_by_one_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["train", "--algo", "metadqn", "--out", tmp_path / "run", "--candidates", "fcfs,sjf@user,edf"]
    small = ["--iterations", 1, "--scenes", 2, "--jobs", 150, "--set", "updates=4,paired=2,sites=0,deadline=0,regime=0"]
    code, said = call(capsys, *words, *small)
    assert (code, said["scores"]["validation_score"] > 0) == (0, True)
    model = load_meta(tmp_path / "run" / "model")
    assert model.meta.names == ("fcfs", "sjf@user", "edf")
    off = [name in (*REGIME_PART, *DEADLINE_PART) for name in REGIME_FEATURES]
    scale = model.tensors()["scale"][: len(off)]
    assert not scale[off].any(), "what is switched off counts nothing"
    assert scale[~np.array(off)].any()
    code, _ = call(capsys, "replay", ROOT / "traces" / "real01.csv", "--policy", f"meta:{tmp_path / 'run' / 'model'}")
    assert code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--candidates", "fcfs,nobody"], "nobody"),
        (["--candidates", ""], "an empty set"),
        (["--candidates", "fcfs"], "leaves nothing to choose"),
        (["--algo", "ppo", "--candidates", "fcfs,sjf"], "goes with --algo metadqn"),
        (["--init-from", "default"], "learned from nothing"),
    ],
)
def test_a_bad_set_is_refused_before_training(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], told: str
) -> None:
    algo = [] if "--algo" in words else ["--algo", "metadqn"]
    code, said = call(capsys, "train", "--out", tmp_path / "run", *algo, *words)
    assert code != 0
    assert told in said["error"]["message"]
