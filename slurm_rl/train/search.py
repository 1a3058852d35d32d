"""Evolution strategies over a network's linear path: a start for policy gradients that already does well as a whole.

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

from slurm_rl.evaluate.goals import GOALS, price
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.catalogue import BY_USER, LEARNED
from slurm_rl.policy.checkpoint import unflatten
from slurm_rl.policy.registry import PolicySpec
from slurm_rl.train.rollout import Reference, figures, simulation_of
from slurm_rl.train.scenes import Scene


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Sizes of the search; width and rate fall to 40% and 15% in its course."""

    generations: int = 120
    pairs: int = 8
    width: float = 0.12  # of a candidate's steps, in standardised features
    rate: float = 0.04


_CLIP = 0.25  # of the difference of a pair on one scene: schedules are chaotic, and single ones must not decide
_AVERAGE = 0.93  # of the past in the average over generations that is returned


def log_ratios(scene: Scene, reference: Reference, net: Array, starve_drain: float = math.inf) -> dict[str, float]:
    """How a network, with its starvation cap, does on a scene: logarithms of each figure's ratio to the reference."""
    simulation = simulation_of(scene, PolicySpec("candidate", LEARNED, BY_USER, starve_drain=starve_drain, net=net))
    simulation.run()
    found = figures(scene, simulation.world["live"]["start"])
    return {k: math.log((found[k] + 1.0) / (reference.metrics[k] + 1.0)) for k in found}


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
    """A network whose linear path does better on fresh scenes each generation."""
    theta = unflatten(net)["skip"].astype(float)
    average, slope, power = theta.copy(), np.zeros(len(theta)), 0.0

    def candidate(values: Array) -> Array:
        moved = net.copy()
        unflatten(moved)["skip"][:] = values
        return moved

    for generation in range(settings.generations):
        share = generation / settings.generations
        width, rate = settings.width * (1.0 - 0.6 * share), settings.rate * (1.0 - 0.85 * share)
        steps = np.random.default_rng([seed, 11, generation]).standard_normal((settings.pairs, len(theta)))
        cast = scenes(generation)
        tries = [candidate(theta + sign * width * step) for step in steps for sign in (1.0, -1.0)]
        plays = [(scene, reference, net_, starve_drain) for net_ in tries for scene, reference in cast]
        paid = [price(logs, goals) for logs in threads.map(log_ratios, *zip(*plays, strict=True))]
        prices = np.array(paid).reshape(settings.pairs, 2, len(cast))
        gaps = np.clip(prices[:, 0] - prices[:, 1], -_CLIP, _CLIP).mean(axis=1)
        found = (gaps[:, None] * steps).mean(axis=0)
        slope = 0.8 * slope + 0.2 * found
        power = 0.98 * power + 0.02 * float(np.mean(found**2))
        steady = slope / (1.0 - 0.8 ** (generation + 1)) / (math.sqrt(power / (1.0 - 0.98 ** (generation + 1))) + 1e-12)
        theta = theta - rate * steady
        average = _AVERAGE * average + (1.0 - _AVERAGE) * theta
        report(generation, float(prices.mean()))
    return candidate(average)
