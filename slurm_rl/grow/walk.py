"""Lets policies walk through outcome tables."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_rl.grow.policies import GrowthPolicy
from slurm_rl.grow.state import State
from slurm_rl.grow.table import Trainings


def state_at(cell: Trainings, path: Sequence[int], budget: float) -> State:
    """What a policy would have seen at a moment of choice."""
    node, points = cell.nodes[tuple(path)], cell.points(path)
    grown, count = [], 0
    for i, step in enumerate(path):
        count += len(cell.nodes[tuple(path[:i])].points)
        if step:
            grown.append(count)
    now = points[-1][0] if points else 0.0
    return State(
        node.layers,
        node.menu,
        now,
        max(budget - now, 0.0),
        node.epoch,
        tuple(p[1] for p in points),
        tuple(p[2] for p in points),
        tuple(grown),
    )


def walk(cell: Trainings, policy: GrowthPolicy, budget: float) -> tuple[int, ...]:
    """The plan that a policy follows under a budget."""
    path: tuple[int, ...] = ()
    for _ in range(cell.decisions(budget)):
        state = state_at(cell, path, budget)
        choice = policy.choose(state)
        path = (*path, 0 if choice is None else 1 + state.choices.index(choice))
    return path
