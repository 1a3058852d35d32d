"""Replay memory of the last steps, for algorithms that reuse them; drawn by priority.

A transition is one pick: a queue, the jobs already picked in this pass, the job picked next, and what comes then: the
rest of the queue at once and for nothing, or, after the last pick that mattered, the pool's next turn, at the cost of
the time until then. The memory is not saved with a training: the networks that played are, and play again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.checkpoint import flatten
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT
from slurm_rl.train.batches import advantages
from slurm_rl.train.rollout import Episode, padded_queues
from slurm_rl.train.settings import TrainingStopped

if TYPE_CHECKING:
    from slurm_rl.train.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Queues:
    """Padded queues, and which of their jobs can still be picked."""

    jobs: Tensor
    pool: Tensor
    mask: Tensor
    left: Tensor


@dataclass(frozen=True, slots=True)
class Transitions:
    """Picks, with what they led to."""

    before: Queues
    action: Tensor  # the position picked
    reward: Tensor
    discount: Tensor  # of what comes; 0: nothing does
    after: Queues
    weight: Tensor  # makes up for drawing by priority


@dataclass(slots=True)
class _Played:
    """The episodes of one step: all rows and turns one after the other."""

    number: int
    net: Array
    tape: Array
    turns: Array
    picks: Array
    reward: Array
    after: Array
    discount: Array
    which: Array  # [transitions, 2]: turn, and how many picks came before
    priority: Array


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Settings of algorithms that learn from a memory of what was played."""

    updates: int = 60  # in each iteration
    batch: int = 256  # transitions
    memory: int = 4  # iterations to learn from
    turns: int = 800  # remembered of each workload
    longest: int = 128  # queues beyond are left out
    horizon: float = 86_400.0  # seconds after which a cost counts 1/e
    follow: float = 0.02  # share by which target networks follow in each update


class Experience:
    """The last steps' transitions, drawn by their priority to the power of `exponent`."""

    def __init__(self, trainer: Trainer, settings: MemorySettings, exponent: float) -> None:
        self.trainer, self.steps, self.turns, self.longest = trainer, settings.memory, settings.turns, settings.longest
        self.horizon, self.exponent = settings.horizon, exponent
        self.memory: list[_Played] = []
        self.scale = 0.0  # deviation of returns in the first step; rewards are in units of it
        self.level = 0.0  # … and their mean, in these units

    def play(self, number: int) -> list[Episode]:
        """Plays the scenes of a step with the network as it is, and remembers them."""
        episodes = self._remember(number, flatten(self.trainer.net.tensors()))
        if not sum(len(p.which) for p in self.memory):
            raise TrainingStopped("no queue of two or more jobs had a choice: there is nothing to learn")
        return episodes

    def _remember(self, number: int, net: Array) -> list[Episode]:
        episodes = self.trainer.play(number, net)
        if not self.scale:
            returns = [self._returns(e) for e in episodes if len(e.reward)]
            self.scale = max(float(np.mean([r.std() for r in returns])), 1e-9)
            self.level = float(np.mean([r.mean() for r in returns])) / self.scale
        rows = np.cumsum([0, *(len(e.tape) for e in episodes)])
        count = np.cumsum([0, *(len(e.turns) for e in episodes)])
        turns = np.concatenate([e.turns for e in episodes])
        turns["first"] += np.repeat(rows[:-1], np.diff(count))
        after = np.concatenate([e.after for e in episodes])
        after = np.where(after >= 0, after + np.repeat(count[:-1], np.diff(count)), -1)
        elapsed = np.concatenate([e.elapsed for e in episodes])
        picks = np.concatenate([e.picks for e in episodes])
        dice = np.random.default_rng([self.trainer.settings.seed, 17, number])
        fits = (turns["count"] <= self.longest) & ((after < 0) | (turns["count"][after] <= self.longest))
        spans = [dice.permutation(np.flatnonzero(fits[a:b]) + a) for a, b in pairwise(count)]
        chosen = np.concatenate([span[: self.turns] for span in spans])
        which = np.stack([np.repeat(chosen, picks[chosen]), _ramp(picks[chosen])], axis=1)
        top = max((float(p.priority.max()) for p in self.memory if len(p.priority)), default=1.0)
        tape, turns, after = _only(np.concatenate([e.tape for e in episodes]), turns, after, chosen)
        self.memory.append(
            _Played(
                number, net, tape, turns, picks,
                np.concatenate([e.reward for e in episodes]) / self.scale,
                after,
                np.where(after >= 0, np.exp(-elapsed / self.horizon), 0.0),
                which,
                np.full(len(which), top),
            )
        )  # fmt: skip
        del self.memory[: -self.steps]
        return episodes

    def _returns(self, episode: Episode) -> Array:
        nothing = np.zeros(len(episode.reward))
        return advantages(episode.reward, nothing, episode.after, episode.elapsed, horizon=self.horizon, smoothing=1.0)[
            1
        ]

    def draw(self, dice: np.random.Generator, size: int, correction: float) -> tuple[Array, Transitions]:
        """Some transitions, likelier by their priority, and their numbers."""
        chance = np.concatenate([p.priority for p in self.memory]) ** self.exponent
        chance /= chance.sum()
        drawn = np.sort(dice.choice(len(chance), size, p=chance))
        weight = (len(chance) * chance[drawn]) ** -correction
        bounds = np.cumsum([0, *(len(p.which) for p in self.memory)])
        longest, parts = 1, []
        for (at, end), p in zip(pairwise(bounds), self.memory, strict=True):
            mine = p.which[drawn[(drawn >= at) & (drawn < end)] - at]
            if len(mine):
                turn, done = mine.T
                last = done + 1 == p.picks[turn]
                then = np.where(last & (p.after[turn] >= 0), p.after[turn], turn)
                longest = max(longest, int(p.turns["count"][turn].max()), int(p.turns["count"][then].max()))
                parts.append((p, turn, done, last, then))
        return drawn, Transitions(
            _join([_queues(p, turn, done, longest) for p, turn, done, _, _ in parts]),
            torch.from_numpy(np.concatenate([p.turns["lead"][turn, done] for p, turn, done, _, _ in parts])).long(),
            _single([np.where(last, p.reward[turn], 0.0) for p, turn, _, last, _ in parts]),
            _single([np.where(last, p.discount[turn], 1.0) for p, turn, _, last, _ in parts]),
            _join([_queues(p, then, np.where(last, 0, done + 1), longest) for p, _, done, last, then in parts]),
            _single([weight / weight.max()]),
        )

    def surprise(self, drawn: Array, error: Tensor) -> None:
        """Sets the priorities of what was drawn, by how far off the network was."""
        found = np.abs(error.detach().numpy()) + 1e-3
        bounds = np.cumsum([0, *(len(p.which) for p in self.memory)])
        for (at, end), p in zip(pairwise(bounds), self.memory, strict=True):
            mine = (drawn >= at) & (drawn < end)
            p.priority[drawn[mine] - at] = found[mine]

    def state(self) -> dict[str, Any]:
        """The networks that played, and the priorities."""
        played = [(p.number, torch.from_numpy(p.net), torch.from_numpy(p.priority)) for p in self.memory]
        return {"scale": self.scale, "played": played}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Plays again what the state remembers."""
        self.scale = float(state["scale"])
        for number, net, priority in state["played"]:
            self._remember(int(number), net.numpy())
            self.memory[-1].priority[:] = priority.numpy()


def _only(tape: Array, turns: Array, after: Array, chosen: Array) -> tuple[Array, Array, Array]:
    """Drops the rows of turns that are neither chosen nor follow one that is."""
    keep = np.zeros(len(turns), dtype=bool)
    keep[chosen] = True
    keep[after[chosen][after[chosen] >= 0]] = True
    count = np.where(keep, turns["count"], 0)
    rows = np.repeat(turns["first"] - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
    turns = turns.copy()
    turns["first"] = np.cumsum(count) - count
    return tape[rows, : JOB_COUNT + POOL_COUNT], turns, after


def _ramp(lengths: Array) -> Array:
    """0, 1, …, length - 1 for each length."""
    ends = np.cumsum(lengths)
    ramp: Array = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return ramp


def _queues(p: _Played, turn: Array, done: Array, longest: int) -> Queues:
    turns = p.turns[turn]
    _, mask, jobs = padded_queues(p.tape, turns["first"], turns["count"], longest)
    lead = turns["lead"]
    gone = np.zeros((len(turn), longest + 1), dtype=bool)
    taken = np.arange(lead.shape[1])[None, :] < done[:, None]
    np.put_along_axis(gone, np.where(taken, lead, longest), values=True, axis=1)
    pool = p.tape[turns["first"], JOB_COUNT:]
    return Queues(*(torch.from_numpy(x) for x in (jobs, pool, mask, mask & ~gone[:, :longest])))


def _join(parts: list[Queues]) -> Queues:
    names = ("jobs", "pool", "mask", "left")
    return Queues(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def _single(parts: list[Array]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))
