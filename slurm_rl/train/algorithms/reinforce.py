"""REINFORCE with a learned baseline: orders that paid more than expected become likelier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from slurm_rl.train.batches import descend, first_entropy, order_log_probability, played, told
from slurm_rl.train.rollout import Episode
from slurm_rl.train.settings import TrainingStopped

if TYPE_CHECKING:
    from slurm_rl.train.trainer import Trainer


@dataclass(frozen=True, slots=True)
class ReinforceSettings:
    """Settings of REINFORCE alone."""

    rows: int = 16_384  # of a minibatch
    longest: int = 256  # queues beyond are left out of the update
    rate: float = 3e-4  # of learning; falls to a tenth
    horizon: float = 86_400.0  # seconds after which a cost counts 1/e
    entropy: float = 0.003  # weight of the bonus
    value: float = 0.5  # weight of the baseline's error


def reinforce_loss(log_probability: Tensor, advantage: Tensor, value: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The policy's loss, and the baseline's squared error."""
    return -(log_probability * advantage).mean(), (value - target).square().mean()


class Reinforce:
    """Plays fresh scenes in each step and goes over them once: what they say holds for the network that played."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.steps = trainer, trainer.settings.iterations
        self.settings: ReinforceSettings = trainer.options
        self.optimiser = torch.optim.Adam(trainer.net.parameters(), lr=self.settings.rate, eps=1e-5)
        self.return_scale = 1.0

    def step(self, number: int) -> dict[str, float]:
        """One pass over freshly played episodes."""
        episodes = self.trainer.play(number)
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.rate * (1.0 - 0.9 * number / max(self.steps - 1, 1))
        return self.update(episodes) | told(episodes)

    def update(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Improves the network."""
        s, temperature, losses = self.settings, self.trainer.settings.temperature, []
        for episode in episodes:
            batches, self.return_scale = played(
                self.trainer.net,
                episode,
                temperature=temperature,
                rows=s.rows,
                longest=s.longest,
                horizon=s.horizon,
                smoothing=1.0,  # returns as they were, less the baseline
                scale=self.return_scale,
            )
            for b in batches:
                scores, value = self.trainer.net(b.jobs, b.pool, b.mask)
                scaled = scores / temperature
                log_probability = order_log_probability(scaled, b.mask, b.lead, b.picks)
                actor, baseline = reinforce_loss(log_probability, b.advantage, value, b.target)
                bonus = first_entropy(scaled, b.mask).mean()
                losses.append(descend(self.optimiser, actor + s.value * baseline - s.entropy * bonus))
        if not losses:
            raise TrainingStopped("no queue of two or more jobs had a choice: there is nothing to learn")
        return {"loss": float(np.mean(losses))}

    def state(self) -> dict[str, Any]:
        """The optimiser's, and the scale of values."""
        return {"optimiser": self.optimiser.state_dict(), "return_scale": self.return_scale}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up a state that was saved."""
        self.optimiser.load_state_dict(dict(state["optimiser"]))
        self.return_scale = float(state["return_scale"])
