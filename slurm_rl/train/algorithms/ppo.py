"""Proximal policy optimisation of a queue network, in one file: play, value, update.

An action is the order of a queue, drawn as Plackett and Luce would: the first job by a softmax of the scores, the next
one among the rest, and so on. Only positions that mattered count: the jobs that started, and the first that did not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from slurm_rl.train.batches import Batch, descend, first_entropy, order_log_probability, played, told
from slurm_rl.train.rollout import Episode
from slurm_rl.train.settings import TrainingStopped

if TYPE_CHECKING:
    from slurm_rl.train.trainer import Trainer


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """Settings of PPO alone."""

    epochs: int = 3
    rows: int = 16_384  # of a minibatch
    longest: int = 256  # queues beyond are left out of the update
    rate: float = 3e-4  # of learning; falls to a tenth
    clip: float = 0.2
    stop_at: float = 0.03  # an update ends when the policy has moved this far (KL)
    horizon: float = 86_400.0  # seconds after which a cost counts 1/e
    smoothing: float = 0.95  # lambda of generalised advantage estimation
    entropy: float = 0.003  # weight of the bonus at first …
    last_entropy: float = 0.0  # … and at last
    value: float = 0.5  # weight of the value's error


def ppo_loss(
    ratio: Tensor,
    advantage: Tensor,
    value: Tensor,
    target: Tensor,
    entropy: Tensor,
    *,
    clip: float,
    weights: tuple[float, float],
) -> Tensor:
    """Clipped surrogate + squared value error - entropy bonus; `weights` is (value, entropy)."""
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    return -surrogate.mean() + weights[0] * (value - target).square().mean() - weights[1] * entropy.mean()


class Ppo:
    """Plays fresh scenes in each step, then improves the orders that did better than the value expected."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.steps = trainer, trainer.settings.iterations
        self.settings: PpoSettings = trainer.options
        self.net = trainer.net
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=self.settings.rate, eps=1e-5)
        self.return_scale = 1.0

    def step(self, number: int) -> dict[str, float]:
        """One update from freshly played episodes."""
        episodes = self.trainer.play(number)
        return self.update(episodes, number / max(self.steps - 1, 1)) | told(episodes)

    def update(self, episodes: Sequence[Episode], share: float) -> dict[str, float]:
        """Improves the network; `share` is how much of the training is over."""
        s, temperature = self.settings, self.trainer.settings.temperature
        entropy_weight = s.entropy + (s.last_entropy - s.entropy) * share
        for group in self.optimiser.param_groups:
            group["lr"] = s.rate * (1.0 - 0.9 * share)
        batches = [b for e in episodes for b in self._batches(e)]
        if not batches:
            raise TrainingStopped("no queue of two or more jobs had a choice: there is nothing to learn")
        dice = np.random.default_rng([self.trainer.settings.seed, 5, self.trainer.step])
        kl, losses = 0.0, []
        for _ in range(s.epochs):
            divergence = []
            for k in dice.permutation(len(batches)).tolist():
                b = batches[k]
                scores, value = self.net(b.jobs, b.pool, b.mask)
                scaled = scores / temperature
                log_ratio = order_log_probability(scaled, b.mask, b.lead, b.picks) - b.old
                ratio = log_ratio.exp()
                entropy, weights = first_entropy(scaled, b.mask), (s.value, entropy_weight)
                loss = ppo_loss(ratio, b.advantage, value, b.target, entropy, clip=s.clip, weights=weights)
                losses.append(descend(self.optimiser, loss))
                divergence.append((ratio - 1 - log_ratio).mean().item())
            kl = float(np.mean(divergence))
            if kl > s.stop_at:
                break
        return {"loss": float(np.mean(losses)), "kl": kl}

    def _batches(self, episode: Episode) -> list[Batch]:
        s = self.settings
        batches, self.return_scale = played(
            self.net,
            episode,
            temperature=self.trainer.settings.temperature,
            rows=s.rows,
            longest=s.longest,
            horizon=s.horizon,
            smoothing=s.smoothing,
            scale=self.return_scale,
        )
        return batches

    def state(self) -> dict[str, Any]:
        """The optimiser's, and the scale of values."""
        return {"optimiser": self.optimiser.state_dict(), "return_scale": self.return_scale}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up a state that was saved."""
        self.optimiser.load_state_dict(dict(state["optimiser"]))
        self.return_scale = float(state["return_scale"])
