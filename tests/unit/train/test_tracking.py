"""The course of a training is drawn, and told to TensorBoard, W&B and MLflow."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest

from slurm_rl.train.tracking import BOARD, Tracker, draw_curve

CURVE = "iteration,loss,reward,score,best\n0,,,1.0,1.0\n1,0.5,0.1,0.9,0.9\n2,0.4,0.2,0.95,0.9\n"


def test_the_curve_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text(CURVE, encoding="utf-8")
    picture = draw_curve(tmp_path / "curve.csv")
    assert picture == tmp_path / "curve.svg"
    text = picture.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert all(name in text for name in ("score", "best", "reward", "iteration"))
    (tmp_path / "curve.csv").write_text(CURVE.splitlines()[0] + "\n", encoding="utf-8")
    assert draw_curve(tmp_path / "curve.csv") is None


def test_tensorboard_gets_every_figure(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tmp_path / "curve.csv").write_text(CURVE, encoding="utf-8")
    tracker = Tracker(tmp_path)
    tracker.row({"iteration": 1.0, "score": 0.9, "loss": float("nan")})
    tracker.row({"iteration": 2.0, "score": 0.8})
    tracker.close()
    assert tracker.problems == []
    read = EventAccumulator(str(tmp_path / BOARD))
    read.Reload()
    assert [(e.step, round(e.value, 3)) for e in read.Scalars("score")] == [(1, 0.9), (2, 0.8)]
    assert read.Tags()["scalars"] == ["score"]
    assert (tmp_path / "curve.svg").is_file()


def test_wandb_and_mlflow_are_told_only_where_a_site_has_set_them_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is installed here: modules of their names stand in, with the calls that theirs have."""
    told: list[object] = []
    wandb, mlflow = ModuleType("wandb"), ModuleType("mlflow")
    for module in (wandb, mlflow):
        module.__spec__ = SimpleNamespace(name=module.__name__)  # type: ignore[assignment]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    run = SimpleNamespace(
        log=lambda figures, step: told.append(("wandb", step)), finish=lambda: told.append("finished")
    )
    wandb.init = lambda **given: run  # type: ignore[attr-defined]
    mlflow.start_run = lambda run_name: told.append(run_name)  # type: ignore[attr-defined] # noqa: PLW0108
    mlflow.log_params = told.append  # type: ignore[attr-defined]
    mlflow.log_metrics = lambda figures, step: 1 / 0  # type: ignore[attr-defined]
    mlflow.end_run = lambda: told.append("ended")  # type: ignore[attr-defined]
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Tracker(tmp_path).close()
    assert told == []
    monkeypatch.setenv("WANDB_PROJECT", "here")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "there")
    tracker = Tracker(tmp_path, {"seed": 3})
    tracker.row({"iteration": 4.0, "score": 1.0})
    tracker.close()
    assert told == [tmp_path.name, {"seed": "3"}, ("wandb", 4), "finished", "ended"]
    assert any("mlflow: division by zero" in p for p in tracker.problems)  # and the training goes on
