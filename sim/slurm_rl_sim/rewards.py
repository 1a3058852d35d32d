"""The reward of a window: its schedule's metrics compared with the baseline's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from slurm_rl.errors import unknown_name
from slurm_rl_sim.metrics import METRICS

# Metrics that a window is paid by: the metric, and whether more of it is better.
SCORES = {m.reward: (m.name, m.better > 0) for m in METRICS if m.reward}
SCALES = ("log", "share")
Rewards = Mapping[str, float] | Callable[[Mapping[str, Any], Mapping[str, Any]], float]
_LEAST = 1e-9  # what shares are taken of at least
# Added to a metric before its logarithm is taken: a wait may be 0, and seconds matter little.
_FLOORS = {m.name: 1.0 if m.unit == "s" else 1e-3 if m.unit == "share" else 0.0 for m in METRICS}


class Payment:
    """Weighted gains over the baseline, or what a caller's function makes of both schedules."""

    def __init__(self, rewards: Rewards | None, scale: str) -> None:
        self.rewards: Rewards = rewards if callable(rewards) else dict(rewards or {"users": 1.0})
        if not callable(self.rewards):
            for name in self.rewards:
                if name not in SCORES:
                    raise unknown_name("reward", name, SCORES)
        if scale not in SCALES:
            raise unknown_name("reward_scale", scale, SCALES)
        self.log = scale == "log"

    @property
    def metrics(self) -> list[str]:
        """The metrics that it looks at; a function may look at any."""
        if callable(self.rewards):
            return [m.name for m in METRICS]
        return [SCORES[name][0] for name in self.rewards]

    def of(self, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
        """The reward for a schedule with these metrics, where the baseline has those."""
        if callable(self.rewards):
            return float(self.rewards(mine, theirs))
        total = 0.0
        for name, weight in self.rewards.items():
            metric, more = SCORES[name]
            floor = _FLOORS[metric]
            a, b = mine[metric], theirs[metric]
            if a is None or b is None:
                continue  # no deadline, or nothing that ran
            if self.log:
                gained = math.log((a + floor) / (b + floor)) * (1.0 if more else -1.0)
            else:
                gained = (a - b if more else b - a) / max(abs(b), _LEAST)
            total += weight * gained
        return total
