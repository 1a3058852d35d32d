"""Dueling double deep Q-learning: a pick's value is the queue's value plus the job's advantage.

Advantages are the network's scores times a gain that is learned, too: so a network that starts as a heuristic stays one
while its values find their scale, and the order of a queue by advantage is its order by score. Values begin at the mean
of the first returns, and learn alone at first: their error would otherwise count as every picked job's disadvantage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from slurm_rl.train.batches import descend, told
from slurm_rl.train.experience import Experience, MemorySettings, Queues
from slurm_rl.train.module import QueueNet

if TYPE_CHECKING:
    from slurm_rl.train.trainer import Trainer


@dataclass(frozen=True, slots=True)
class D3qnSettings(MemorySettings):
    """Settings of D3QN alone, besides its memory's."""

    rate: float = 3e-4  # of learning; falls to a tenth
    gain: float = 0.1  # of advantages to scores, at first
    value_rate: float = 3e-3  # of the value's learning
    alone: int = 2  # iterations in which values learn alone
    exponent: float = 0.6  # of priorities
    correction: float = 0.4  # for drawing by them, at first; 1 at last


def dueling(scores: Tensor, value: Tensor, left: Tensor, gain: Tensor) -> Tensor:
    """Q-values [batch, queue]: the value, and by how much each job beats the mean of those left; -inf for others."""
    mean = (scores * left).sum(dim=1, keepdim=True) / left.sum(dim=1, keepdim=True).clamp(min=1)
    return (value.unsqueeze(1) + gain * (scores - mean)).masked_fill(~left, -torch.inf)


def double_q_loss(
    q: Tensor, after: Tensor, after_target: Tensor, action: Tensor, reward: Tensor, discount: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Smooth L1 loss, and errors: the network chooses what comes next, its target says what that is worth."""
    with torch.no_grad():
        best = after.argmax(dim=1, keepdim=True)
        target = reward + discount * after_target.gather(1, best).squeeze(1)
    error = q.gather(1, action.unsqueeze(1)).squeeze(1) - target
    loss = torch.nn.functional.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")
    return (weight * loss).mean(), error


class D3qn:
    """Plays with draws by the scores, remembers the last steps, and learns from what surprised it most."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.steps = trainer, trainer.settings.iterations
        s: D3qnSettings = trainer.options
        self.settings = s
        self.log_gain = torch.nn.Parameter(torch.tensor(s.gain).log())  # so it stays positive
        self.target, self.target_log_gain = QueueNet(0), self.log_gain.detach().clone()
        self.target.load_state_dict(trainer.net.state_dict())
        named = dict(trainer.net.named_parameters())
        values = [p for name, p in named.items() if name.startswith("value")]
        self.scores = [p for name, p in named.items() if not name.startswith("value") and p.requires_grad]
        groups = [{"params": [*self.scores, self.log_gain], "lr": s.rate}, {"params": values, "lr": s.value_rate}]
        self.optimiser = torch.optim.Adam(groups, eps=1e-5)
        self.experience = Experience(trainer, s, s.exponent)

    def step(self, number: int) -> dict[str, float]:
        """Plays, then learns from the memory."""
        s, share = self.settings, number / max(self.steps - 1, 1)
        first = not self.experience.scale
        episodes = self.experience.play(number)
        if first:
            for net in (self.trainer.net, self.target):
                torch.nn.init.constant_(net.value_out.bias, self.experience.level)
        for group, rate in zip(self.optimiser.param_groups, (s.rate, s.value_rate), strict=True):
            group["lr"] = rate * (1.0 - 0.9 * share)
        for parameter in (*self.scores, self.log_gain):
            parameter.requires_grad_(number >= s.alone)
        dice = np.random.default_rng([self.trainer.settings.seed, 19, number])
        losses = []
        for _ in range(s.updates):
            drawn, batch = self.experience.draw(dice, s.batch, s.correction + (1.0 - s.correction) * share)
            with torch.no_grad():
                after = self.q(batch.after)
                after_target = self.q(batch.after, target=True)
            q = self.q(batch.before)
            loss, error = double_q_loss(
                q, after, after_target, batch.action, batch.reward, batch.discount, batch.weight
            )
            losses.append(descend(self.optimiser, loss))
            self.experience.surprise(drawn, error)
            self._follow()
        return {"loss": float(np.mean(losses)), "gain": float(self.log_gain.exp().item())} | told(episodes)

    def q(self, queues: Queues, *, target: bool = False) -> Tensor:
        """Q-values by the network, or by the target network."""
        net, log_gain = (self.target, self.target_log_gain) if target else (self.trainer.net, self.log_gain)
        scores, value = net(queues.jobs, queues.pool, queues.mask)
        return dueling(scores, value, queues.left, log_gain.exp())

    def _follow(self) -> None:
        with torch.no_grad():
            pairs = zip(self.target.parameters(), self.trainer.net.parameters(), strict=True)
            for mine, its in [*pairs, (self.target_log_gain, self.log_gain)]:
                mine.lerp_(its, self.settings.follow)

    def state(self) -> dict[str, Any]:
        """The target network, the optimiser's state, and the memory's."""
        return {
            "target": self.target.state_dict(),
            "gains": [self.log_gain.detach().clone(), self.target_log_gain],
            "optimiser": self.optimiser.state_dict(),
            "experience": self.experience.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up a state that was saved."""
        self.target.load_state_dict(state["target"])
        with torch.no_grad():
            self.log_gain.copy_(state["gains"][0])
            self.target_log_gain.copy_(state["gains"][1])
        self.optimiser.load_state_dict(dict(state["optimiser"]))
        self.experience.restore(state["experience"])
