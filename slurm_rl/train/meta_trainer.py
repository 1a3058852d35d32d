"""A training of a meta-policy: the same run as any other, with its own workloads and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slurm_rl.errors import InputError
from slurm_rl.evaluate.goals import price
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.checkpoint import Model
from slurm_rl.policy.meta import DEFAULT_SET, parse_members, untrained
from slurm_rl.policy.registry import PolicySpec
from slurm_rl.traces.regimes import REGIMES
from slurm_rl.train.algorithms.metadqn import MetaNet
from slurm_rl.train.meta_scenes import (
    META_GOALS,
    MetaReference,
    Paired,
    SceneChoices,
    meta_logs,
    meta_reference,
    meta_scene,
    play_choices,
    try_members,
)
from slurm_rl.train.scenes import SceneSource, TrainingScene
from slurm_rl.train.settings import Settings, TrainingStopped
from slurm_rl.train.trainer import Trainer

_VALIDATION = 2_000_000_011
_LEAST_WAIT = 10.0  # seconds, on average: where nobody waits, all members are alike
_NUMBER = {name: i for i, name in enumerate((*REGIMES, "site"))}


class MetaTrainer(Trainer):
    """Learns to choose among `settings.candidates`; the network that did best on held-out regimes is kept."""

    def __init__(
        self, settings: Settings, sources: Sequence[SceneSource], directory: Path, start: Model | None = None
    ) -> None:
        if start is not None:
            raise InputError("a choice of policies is learned from nothing", field="--init-from")
        self.members = parse_members(settings.candidates or DEFAULT_SET)
        self.meta_net = MetaNet(len(self.members), settings.seed)
        super().__init__(settings, sources, directory, None)
        _ = self.learner  # leaves out what is switched off, before the first validation

    def module(self) -> MetaNet:
        return self.meta_net

    def weights(self) -> Array:
        tensors = self.meta_net.tensors()
        return np.concatenate([table.ravel() for table in tensors.values()])

    def policy(self, explore: float = 0.0, seed: int = 0) -> PolicySpec:
        """The policy as the network is now."""
        s = self.options
        choice = {"interval": s.interval, "margin": s.margin, "switches": s.switches}
        return untrained(self.members, self.meta_net.tensors(), explore=explore, seed=seed, **choice)

    def _drawn(self, seeds: Sequence[int], *, held_out: bool) -> list[tuple[TrainingScene, MetaReference]]:
        def make(seed: int) -> tuple[TrainingScene, MetaReference]:
            scene = meta_scene(self.sources, seed, jobs=self.settings.jobs, sites=self.options.sites, held_out=held_out)
            return scene, meta_reference(scene, self.reference)

        made = self.threads.map(make, seeds)
        return [pair for pair in made if pair[1].figures["wait"] > _LEAST_WAIT and len(pair[1].crowded)]

    def play_choices(self, number: int, explore: float) -> list[tuple[int, SceneChoices, Paired | None]]:
        """A step's scenes: each one's regime, its choices, and the trials of all members in it."""
        s = self.settings
        first = s.seed * 1_000_003 + 10_000 + number * s.scenes
        scenes = self._drawn(range(first, first + s.scenes), held_out=False)
        if not scenes:
            raise TrainingStopped("no job waits in these workloads: nothing to learn (change the load)")

        def one(k: int) -> tuple[int, SceneChoices, Paired | None]:
            scene, reference = scenes[k]
            policy = self.policy(explore, first + k)
            choices, trials = play_choices(scene, reference, policy), None
            if self.options.paired:
                dice = np.random.default_rng([first + k, 41])
                trials = try_members(
                    scene, reference, policy, dice, moments=self.options.paired, ahead=self.options.ahead
                )
            return _NUMBER[scene.name], choices, trials

        return list(self.threads.map(one, range(len(scenes))))

    def validation(self) -> dict[str, float]:
        """Geometric means, over fixed workloads of held-out regimes, of each figure's ratio to the reference."""
        if not self._meta_validation:
            seeds = range(_VALIDATION, _VALIDATION + self.settings.validation)
            self._meta_validation = self._drawn(seeds, held_out=True)
        policy = self.policy()
        logs = list(self.threads.map(lambda pair: meta_logs(pair[0], pair[1], policy), self._meta_validation))
        ratios = {name: math.exp(float(np.mean([row[name] for row in logs]))) for name in logs[0]}
        ratios["score"] = math.exp(float(np.mean([price(row, META_GOALS) for row in logs])))
        return ratios
