"""Ranks policies of growth on outcome tables, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_rl.domain.bootstrap import middle95
from slurm_rl.grow.policies import GrowthPolicy, policy_of
from slurm_rl.grow.table import Trainings
from slurm_rl.grow.walk import walk
from slurm_rl.kernel.arrays import Array

HINDSIGHT = "best in hindsight"
OTHER_SEEDS = "best on the other seeds"
_DRAWS = 4000


@dataclass(frozen=True, slots=True)
class PolicyRanking:
    """A policy's mean final accuracy and its difference to never growing, with a 95% interval."""

    policy: str
    mean: float
    gain: float
    low: float
    high: float
    grew: float  # steps of growth a training
    by_budget: dict[float, float]

    @property
    def beats_never(self) -> bool:
        return self.low > 0


def rank(
    cells: Sequence[Trainings], policies: Sequence[GrowthPolicy], budgets: Sequence[float], seed: int = 0
) -> list[PolicyRanking]:
    """Best first. Intervals are from a bootstrap over tasks and, within them, seeds; all meet the same cells."""
    never = _outcomes(cells, "never", budgets)[0]
    rows = []
    for policy in policies:
        made, grew = _outcomes(cells, policy, budgets)
        rows.append(_ranking_of(policy.name, cells, budgets, made, never, grew, seed))
    for name, others in ((HINDSIGHT, False), (OTHER_SEEDS, True)):
        made, grew = _hindsight(cells, budgets, others=others)
        rows.append(_ranking_of(name, cells, budgets, made, never, grew, seed))
    return sorted(rows, key=lambda s: -s.mean)


def _outcomes(cells: Sequence[Trainings], policy: GrowthPolicy | str, budgets: Sequence[float]) -> tuple[Array, float]:
    made, grew = np.zeros((len(cells), len(budgets))), 0
    for i, cell in enumerate(cells):
        # A policy that draws must not depend on which cells came before.
        chosen = policy_of(policy, cell.seed) if isinstance(policy, str) else policy
        if chosen.name == "random":
            chosen = policy_of("random", cell.seed)
        for j, budget in enumerate(budgets):
            path = walk(cell, chosen, budget)
            made[i, j] = cell.outcome(path, budget)
            grew += sum(step > 0 for step in path)
    return made, grew / made.size


def _hindsight(cells: Sequence[Trainings], budgets: Sequence[float], *, others: bool) -> tuple[Array, float]:
    """For each task and budget the plan that did best over its seeds: a limit that no policy can know.

    With `others`, a seed is judged under the plan that did best on the others: what knowing the task is worth.
    """
    made, grew = np.zeros((len(cells), len(budgets))), 0
    for task in dict.fromkeys(c.task for c in cells):
        own = [i for i, c in enumerate(cells) if c.task == task]
        for j, budget in enumerate(budgets):
            shared = set.intersection(*(set(cells[i].paths(budget)) for i in own))
            table = {p: [cells[i].outcome(p, budget) for i in own] for p in sorted(shared)}
            for k, i in enumerate(own):
                best = max(table, key=lambda p, t=table, k=k: sum(t[p]) - (t[p][k] if others else 0.0))  # type: ignore[misc]
                made[i, j] = table[best][k]
                grew += sum(step > 0 for step in best)
    return made, grew / made.size


def _ranking_of(
    name: str, cells: Sequence[Trainings], budgets: Sequence[float], made: Array, never: Array, grew: float, seed: int
) -> PolicyRanking:
    low, high = interval([c.task for c in cells], (made - never).mean(1), seed)
    by_budget = {b: float(made[:, j].mean()) for j, b in enumerate(budgets)}
    return PolicyRanking(name, float(made.mean()), float((made - never).mean()), low, high, grew, by_budget)


def interval(tasks: Sequence[str], gains: Array, seed: int = 0) -> tuple[float, float]:
    """A 95% interval of the mean: tasks are drawn with replacement, then seeds within each."""
    names = list(dict.fromkeys(tasks))
    groups = [gains[[i for i, t in enumerate(tasks) if t == name]] for name in names]
    draw = np.random.default_rng(seed)
    means = np.empty(_DRAWS)
    for k in range(_DRAWS):
        chosen = draw.integers(0, len(groups), len(groups))
        means[k] = np.mean([groups[g][draw.integers(0, len(groups[g]), len(groups[g]))].mean() for g in chosen])
    return middle95(means)
