"""Outcome tables: real trainings of every plan of growth, so that policies can be judged without training.

A plan is a choice at each of a few moments: nothing, or one of a short menu of steps. Plans with the same beginning
share it. Time is counted in epochs of the network as it began; an epoch of a grown one takes longer by its parameters.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from slurm_rl.errors import InputError
from slurm_rl.grow.deepen import deepen
from slurm_rl.grow.state import OVERHEAD, GrowthStep, survey
from slurm_rl.grow.tasks import Data, data_of, task_of
from slurm_rl.grow.vocabulary import FINGERPRINT
from slurm_rl.grow.widen import widen

FORMAT = 1


@dataclass(frozen=True, slots=True)
class StudySettings:
    """How trainings are run; times in epochs of the first network."""

    moments: tuple[float, ...] = (4.0, 10.0)  # when a choice is made
    longest: float = 32.0
    batch: int = 100
    rate: float = 2e-2
    factor: float = 2.0
    noise: float = 0.1

    def digest(self) -> str:
        text = json.dumps([FORMAT, FINGERPRINT, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Node:
    """A training after some choices: what the network is, what may come next, and how the stretch went."""

    path: tuple[int, ...]  # 0: nothing, i: choice i - 1 of the menu before
    layers: tuple[int, ...]
    menu: tuple[GrowthStep, ...]  # at the end of the stretch
    epoch: float  # time an epoch takes
    points: tuple[tuple[float, float, float, float], ...]  # time, loss, accuracy to decide by, accuracy to judge by


@dataclass(frozen=True, slots=True)
class Trainings:
    """All plans of one task and seed."""

    task: str
    seed: int
    moments: tuple[float, ...]
    nodes: dict[tuple[int, ...], Node]

    def points(self, path: Sequence[int]) -> list[tuple[float, float, float, float]]:
        """The whole curve along a path."""
        return [p for i in range(len(path) + 1) for p in self.nodes[tuple(path[:i])].points]

    def outcome(self, path: Sequence[int], budget: float) -> float:
        """Accuracy on what no policy sees, after the last epoch that ended within the budget."""
        done = [p for p in self.points(path) if p[0] <= budget + 1e-9]
        return done[-1][3] if done else 0.0

    def decisions(self, budget: float) -> int:
        """How many choices come before a budget ends."""
        return sum(m < budget for m in self.moments)

    def paths(self, budget: float) -> list[tuple[int, ...]]:
        depth = self.decisions(budget)
        return [path for path in self.nodes if len(path) == depth]


def simulate_cell(task: str, seed: int, settings: StudySettings) -> Trainings:
    """Trains every plan of a task with one seed."""
    chosen = task_of(task)
    data = data_of(chosen, seed)
    torch.manual_seed(seed)
    model = chosen.model(data.train[0].shape[1], data.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.rate, fused=True)
    size = sum(p.numel() for p in model.parameters())
    nodes: dict[tuple[int, ...], Node] = {}
    ends = (*settings.moments, settings.longest)

    def grow(path: tuple[int, ...], model: nn.Module, optimizer: torch.optim.Optimizer, now: float) -> None:
        depth = len(path)
        epoch = OVERHEAD + (1 - OVERHEAD) * sum(p.numel() for p in model.parameters()) / size
        points = []
        draw = torch.Generator().manual_seed(seed * 1000 + depth)
        while now + epoch <= ends[depth] + 1e-9 or (depth < len(settings.moments) and now < ends[depth]):
            loss = _train(model, optimizer, data, settings.batch, draw)
            now += epoch
            points.append((now, loss, accuracy(model, data.decide), accuracy(model, data.judge)))
            if now > settings.longest:
                break
        layers, menu = survey(model, settings.factor)
        nodes[path] = Node(path, layers, menu, epoch, tuple(points))
        if depth == len(settings.moments):
            return
        for i in range(len(menu) + 1):
            twin, state = _fork(model, optimizer)
            if i:
                twin = apply(twin, menu[i - 1], state, settings.noise, seed)
            grow((*path, i), twin, state, now)

    grow((), model, optimizer, 0.0)
    return Trainings(task, seed, settings.moments, nodes)


def apply(
    model: nn.Module,
    choice: GrowthStep,
    optimizer: torch.optim.Optimizer | None,
    noise: float,
    seed: int,
    layers: Any = None,
) -> Any:
    """A model after a step of growth."""
    if choice.action == "widen":
        return widen(model, choice.name, to=choice.to, noise=noise, seed=seed, optimizer=optimizer, layers=layers)
    return deepen(model, after=choice.name, seed=seed, optimizer=optimizer, layers=layers)


def _fork(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
    twin, state = copy.deepcopy((model, optimizer))
    return twin, state


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Data, batch: int, draw: torch.Generator) -> float:
    x, y = data.train
    total, order = 0.0, torch.randperm(len(x), generator=draw)
    for chosen in order.split(batch):  # type: ignore[no-untyped-call]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[chosen]), y[chosen])
        torch.autograd.backward(loss)
        optimizer.step()
        total += loss.item() * len(chosen)
    return total / len(x)


def accuracy(model: nn.Module, part: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The share of right answers."""
    was = model.training
    model.eval()
    with torch.no_grad():
        right = (model(part[0]).argmax(-1) == part[1]).float().mean().item()
    model.train(was)
    return float(right)


# Files


def cell_file(directory: Path, task: str, seed: int) -> Path:
    return directory / f"{Path(task).stem}-seed{seed}.json"


def is_done(file: Path, settings: StudySettings) -> bool:
    """Whether a cell was made with these settings; one that was cut short or made otherwise is made anew."""
    try:
        return bool(json.loads(file.read_text())["settings"] == settings.digest())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def save_cell(file: Path, cell: Trainings, settings: StudySettings) -> None:
    value = {
        "settings": settings.digest(),
        "task": cell.task,
        "seed": cell.seed,
        "moments": cell.moments,
        "nodes": [asdict(n) | {"points": [[round(v, 5) for v in p] for p in n.points]} for n in cell.nodes.values()],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".tmp", delete=False) as made:
        json.dump(value, made, separators=(",", ":"))
    os.replace(made.name, file)


def load_cells(directory: Path) -> list[Trainings]:
    """All cells of a directory, which must have been made with the same settings."""
    cells, digests = [], set()
    for file in sorted(directory.glob("*-seed*.json")):
        try:
            value = json.loads(file.read_text())
            digests.add(value["settings"])
            cells.append(_cell(value))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"is not an outcome table ({error})", file=str(file), remedy="run simulate again"
            ) from None
    if not cells:
        raise InputError("has no outcome tables", file=str(directory), remedy="slurm-rl grow simulate --out DIR")
    if len(digests) > 1:
        raise InputError("holds tables of different settings", file=str(directory), remedy="one directory for each")
    return cells


def _cell(value: dict[str, Any]) -> Trainings:
    nodes = [
        Node(
            tuple(n["path"]),
            tuple(n["layers"]),
            tuple(GrowthStep(**c) for c in n["menu"]),
            n["epoch"],
            tuple(tuple(p) for p in n["points"]),
        )
        for n in value["nodes"]
    ]
    return Trainings(value["task"], value["seed"], tuple(value["moments"]), {n.path: n for n in nodes})


def cells_to_make(tasks: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Seed by seed, so that a study that is stopped has all tasks."""
    for seed in seeds:
        for task in tasks:
            yield task, seed
