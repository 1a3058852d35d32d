"""Deep Q-learning of the policy in charge: each member's value in the state of a pool, from played choices.

The values are learned from two sources. Transitions: a choice, what waiting cost until the next one, and the value of
the next state by a target network. And paired trials: moments at which every member was let rule the same future, so
that what one is worth more than another is seen without the noise of what else happened. Without the second
(`paired=0`) this is plain DQN. The switches turn off what an ablation asks about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.meta_network import WIDTH
from slurm_rl.policy.regime import AGE_PART, DEADLINE_PART, ENERGY_PART, REGIME_COUNT, REGIME_FEATURES, REGIME_PART
from slurm_rl.train.batches import descend
from slurm_rl.train.meta_scenes import META_COSTS, SceneChoices
from slurm_rl.train.settings import TrainingStopped

if TYPE_CHECKING:
    from slurm_rl.train.meta_trainer import MetaTrainer
    from slurm_rl.train.trainer import Trainer


@dataclass(frozen=True, slots=True)
class MetaDqnSettings:
    """Settings of metadqn alone; 1 or 0 for switches."""

    updates: int = 200  # in each iteration
    batch: int = 256
    memory: int = 60_000  # transitions
    rate: float = 1e-3  # of learning; falls to a tenth
    horizon: float = 3600.0  # seconds after which a cost counts 1/e
    follow: float = 0.01  # share by which the target network moves at each update
    explore: float = 1.0  # chance of a choice at random at first …
    last_explore: float = 0.1  # … and at last
    paired: int = 6  # moments of each workload at which every member is tried; 0: none
    ahead: float = 7200.0  # seconds of those trials
    trust: float = 10.0  # weight of trials beside transitions
    decay: float = 0.01  # of weights: trials are few
    sites: float = 0.25  # share of workloads that are no regime
    interval: float = 60.0  # of the policy: seconds from choice to choice
    margin: float = 0.02  # … and what another member must be worth more, in deviations of returns
    switches: int = 6  # … and switches in an hour
    # Switches:
    regime: int = 1  # figures of how jobs have come lately
    age: int = 1  # figures of how long jobs have waited
    deadline: int = 1  # missed deadlines cost, and their figures
    energy: int = 1  # idle GPUs cost, and their figure
    balance: int = 1  # draw as often from every regime
    target: int = 1  # a target network


class MetaNet(torch.nn.Module):
    """The network that policy/meta_network.py compiles."""

    shift: Tensor
    scale: Tensor

    def __init__(self, members: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("shift", torch.zeros(REGIME_COUNT))
        self.register_buffer("scale", torch.ones(REGIME_COUNT))
        sizes = (REGIME_COUNT, WIDTH, WIDTH, members)
        self.layers = torch.nn.ModuleList()
        for inputs, outputs in pairwise(sizes):
            layer = torch.nn.Linear(inputs, outputs)
            with torch.no_grad():
                layer.weight.copy_(torch.randn(outputs, inputs, generator=generator) * (1.4 / inputs**0.5))
                layer.bias.zero_()
            self.layers.append(layer)
        with torch.no_grad():
            cast(torch.nn.Linear, self.layers[2]).weight.mul_(0.1)

    def forward(self, seen: Tensor) -> Tensor:
        """What each member is worth [batch, members]."""
        x = (seen - self.shift) * self.scale
        x = torch.relu(self.layers[0](x))
        return cast(Tensor, self.layers[2](torch.relu(self.layers[1](x))))

    def standardise(self, seen: Array, without: Array) -> None:
        """Takes means and deviations from what was seen; figures that are left out count nothing."""
        deviation = seen.std(axis=0)
        scale = np.where((deviation > 1e-4) & ~without, 1.0 / np.maximum(deviation, 1e-4), 0.0)
        self.shift.copy_(torch.from_numpy(seen.mean(axis=0).astype(np.float32)))
        self.scale.copy_(torch.from_numpy(scale.astype(np.float32)))

    def tensors(self) -> dict[str, Array]:
        """By the names of META_LAYOUT; matrices are [inputs, outputs]."""
        found = {"shift": self.shift, "scale": self.scale}
        for name, layer in zip(("first", "second", "last"), self.layers, strict=True):
            linear = cast(torch.nn.Linear, layer)
            found |= {name: linear.weight.T, f"{name}_bias": linear.bias}
        return {name: np.ascontiguousarray(table.detach().numpy()) for name, table in found.items()}

    def take(self, tensors: Mapping[str, Array]) -> None:
        """The other way round."""
        with torch.no_grad():
            self.shift.copy_(torch.from_numpy(tensors["shift"]))
            self.scale.copy_(torch.from_numpy(tensors["scale"]))
            for name, layer in zip(("first", "second", "last"), self.layers, strict=True):
                linear = cast(torch.nn.Linear, layer)
                linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(tensors[name].T)))
                linear.bias.copy_(torch.from_numpy(tensors[f"{name}_bias"]))


def dqn_loss(
    q: Tensor, action: Tensor, reward: Tensor, discount: Tensor, ahead: Tensor, ahead_online: Tensor
) -> Tensor:
    """Smooth L1 error of double Q-learning: the online network picks, the target network values."""
    picked = ahead_online.argmax(dim=1, keepdim=True)
    target = reward + discount * ahead.gather(1, picked).squeeze(1)
    return torch.nn.functional.smooth_l1_loss(q.gather(1, action.unsqueeze(1)).squeeze(1), target.detach())


def paired_loss(q: Tensor, worth: Tensor) -> Tensor:
    """Smooth L1 error of what members are worth beside each other, level aside."""
    return torch.nn.functional.smooth_l1_loss(q - q.mean(dim=1, keepdim=True), worth - worth.mean(dim=1, keepdim=True))


class MetaDqn:
    """Plays fresh scenes in each step, remembers the last ones, and learns from the memory."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = cast("MetaTrainer", trainer)
        self.steps = trainer.settings.iterations
        s: MetaDqnSettings = trainer.options
        self.settings = s
        self.net: MetaNet = self.trainer.meta_net
        self.net.scale[torch.from_numpy(self.without)] = 0.0
        self.target = MetaNet(len(self.trainer.members), trainer.settings.seed)
        self.target.load_state_dict(self.net.state_dict())
        self.optimiser = torch.optim.AdamW(self.net.parameters(), lr=s.rate, eps=1e-5, weight_decay=s.decay)
        self.scale = 0.0  # deviation of returns in the first step: what values are in units of
        self.memory: dict[str, Array] = {}
        self.trials: dict[str, Array] = {}

    @property
    def weights(self) -> Array:
        """What a component of the cost counts."""
        off = {"late": not self.settings.deadline, "idle": not self.settings.energy}
        return np.array([0.0 if off.get(name) else weight for name, weight in META_COSTS.items()])

    @property
    def without(self) -> Array:
        """Figures that are left out."""
        s, off = self.settings, set[str]()
        for switch, part in ((s.regime, REGIME_PART), (s.age, AGE_PART), (s.deadline, DEADLINE_PART)):
            off |= set() if switch else set(part)
        off |= set() if s.energy else set(ENERGY_PART)
        return np.array([name in off for name in REGIME_FEATURES] + [True])

    def step(self, number: int) -> dict[str, float]:
        """Plays, then learns from the memory."""
        s, share = self.settings, number / max(self.steps - 1, 1)
        explore = s.explore + (s.last_explore - s.explore) * share
        played = self.trainer.play_choices(number, explore)
        self._remember([(name, choices) for name, choices, _ in played])
        if s.paired:
            self._try([(name, trial.seen, trial.cost) for name, _, trial in played if trial is not None])
        for group in self.optimiser.param_groups:
            group["lr"] = s.rate * (1.0 - 0.9 * share)
        dice = np.random.default_rng([self.trainer.settings.seed, 37, number])
        losses = [self._update(dice) for _ in range(s.updates)]
        cost = np.mean([float((c.cost @ self.weights).sum()) for _, c, _ in played])
        return {"loss": float(np.mean(losses)), "explore": explore, "reward": -float(cost)}

    def _update(self, dice: np.random.Generator) -> float:
        s, m = self.settings, self.memory
        rows = self._draw(dice, m["regime"])
        q = self.net(torch.from_numpy(m["seen"][rows]))
        ahead = torch.from_numpy(m["ahead"][rows])
        online = self.net(ahead).detach()
        later = self.target(ahead) if s.target else online
        reward, discount = (torch.from_numpy(m[name][rows]) for name in ("reward", "discount"))
        loss = dqn_loss(q, torch.from_numpy(m["member"][rows]), reward, discount, later, online)
        if len(self.trials.get("regime", ())):
            tried = self._draw(dice, self.trials["regime"])
            worth = torch.from_numpy(self.trials["worth"][tried])
            loss = loss + s.trust * paired_loss(self.net(torch.from_numpy(self.trials["seen"][tried])), worth)
        told = descend(self.optimiser, loss)
        with torch.no_grad():
            for mine, its in zip(self.target.parameters(), self.net.parameters(), strict=True):
                mine.lerp_(its, s.follow)
        return told

    def _draw(self, dice: np.random.Generator, regime: Array) -> Array:
        """Rows of the memory: as often of every regime, or evenly."""
        if not self.settings.balance:
            return dice.integers(len(regime), size=self.settings.batch)
        chance = 1.0 / np.bincount(regime)[regime]
        drawn: Array = np.searchsorted(np.cumsum(chance), dice.random(self.settings.batch) * chance.sum())
        return np.minimum(drawn, len(regime) - 1)

    def _remember(self, played: list[tuple[int, SceneChoices]]) -> None:
        s = self.settings
        if not sum(len(c.member) for _, c in played):
            raise TrainingStopped("no pass had a choice between two jobs: there is nothing to learn")
        if not self.scale:
            self.net.standardise(np.concatenate([c.seen for _, c in played]), self.without)
            self.target.load_state_dict(self.net.state_dict())
            spread = [self._returns(c).std() for _, c in played if len(c.member)]
            self.scale = max(float(np.mean(spread)), 1e-9)
        for regime, c in played:
            ahead = np.where((c.after >= 0)[:, None], c.seen[np.maximum(c.after, 0)], c.seen)
            self.memory = _joined(
                self.memory,
                {
                    "seen": c.seen,
                    "member": c.member,
                    "reward": (-(c.cost @ self.weights) / self.scale).astype(np.float32),
                    "discount": np.where(c.after >= 0, np.exp(-c.elapsed / s.horizon), 0.0).astype(np.float32),
                    "ahead": ahead,
                    "regime": np.full(len(c.member), regime),
                },
                s.memory,
            )

    def _try(self, tried: list[tuple[int, Array, Array]]) -> None:
        for regime, seen, cost in tried:
            worth = (-(cost @ self.weights) / self.scale).astype(np.float32)
            rows = {"seen": seen, "worth": worth, "regime": np.full(len(seen), regime)}
            self.trials = _joined(self.trials, rows, self.settings.memory)

    def _returns(self, c: SceneChoices) -> Array:
        found, reward = np.zeros(len(c.member)), -(c.cost @ self.weights)
        for k in range(len(found) - 1, -1, -1):
            later = found[c.after[k]] * np.exp(-c.elapsed[k] / self.settings.horizon) if c.after[k] >= 0 else 0.0
            found[k] = reward[k] + later
        return found

    def state(self) -> dict[str, Any]:
        """The target network's, the optimiser's, and the memory."""
        memories = [{k: torch.from_numpy(v) for k, v in m.items()} for m in (self.memory, self.trials)]
        kept = {"target": self.target.state_dict(), "optimiser": self.optimiser.state_dict()}
        return kept | {"scale": self.scale, "memory": memories[0], "trials": memories[1]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up a state that was saved."""
        self.target.load_state_dict(state["target"])
        self.optimiser.load_state_dict(dict(state["optimiser"]))
        self.scale = float(state["scale"])
        self.memory = {k: v.numpy() for k, v in state["memory"].items()}
        self.trials = {k: v.numpy() for k, v in state["trials"].items()}


def _joined(old: Mapping[str, Array], new: Mapping[str, Array], most: int) -> dict[str, Array]:
    """The last rows of both."""
    return {k: np.concatenate([old[k], v])[-most:] if old else v for k, v in new.items()}
