"""Evolution strategies over a network's linear path: a start for policy gradients that already does well as a whole.

Rewards of single turns say little about tails and slowdowns of a whole workload; here whole replays are compared. The
same scenes are played by all candidates of a generation, and candidates come in pairs (+, -), so that what is common
to them cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slurm_rl.evaluate.goals import price
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.checkpoint import flatten, unflatten
from slurm_rl.train.rollout import SHORT_CAP, log_ratios

if TYPE_CHECKING:
    from slurm_rl.train.trainer import Trainer

_CLIP = 0.25  # of the difference of a pair on one scene: schedules are chaotic, and single ones must not decide
_AVERAGE = 0.93  # of the past in the average over generations that the network gets


class Search:
    """Moves the linear path to where whole replays are better, on fresh scenes each generation."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.settings = trainer, trainer.settings.search
        self.steps = self.settings.generations
        self.theta = trainer.net.tensors()["skip"].astype(float)
        self.average, self.slope, self.power = self.theta.copy(), np.zeros(len(self.theta)), 0.0

    def step(self, number: int) -> dict[str, float]:
        """One generation."""
        s, settings = self.settings, self.trainer.settings
        share = number / s.generations
        width, rate = s.width * (1.0 - 0.6 * share), s.rate * (1.0 - 0.85 * share)
        steps = np.random.default_rng([settings.seed, 11, number]).standard_normal((s.pairs, len(self.theta)))
        first = settings.seed * 7_000_003 + 1000 + number * settings.scenes
        cast = self.trainer.scenes(range(first, first + settings.scenes))
        net = flatten(self.trainer.net.tensors())
        tries = [_with_path(net, self.theta + sign * width * step) for step in steps for sign in (1.0, -1.0)]
        plays = [(scene, reference, one, SHORT_CAP) for one in tries for scene, reference in cast]
        logs = self.trainer.threads.map(log_ratios, *zip(*plays, strict=True))
        prices = np.array([price(row, settings.goals) for row in logs]).reshape(s.pairs, 2, len(cast))
        gaps = np.clip(prices[:, 0] - prices[:, 1], -_CLIP, _CLIP).mean(axis=1)
        self._move((gaps[:, None] * steps).mean(axis=0), rate, number + 1)
        self.trainer.net.take(unflatten(_with_path(net, self.average)))
        return {"price": math.exp(float(prices.mean()))}

    def _move(self, found: Array, rate: float, count: int) -> None:
        """Adam's way down a slope, but with one power for all weights."""
        self.slope = 0.8 * self.slope + 0.2 * found
        self.power = 0.98 * self.power + 0.02 * float(np.mean(found**2))
        size = math.sqrt(self.power / (1.0 - 0.98**count)) + 1e-12
        self.theta = self.theta - rate * (self.slope / (1.0 - 0.8**count) / size)
        self.average = _AVERAGE * self.average + (1.0 - _AVERAGE) * self.theta

    def state(self) -> dict[str, Any]:
        """Where the search stands, in full precision: the network has it in single."""
        paths = {"theta": self.theta, "average": self.average, "slope": self.slope}
        return {name: torch.from_numpy(path) for name, path in paths.items()} | {"power": self.power}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up a state that was saved."""
        self.theta, self.average, self.slope = (state[name].numpy() for name in ("theta", "average", "slope"))
        self.power = float(state["power"])


def _with_path(net: Array, values: Array) -> Array:
    moved = net.copy()
    unflatten(moved)["skip"][:] = values
    return moved
