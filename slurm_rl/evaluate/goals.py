"""The goal of training and fitting, as one figure."""

from __future__ import annotations

from collections.abc import Mapping

# How much a figure's logarithm counts, relative to that of a reference.
GOALS = {"bsld": 1.0, "wait": 1.0, "p99": 1.0, "max": 0.5}


def price(logs: Mapping[str, float], goals: Mapping[str, float] = GOALS) -> float:
    """The weighted mean of log ratios: below 0 is better."""
    total = sum(weight * logs[name] for name, weight in goals.items()) / sum(goals.values())
    return max(min(total, 2.0), -2.0)  # one hopeless scene must not drown the others
