"""Discrete soft actor-critic: the scores are logits; two equal critics value a pick.

All expectations over picks are exact, the temperature's loss among them. The entropy that is sought is a share of the
largest that the jobs left allow.
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
from slurm_rl.train.module import BUFFERS, QueueNet

if TYPE_CHECKING:
    from slurm_rl.train.trainer import Trainer

_NEVER = -1e9  # the logit of a job that cannot be picked: its chance is 0, and 0 times it is 0


@dataclass(frozen=True, slots=True)
class SacSettings(MemorySettings):
    """Settings of SAC alone, besides its memory's."""

    rate: float = 1e-4  # of the network's learning; falls to a tenth
    critic_rate: float = 1e-3  # of the critics' and the temperature's
    entropy: float = 0.3  # sought, as a share of the largest
    alpha: float = 0.01  # temperature at first
    alone: int = 2  # iterations in which the critics learn alone


def critic_loss(q: Tensor, action: Tensor, target: Tensor) -> Tensor:
    """Smooth L1 losses of all critics; `q` is [critics, batch, queue]."""
    picked = q.gather(2, action.expand(len(q), -1).unsqueeze(2)).squeeze(2)
    return torch.nn.functional.smooth_l1_loss(picked, target.expand_as(picked), reduction="none").sum(0).mean()


def soft_value(log_chance: Tensor, q: Tensor, alpha: Tensor) -> Tensor:
    """What a queue is worth [batch] under the policy, by the lower of the critics, entropy included."""
    return (log_chance.exp() * (q.min(dim=0).values - alpha * log_chance)).sum(dim=1)


def temperature_loss(log_chance: Tensor, log_alpha: Tensor, sought: Tensor) -> Tensor:
    """Raises the temperature where the entropy, in expectation, is below the one that is sought."""
    gap = ((log_chance.exp() * log_chance).sum(dim=1) + sought).detach()
    return -(log_alpha * gap).mean()


class Sac:
    """Plays with the policy as it is, remembers the last steps, and learns from them evenly."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.steps = trainer, trainer.settings.iterations
        s: SacSettings = trainer.options
        self.settings = s
        self.critics, self.targets = (
            torch.nn.ModuleList([self._critic(k) for k in (1, 2)]) for _ in ("critics", "their targets")
        )
        self.log_alpha = torch.nn.Parameter(torch.tensor(float(np.log(s.alpha))))
        self.actor_steps = torch.optim.Adam(trainer.net.parameters(), lr=s.rate, eps=1e-5)
        self.critic_steps = torch.optim.Adam(self.critics.parameters(), lr=s.critic_rate, eps=1e-5)
        self.alpha_steps = torch.optim.Adam([self.log_alpha], lr=s.critic_rate, eps=1e-5)
        self.experience = Experience(trainer, s, exponent=0.0)

    def _critic(self, k: int) -> QueueNet:
        critic, state = QueueNet(1000 * self.trainer.settings.seed + k), self.trainer.net.state_dict()
        critic.load_state_dict({name: state[name] for name in BUFFERS}, strict=False)
        return critic

    def step(self, number: int) -> dict[str, float]:
        """Plays, then learns from the memory."""
        s, share = self.settings, number / max(self.steps - 1, 1)
        episodes = self.experience.play(number)
        for group in self.actor_steps.param_groups:
            group["lr"] = s.rate * (1.0 - 0.9 * share)
        dice = np.random.default_rng([self.trainer.settings.seed, 23, number])
        critics, actors, entropies = [], [], []
        for _ in range(s.updates):
            _, batch = self.experience.draw(dice, s.batch, 0.0)
            alpha = self.log_alpha.exp().detach()
            with torch.no_grad():
                worth = soft_value(self.log_chance(batch.after), self.q(batch.after, self.targets), alpha)
                target = batch.reward + batch.discount * worth
            loss = critic_loss(self.q(batch.before, self.critics), batch.action, target)
            critics.append(descend(self.critic_steps, loss))
            log_chance = self.log_chance(batch.before)
            if number >= s.alone:
                with torch.no_grad():
                    q = self.q(batch.before, self.critics)
                actors.append(descend(self.actor_steps, -soft_value(log_chance, q, alpha).mean()))
                sought = s.entropy * batch.before.left.sum(dim=1).float().log()
                descend(self.alpha_steps, temperature_loss(log_chance.detach(), self.log_alpha, sought))
            entropies.append(-(log_chance.exp() * log_chance).sum(dim=1).mean().item())
            self._follow()
        return {
            "loss": float(np.mean(critics)),
            "actor_loss": float(np.mean(actors)) if actors else 0.0,
            "alpha": float(self.log_alpha.exp().item()),
            "entropy": float(np.mean(entropies)),
        } | told(episodes)

    def log_chance(self, queues: Queues) -> Tensor:
        """Logarithms of each pick's chance [batch, queue]."""
        scores, _ = self.trainer.net(queues.jobs, queues.pool, queues.mask)
        return torch.log_softmax((scores / self.trainer.settings.temperature).masked_fill(~queues.left, _NEVER), dim=1)

    def q(self, queues: Queues, critics: torch.nn.ModuleList) -> Tensor:
        """What each pick is worth [critics, batch, queue]; 0 where there is none."""
        found = []
        for critic in critics:
            scores, value = critic(queues.jobs, queues.pool, queues.mask)
            found.append((value.unsqueeze(1) + scores).masked_fill(~queues.left, 0.0))
        return torch.stack(found)

    def _follow(self) -> None:
        with torch.no_grad():
            for mine, its in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                mine.lerp_(its, self.settings.follow)

    def state(self) -> dict[str, Any]:
        """Critics, their targets, the temperature, the optimisers' states, and the memory's."""
        return {
            "critics": self.critics.state_dict(),
            "targets": self.targets.state_dict(),
            "log_alpha": self.log_alpha.detach().clone(),
            "optimisers": [o.state_dict() for o in (self.actor_steps, self.critic_steps, self.alpha_steps)],
            "experience": self.experience.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up a state that was saved."""
        self.critics.load_state_dict(state["critics"])
        self.targets.load_state_dict(state["targets"])
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        optimisers = (self.actor_steps, self.critic_steps, self.alpha_steps)
        for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(dict(saved))
        self.experience.restore(state["experience"])
