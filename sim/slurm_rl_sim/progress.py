"""Pays an agent step by step: the reward of a window if all waiting jobs started now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl_sim.metrics import bounded_slowdown

if TYPE_CHECKING:
    from slurm_rl_sim.rewards import Payment
    from slurm_rl_sim.windows import Window

# Rewards that are means over jobs, and so stand somewhere at every moment: the metric of each.
STEPWISE = {"users": "user_bsld", "bsld": "mean_bsld"}


def check_stepwise(payment: Payment) -> None:
    """Refuses rewards that are known at the end alone."""
    rewards = payment.rewards
    if callable(rewards) or not payment.log or not set(rewards) <= set(STEPWISE):
        raise InputError(
            f"pays each step for {' and '.join(STEPWISE)} with reward_scale log alone",
            field="stepwise",
            remedy="leave it out",
        )


class Progress:
    """The reward so far of one window that is played.

    A step pays the difference to the step before. The last one pays what is left to the window's reward, so that the
    payments of a window add up to it: what is best stays best.
    """

    def __init__(self, window: Window, payment: Payment) -> None:
        prepared = window.prepared
        counted = prepared.measured.copy()
        counted[list(prepared.workload.rejected)] = False
        self._jobs = jobs = np.flatnonzero(counted)
        self._submit, self._run = prepared.trace.submit_time[jobs], prepared.trace.run_time[jobs].astype(float)
        user = prepared.workload.jobs["user"][jobs]
        each = np.bincount(user)
        self._shares: dict[str, Array] = {
            "users": 1.0 / (each[user] * (each > 0).sum()),
            "bsld": np.full(len(jobs), 1.0 / max(len(jobs), 1)),
        }
        self._weights: Mapping[str, float] = {} if callable(payment.rewards) else payment.rewards
        self._window, self.paid = window, 0.0

    def step(self) -> float:
        """What the step that was just made is paid."""
        paid = self._stands() - self.paid
        self.paid += paid
        return paid

    def last(self, reward: float) -> float:
        """What the window's last step is paid."""
        return reward - self.paid

    def _stands(self) -> float:
        simulation: Any = self._window.simulation
        start = simulation.world["live"]["start"][self._jobs]
        until = np.where(start >= 0, start, simulation.now)
        slow = bounded_slowdown(np.maximum(until - self._submit, 0), self._run)
        total = 0.0
        for name, weight in self._weights.items():
            theirs = self._window.baseline[STEPWISE[name]]
            if theirs is not None:
                total += weight * float(np.log(theirs / (slow @ self._shares[name])))
        return total
