"""REINFORCE on outcome tables: the policy learns from trainings that were run once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from slurm_rl.errors import InputError
from slurm_rl.grow.learned import GrowthNet, LearnedGrowth, tensors_of
from slurm_rl.grow.state import State
from slurm_rl.grow.table import Trainings
from slurm_rl.grow.walk import state_at, walk


@dataclass(frozen=True, slots=True)
class Lesson:
    """How to learn; a reward is the gain in accuracy over the network that never grew, in percent."""

    iterations: int = 400
    samples: int = 16  # plans drawn a table, budget and iteration
    rate: float = 3e-3
    entropy: float = 0.05  # what keeps choices open at first; falls to nothing
    decay: float = 1e-3
    smoothing: float = 0.99  # of the baseline of each budget
    validate_every: int = 20


@dataclass(frozen=True, slots=True)
class _Tree:
    """One table under one budget: its moments of choice by path, as rows of the batch, and what plans gain."""

    budget: float
    rows: dict[tuple[int, ...], int]
    gains: dict[tuple[int, ...], float]


def learn(
    cells: Sequence[Trainings],
    budgets: Sequence[float],
    validation: Sequence[Trainings] = (),
    lesson: Lesson | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int, float], None] = lambda done, of, gain: None,
) -> tuple[GrowthNet, list[float]]:
    """The network that did best on `validation` tables (the last one, if there are none), and its course there."""
    lesson = lesson or Lesson()
    if not cells:
        raise InputError("no table to learn from")
    torch.manual_seed(seed)
    net = GrowthNet()
    states: list[State] = []
    trees: list[_Tree] = []
    for cell in cells:
        for budget in budgets:
            rows: dict[tuple[int, ...], int] = {}
            depth = cell.decisions(budget)
            for before in (p for p in cell.nodes if len(p) < depth):
                rows[before] = len(states)
                states.append(state_at(cell, before, budget))
            if rows:
                never = cell.outcome((0,) * depth, budget)
                gains = {p: 100 * (cell.outcome(p, budget) - never) for p in cell.paths(budget)}
                trees.append(_Tree(budget, rows, gains))
    if not states:
        raise InputError("no budget leaves time for a choice")
    *inputs, open_ = tensors_of(states)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lesson.rate, weight_decay=lesson.decay)
    baseline = dict.fromkeys(budgets, 0.0)
    best, best_gain, course = copy.deepcopy(net), float("-inf"), []
    for i in range(lesson.iterations):
        logits = torch.log_softmax(net(*inputs).masked_fill(~open_, -1e9), 1)
        drawn = torch.multinomial(logits.detach().exp(), lesson.samples, replacement=True).tolist()
        weights, count = torch.zeros_like(logits), 0
        for tree in trees:
            for k in range(lesson.samples):
                path: tuple[int, ...] = ()
                while path in tree.rows:
                    path = (*path, drawn[tree.rows[path]][k])
                advantage = tree.gains[path] - baseline[tree.budget]
                keep = lesson.smoothing
                baseline[tree.budget] = keep * baseline[tree.budget] + (1 - keep) * tree.gains[path]
                for depth, step in enumerate(path):
                    weights[tree.rows[path[:depth]], step] += advantage
                    count += 1
        entropy = -(logits.exp() * logits).masked_fill(~open_, 0.0).sum(1).mean()
        fading = lesson.entropy * (1 - i / lesson.iterations)
        loss = -(weights * logits).sum() / count - fading * entropy
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if (i + 1) % lesson.validate_every == 0 or i + 1 == lesson.iterations:
            gain = mean_gain(net, validation, budgets) if validation else float(i)
            course.append(gain)
            on_progress(i + 1, lesson.iterations, gain)
            if gain > best_gain:
                best, best_gain = copy.deepcopy(net), gain
            net.train()
    return best.eval(), course


def mean_gain(net: GrowthNet, cells: Sequence[Trainings], budgets: Sequence[float]) -> float:
    """Mean accuracy above never growing, in percent."""
    policy, gains = LearnedGrowth(net), []
    for cell in cells:
        for budget in budgets:
            never = (0,) * cell.decisions(budget)
            gains.append(cell.outcome(walk(cell, policy, budget), budget) - cell.outcome(never, budget))
    return 100 * sum(gains) / len(gains)
