"""A training run: scenes, one algorithm after the other, validation, and a state that survives kill -9."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slurm_rl.evaluate.goals import price
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.checkpoint import Model, flatten, unflatten
from slurm_rl.policy.registry import parse_policy
from slurm_rl.train.algorithms.catalogue import ALGORITHMS, Learner
from slurm_rl.train.module import QueueNet
from slurm_rl.train.rollout import SHORT_CAP, Episode, Reference, log_ratios, play, reference_of
from slurm_rl.train.scenes import SceneSource, TrainingScene, draw_scene
from slurm_rl.train.settings import Settings, TrainingStopped

STATE, CURVE = "training.pt", "curve.csv"
# Mean queue beyond which a scene is left out where there are others: it would take as long to play as all of them.
_LONGEST_QUEUE = 40.0
_DRAWS = 5  # of as many scenes, if nobody waits in the first ones
_SHIFT = 100_000_007  # of their seeds


class Trainer:
    """Holds what a run needs to go on: the network, the algorithm at work, the best so far."""

    def __init__(
        self, settings: Settings, sources: Sequence[SceneSource], directory: Path, start: Model | None = None
    ) -> None:
        self.settings, self.sources, self.directory, self.start = settings, sources, directory, start
        torch.set_num_threads(1)  # the matrices are small: threads would only wait for each other
        row = ALGORITHMS[settings.algorithm]
        self.options: Any = row.settings(settings.options)  # of the algorithm
        self.plan = (*row.first, row.name)
        self.stage, self.step = 0, 0  # which algorithm of the plan, and how many of its steps are done
        self.net = QueueNet(settings.seed)
        if start is not None:
            self.net.take(unflatten(start.net))
        self.best = math.inf
        self.best_net: Array | None = None
        self.best_ratios: dict[str, float] = {}
        self.curve: list[dict[str, float]] = []
        self.reference = parse_policy(settings.reference)
        self.threads = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
        self._learner: Learner | None = None
        self._validation: list[tuple[TrainingScene, Reference]] = []
        self._meta_validation: list[Any] = []  # of a trainer that has others

    def module(self) -> torch.nn.Module:
        """The network that is trained."""
        return self.net

    def weights(self) -> Array:
        """… as one array."""
        return flatten(self.net.tensors())

    # -- scenes --------------------------------------------------------------------------------------------------

    def scenes(self, seeds: Sequence[int]) -> list[tuple[TrainingScene, Reference]]:
        """Workloads in which jobs wait, each with what the reference policy makes of it."""

        def make(seed: int) -> tuple[TrainingScene, Reference]:
            scene = draw_scene(self.sources, seed, jobs=self.settings.jobs, generated=self.settings.generated)
            return scene, reference_of(scene, self.reference)

        for more in range(_DRAWS):
            made = self.threads.map(make, [seed + more * _SHIFT for seed in seeds])
            contended = [(s, r) for s, r in made if r.metrics["wait"] > 30.0]
            quick = [pair for pair in contended if pair[1].queue < _LONGEST_QUEUE]
            if contended:
                return quick or sorted(contended, key=lambda pair: pair[1].queue)[: -(-len(contended) // 4)]
        raise TrainingStopped("no job waits in these workloads: nothing to learn (change the load)")

    def episodes(
        self, scenes: Sequence[tuple[TrainingScene, Reference]], seed: int, temperature: float, net: Array | None = None
    ) -> list[Episode]:
        """Plays scenes with the network, or with another one."""
        playing = flatten(self.net.tensors()) if net is None else net
        costs = self.settings.costs

        def one(k: int) -> Episode:
            scene, reference = scenes[k]
            return play(scene, reference, playing, temperature=temperature, seed=seed + k, costs=costs)

        return list(self.threads.map(one, range(len(scenes))))

    def play(self, number: int, net: Array | None = None) -> list[Episode]:
        """The episodes of a step: its own scenes, played with the network, or with another one."""
        s = self.settings
        first = s.seed * 1_000_003 + 10_000 + number * s.scenes
        return self.episodes(self.scenes(range(first, first + s.scenes)), 1000 * number + 1, s.temperature, net)

    def validation(self) -> dict[str, float]:
        """Geometric means, over fixed scenes that are not trained on, of each figure's ratio to the reference."""
        if not self._validation:
            first = 1_000_000_007  # whatever the seed: trainings of several seeds are compared
            self._validation = self.scenes(range(first, first + self.settings.validation))
        net = flatten(self.net.tensors())
        logs = list(self.threads.map(lambda pair: log_ratios(pair[0], pair[1], net, SHORT_CAP), self._validation))
        ratios = {name: math.exp(float(np.mean([row[name] for row in logs]))) for name in logs[0]}
        ratios["score"] = math.exp(float(np.mean([price(row, self.settings.goals) for row in logs])))
        return ratios

    # -- the run -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The algorithm at work."""
        return self.plan[self.stage]

    @property
    def learner(self) -> Learner:
        """… and what it is made of."""
        if self._learner is None:
            self._learner = ALGORITHMS[self.name].start(self)
        return self._learner

    def run(self, report: Callable[[dict[str, float]], None], say: Callable[[str], None] = lambda text: None) -> Array:
        """Goes through the plan; the network that did best on the validation scenes.

        The last algorithm of the plan is judged after each step, and before its first. `report` gets these rows of the
        curve; `say` gets what the algorithms before it have to tell.
        """
        while self.stage < len(self.plan) - 1:
            while self.step < self.learner.steps:
                numbers = self.learner.step(self.step)
                self.step += 1
                self.save()
                told = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
                say(f"{self.name} {self.step}/{self.learner.steps}{': ' + told if told else ''}")
            self.stage, self.step, self._learner = self.stage + 1, 0, None
        if not self.curve:
            self._judge(report, {})
        while self.step < self.learner.steps:
            numbers = self.learner.step(self.step)
            self.step += 1
            self._judge(report, numbers)
        return self.weights() if self.best_net is None else self.best_net

    def _judge(self, report: Callable[[dict[str, float]], None], numbers: dict[str, float]) -> None:
        ratios = self.validation()
        if ratios["score"] < self.best:
            self.best, self.best_net, self.best_ratios = ratios["score"], self.weights(), ratios
        self.curve.append({"iteration": float(self.step), **numbers, **ratios, "best": self.best})
        self.save()
        self.write_curve()
        report(self.curve[-1])

    def write_curve(self) -> None:
        """Writes the whole course of the validation: a run that is resumed has each iteration once."""
        names = list(dict.fromkeys(name for row in reversed(self.curve) for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" for k, v in row.items()} for row in self.curve)
        _replace(self.directory / CURVE, lambda path: path.write_text(text.getvalue(), encoding="utf-8"))

    # -- going on after a stop -----------------------------------------------------------------------------------

    def _origin(self) -> dict[str, Any]:
        """What a run must have in common with the one that it resumes."""
        settings = asdict(self.settings)
        del settings["iterations"]
        traces = [{"name": s.trace.name, "jobs": len(s.trace)} for s in self.sources]
        return settings | {"trace": traces, "init_from": self.start.digest if self.start else ""}

    def save(self) -> None:
        """Writes all that a resumed run needs, at once or not at all."""
        state = {
            "origin": self._origin(),
            "net": self.module().state_dict(),
            "stage": self.stage,
            "step": self.step,
            "learner": self.learner.state(),
            "best": self.best,
            "best_net": None if self.best_net is None else torch.from_numpy(self.best_net),
            "best_ratios": self.best_ratios,
            "curve": self.curve,
        }
        _replace(self.directory / STATE, lambda path: torch.save(state, path))

    def restore(self) -> str:
        """Takes up a stopped run of the same settings; where it stood, or "" if there was none."""
        path = self.directory / STATE
        if not path.is_file():
            return ""
        state = torch.load(path, weights_only=True)
        if "origin" not in state:
            raise TrainingStopped(f"{path} was made by an earlier release: use another --out")
        origin = self._origin()
        other = {k for k in origin.keys() | state["origin"].keys() if state["origin"].get(k) != origin.get(k)}
        if other:
            raise TrainingStopped(
                f"{path} was made with other settings ({', '.join(sorted(other))}): use another --out"
            )
        self.net.switch_off(self.settings.without)
        self.module().load_state_dict(state["net"])
        self.stage, self.step = int(state["stage"]), int(state["step"])
        self.best, self.best_ratios = float(state["best"]), dict(state["best_ratios"])
        self.best_net = None if state["best_net"] is None else state["best_net"].numpy()
        self.curve = [dict(row) for row in state["curve"]]
        self.learner.restore(state["learner"])
        if self.curve:
            self.write_curve()
        return f"{self.name} {self.step} of {self.learner.steps}"


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file beside its place and moves it there."""
    new = path.with_name(path.name + ".new")
    write(new)
    new.replace(path)
