"""Tracks a training: a picture beside curve.csv, TensorBoard, and W&B or MLflow where set up."""

from __future__ import annotations

import csv
import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm_rl.report.charts import Axis, Chart, Panel
from slurm_rl.report.figures import standalone
from slurm_rl.report.theme import COLOURS, SHAPES, Look

BOARD = "tensorboard"  # directory of TensorBoard's files, beside curve.csv
_DRAWN = ("score", "best", "reward")


class Tracker:
    """Tells of every row of a curve: TensorBoard always, if it is installed; W&B and MLflow if a site has set them up.

    `WANDB_PROJECT` names W&B's project, `MLFLOW_TRACKING_URI` the MLflow server: merely to have one of them installed
    sends nothing anywhere. What fails here never stops a training.
    """

    def __init__(self, directory: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.directory = directory
        self.problems: list[str] = []
        self._board = self._try("tensorboard", self._tensorboard)
        self._wandb = (
            self._try("wandb", lambda: self._start_wandb(settings)) if _set("WANDB_PROJECT", "wandb") else None
        )
        mlflow = _set("MLFLOW_TRACKING_URI", "mlflow")
        self._mlflow = self._try("mlflow", lambda: self._start_mlflow(settings)) if mlflow else None

    def _try(self, name: str, act: Any) -> Any:
        try:
            return act()
        except Exception as error:
            self.problems.append(f"{name}: {error}")
            return None

    def _tensorboard(self) -> Any:
        if importlib.util.find_spec("tensorboard") is None:
            return None
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.directory / BOARD))

    def _start_wandb(self, settings: Mapping[str, Any] | None) -> Any:
        wandb = importlib.import_module("wandb")
        return wandb.init(dir=str(self.directory), config=dict(settings or {}), resume="allow")

    def _start_mlflow(self, settings: Mapping[str, Any] | None) -> Any:
        mlflow = importlib.import_module("mlflow")
        mlflow.start_run(run_name=self.directory.name)
        mlflow.log_params({k: str(v)[:200] for k, v in (settings or {}).items()})
        return mlflow

    def row(self, figures: Mapping[str, float]) -> None:
        """One iteration's figures; then the picture is drawn anew."""
        step = int(figures.get("iteration", 0))
        told = {k: float(v) for k, v in figures.items() if k != "iteration" and math.isfinite(v)}
        if self._board is not None:
            self._try("tensorboard", lambda: self._to_board(told, step))
        if self._wandb is not None:
            self._try("wandb", lambda: self._wandb.log(told, step=step))
        if self._mlflow is not None:
            self._try("mlflow", lambda: self._mlflow.log_metrics(told, step=step))
        self._try("curve.svg", lambda: draw_curve(self.directory / "curve.csv"))

    def _to_board(self, told: Mapping[str, float], step: int) -> None:
        for name, value in told.items():
            self._board.add_scalar(name, value, step)
        self._board.flush()

    def close(self) -> None:
        """Ends the runs that were begun."""
        if self._board is not None:
            self._try("tensorboard", self._board.close)
        if self._wandb is not None:
            self._try("wandb", self._wandb.finish)
        if self._mlflow is not None:
            self._try("mlflow", self._mlflow.end_run)


@contextmanager
def tracked(
    directory: Path, settings: Any, report: Callable[[dict[str, float]], None], say: Callable[[str], None]
) -> Iterator[Callable[[dict[str, float]], None]]:
    """What to report a training's rows to: everybody who follows it, then `report`."""
    tracker = Tracker(directory, asdict(settings))

    def told(row: dict[str, float]) -> None:
        tracker.row(row)
        report(row)

    try:
        yield told
    finally:
        tracker.close()
        for problem in dict.fromkeys(tracker.problems):
            say(f"tracking: {problem}")


def _set(variable: str, package: str) -> bool:
    return bool(os.environ.get(variable)) and importlib.util.find_spec(package) is not None


def draw_curve(path: Path) -> Path | None:
    """Draws curve.csv as curve.svg beside it: the validation's score, the best so far, the reward; None if empty."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in _DRAWN if any(row.get(name) for row in rows)]
    if not rows or not names:
        return None
    xs = [float(row["iteration"]) for row in rows]
    series = [[float(row[name]) if row.get(name) else None for row in rows] for name in names]
    chart = Chart(
        "curve",
        "Course of the training",
        "",
        "lines",
        Axis("iteration", "count"),
        Axis("score (lower is better), reward", "ratio"),
        xs if len(xs) > 1 else [xs[0], xs[0] + 1.0],
        [Panel("", series if len(xs) > 1 else [[s[0], s[0]] for s in series])],
    )
    looks = [Look(n, *COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)], False, False) for i, n in enumerate(names)]
    made = path.with_suffix(".svg")
    temporary = made.with_name(f".{made.name}.new")
    temporary.write_text(standalone(chart, looks)[0], encoding="utf-8")
    temporary.replace(made)
    return made
