"""Data to study growth on: scikit-learn's digits, generated tasks of graded difficulty, and a user's own.

A user's task is a Python file with two functions: `load(seed)` returns inputs and labels as arrays, and
`model(inputs, classes)` returns a fresh torch module.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slurm_rl.errors import EnvironmentMissing, InputError, unknown_name
from slurm_rl.kernel.arrays import Array

SAMPLES = 1200
_BASE = 4  # units in each of the two hidden layers that a network begins with

Drawn = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class Data:
    """Inputs and labels to train on, to decide by, and to judge by; the last are seen by no policy."""

    train: tuple[Tensor, Tensor]
    decide: tuple[Tensor, Tensor]
    judge: tuple[Tensor, Tensor]
    classes: int


@dataclass(frozen=True, slots=True)
class Task:
    """A data set and the network that a training begins with."""

    name: str
    load: Callable[[int], Drawn]
    model: Callable[[int, int], nn.Module]


def base_model(inputs: int, classes: int) -> nn.Module:
    """A small network with two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, _BASE), nn.ReLU(), nn.Linear(_BASE, _BASE), nn.ReLU(), nn.Linear(_BASE, classes)
    )


def data_of(task: Task, seed: int) -> Data:
    """Half to train on, a quarter to decide by, a quarter to judge by; inputs scaled by the first half."""
    x, y = task.load(seed)
    x, y = np.asarray(x, np.float32), np.asarray(y)
    if len(x) != len(y) or len(x) < 8:
        raise InputError(f"load({seed}) gave {len(x)} inputs and {len(y)} labels, expected as many of both, 8 or more",
                         file=task.name)  # fmt: skip
    labels, y = np.unique(y, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order], y[order]
    half, rest = len(x) // 2, len(x) * 3 // 4
    mean, spread = x[:half].mean(0), x[:half].std(0) + 1e-6
    inputs, targets = torch.from_numpy((x - mean) / spread), torch.from_numpy(y.astype(np.int64))
    parts = [(inputs[a:b], targets[a:b]) for a, b in ((0, half), (half, rest), (rest, len(x)))]
    return Data(parts[0], parts[1], parts[2], len(labels))


def task_of(name: str) -> Task:
    """A bundled task by its name, or a user's by its file."""
    if name.endswith(".py"):
        return _from_file(Path(name))
    if name in _DIGITS:
        return Task(name, lambda seed: _digits(name, seed), base_model)
    family, _, level = name.rpartition("-")
    if family not in _GENERATED or not level.isdigit() or name not in NAMES:
        raise unknown_name("task", name, NAMES)
    return Task(name, lambda seed: _GENERATED[family](np.random.default_rng(seed), int(level)), base_model)


def _from_file(path: Path) -> Task:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InputError("no such task file", file=str(path))
    module: Any = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file does
        raise InputError(f"cannot be loaded: {type(error).__name__}: {error}", file=str(path)) from None
    for function in ("load", "model"):
        if not callable(getattr(module, function, None)):
            raise InputError(
                f"has no function {function}", file=str(path), remedy="see docs/grow.md, A task of your own"
            )
    return Task(str(path), module.load, module.model)


def _digits(name: str, seed: int) -> Drawn:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise EnvironmentMissing("scikit-learn is not installed: pip install 'slurm-rl[grow]'") from None
    x, y = load_digits(return_X_y=True)
    draw = np.random.default_rng(seed)
    chosen = draw.permutation(len(x))[:SAMPLES]
    x, y = x[chosen], y[chosen]
    if name == "digits-noisy":
        wrong = draw.random(len(y)) < 0.2
        y = np.where(wrong, draw.integers(0, 10, len(y)), y)
    return x, y


def _blobs(draw: np.random.Generator, level: int) -> Drawn:
    """`level` clusters for each of four classes, in eight dimensions."""
    centres = draw.normal(0, 2.2, (4 * level, 8))
    which = draw.integers(0, 4 * level, SAMPLES)
    return centres[which] + draw.normal(0, 1.5, (SAMPLES, 8)), which % 4


def _spirals(draw: np.random.Generator, level: int) -> Drawn:
    """Three arms that wind `level` half turns."""
    along, arm = np.sqrt(draw.random(SAMPLES)), draw.integers(0, 3, SAMPLES)
    angle = along * np.pi * level + arm * 2 * np.pi / 3
    x = np.stack([along * np.cos(angle), along * np.sin(angle)], 1)
    return x + draw.normal(0, 0.03, x.shape), arm


def _teacher(draw: np.random.Generator, level: int) -> Drawn:
    """Labels of a random network with `level` hidden units."""
    x = draw.normal(0, 1, (SAMPLES, 10))
    hidden = np.maximum(x @ draw.normal(0, 1, (10, level)) + draw.normal(0, 0.5, level), 0)
    scores = hidden @ draw.normal(0, 1, (level, 5))
    return x, (scores - scores.mean(0)).argmax(1)


def _checker(draw: np.random.Generator, level: int) -> Drawn:
    """A checkerboard of `level` × `level` fields."""
    x = draw.random((SAMPLES, 2)) * level
    return x, x.astype(np.int64).sum(1) % 2


def _rings(draw: np.random.Generator, level: int) -> Drawn:
    """`level` rings around each other in three dimensions, two classes in turn."""
    direction = draw.normal(0, 1, (SAMPLES, 3))
    ring = draw.integers(0, level, SAMPLES)
    length = ring + 1 + draw.normal(0, 0.15, SAMPLES)
    return direction / np.linalg.norm(direction, axis=1, keepdims=True) * length[:, None], ring % 2


def _waves(draw: np.random.Generator, level: int) -> Drawn:
    """Whether a sum of sines of frequency up to `level` is positive, in four dimensions."""
    x = draw.uniform(-1, 1, (SAMPLES, 4))
    phases = draw.uniform(0, 2 * np.pi, (level, 4))
    total = sum(np.sin(np.pi * (k + 1) * x + phases[k]).sum(1) for k in range(level))
    return x, (np.asarray(total) > 0).astype(np.int64)


_DIGITS = ("digits", "digits-noisy")
_GENERATED: dict[str, Callable[[np.random.Generator, int], Drawn]] = {
    "blobs": _blobs,
    "spirals": _spirals,
    "teacher": _teacher,
    "checker": _checker,
    "rings": _rings,
    "waves": _waves,
}
# Policies learn on the first and are judged on the second: other families, and real data.
LEARN = ("blobs-1", "blobs-3", "blobs-6", "spirals-1", "spirals-2", "spirals-3", "teacher-4", "teacher-16", "checker-2",
         "checker-3")  # fmt: skip
HELD_OUT = ("digits", "digits-noisy", "rings-2", "rings-4", "waves-1", "waves-2")
NAMES = (*LEARN, *HELD_OUT)
