"""Evolution strategies over a network's last layer: a start for policy gradients that already does well as a whole.

Rewards of single turns say little about tails and slowdowns of a whole workload; here whole replays are compared. The
same scenes are played by all candidates of a generation, and candidates come in pairs (+, -), so that what is common
to them cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from slurm_rl.domain.arrays import Array
from slurm_rl.policy.heuristics import BY_USER, LEARNED
from slurm_rl.policy.network import LAYOUT
from slurm_rl.policy.registry import PolicySpec
from slurm_rl.train.rollout import Reference, figures, simulation_of
from slurm_rl.train.scenes import Scene

# How much a figure's logarithm counts, relative to the reference of a scene.
GOALS = {"bsld": 1.0, "wait": 0.75, "p99": 0.75, "max": 0.5}


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Sizes of the search."""

    generations: int = 60
    pairs: int = 8
    width: float = 0.12  # of a candidate's steps, in standardised features
    rate: float = 0.3
    decay: float = 0.985  # of both, from one generation to the next


def places(*names: str) -> Array:
    """Where tensors lie in the one array that kernels read."""
    at, found = 0, []
    for name, shape in LAYOUT.items():
        size = math.prod(shape)
        if name in names:
            found.append(np.arange(at, at + size))
        at += size
    return np.concatenate(found)


def log_ratios(scene: Scene, reference: Reference, net: Array, starve_drain: float = math.inf) -> dict[str, float]:
    """How a network, with its starvation cap, does on a scene: logarithms of each figure's ratio to the reference."""
    simulation = simulation_of(scene, PolicySpec("candidate", LEARNED, BY_USER, starve_drain=starve_drain, net=net))
    simulation.run()
    found = figures(scene, simulation.world["live"]["start"])
    return {k: math.log((found[k] + 1.0) / (reference.metrics[k] + 1.0)) for k in found}


def price(logs: Mapping[str, float], goals: Mapping[str, float]) -> float:
    """The weighted mean of log ratios: below 0 is better."""
    total = sum(weight * logs[name] for name, weight in goals.items()) / sum(goals.values())
    return max(min(total, 2.0), -2.0)  # one hopeless scene must not drown the others


def search(
    net: Array,
    scenes: Callable[[int], Sequence[tuple[Scene, Reference]]],
    settings: SearchSettings,
    *,
    threads: ThreadPoolExecutor,
    seed: int = 0,
    goals: Mapping[str, float] = GOALS,
    starve_drain: float = math.inf,
    report: Callable[[int, float], None] = lambda generation, price: None,
) -> Array:
    """A network whose last layer (from features and from hidden units) does better on fresh scenes each generation."""
    net = net.copy()
    free = places("out", "skip")
    width, rate = settings.width, settings.rate
    momentum = np.zeros(len(free))
    for generation in range(settings.generations):
        dice = np.random.default_rng([seed, 11, generation])
        cast = scenes(generation)
        steps = dice.standard_normal((settings.pairs, len(free)))

        def candidate(step: Array, net: Array = net) -> Array:
            moved = net.copy()
            moved[free] += step.astype(np.float32)
            return moved

        tries = [candidate(sign * width * step) for step in steps for sign in (1.0, -1.0)]
        plays = [(scene, reference, net_, starve_drain) for net_ in tries for scene, reference in cast]
        paid = [price(logs, goals) for logs in threads.map(log_ratios, *zip(*plays, strict=True))]
        prices = np.array(paid).reshape(len(tries), -1).mean(axis=1)
        gains = (prices[1::2] - prices[0::2]) / max(float(prices.std()), 1e-9)
        momentum = 0.7 * momentum + 0.3 * (gains[:, None] * steps).mean(axis=0)
        net = candidate(rate * momentum)
        width, rate = width * settings.decay, rate * settings.decay
        report(generation, float(prices.mean()))
    return net
