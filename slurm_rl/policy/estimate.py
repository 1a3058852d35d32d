"""Run-time estimates learned online from finished jobs only, the same in replay and live.

Finished jobs are grouped at LEVELS, from all jobs of a size to the same user's jobs of the same name and size. Each
group keeps a decayed count, mean and variance of log run time; group 0 holds log(run/limit) of all jobs. A prediction
starts from the time limit times the usual ratio of run time to limit and is drawn, level by level, towards each
group's mean in proportion to what the group has seen.
"""

from __future__ import annotations

import math

import numpy as np

from slurm_rl.domain import tables as t
from slurm_rl.domain.arrays import LEVELS, Record
from slurm_rl.jit import kernel

# How many finished jobs a group needs before it weighs as much as the more general guess before it, and how much an
# older job still counts when a newer one of its group ends: chosen by the rank correlation of estimate and run time
# over the training part of several traces.
_TRUST = 1.0
_KEEP = 0.85
_START_VARIANCE = 2.0
_MAX_VARIANCE = 6.0


@kernel
def _learn(groups: np.ndarray, group: int, value: float, keep: float) -> None:
    weight = groups.weight[group] * keep
    delta = value - groups.center[group]
    groups.weight[group] = weight + 1.0
    groups.center[group] += delta / (weight + 1.0)
    groups.variance[group] = weight * (groups.variance[group] + delta * delta / (weight + 1.0)) / (weight + 1.0)


@kernel
def finish(w: Record, groups: np.ndarray, j: int, ran: float) -> None:
    """Learns from a job that has ended after running `ran` seconds."""
    log_run = math.log(max(ran, 1.0))
    _learn(groups, 0, log_run - math.log(max(float(t.jobs(w).limit[j]), 1.0)), 0.999)
    for level in range(LEVELS):
        group = t.jobs(w).group[j, level]
        if group >= 0:
            _learn(groups, group + 1, log_run, 0.999 if level == 0 else _KEEP)
    t.users(w).version[np.int64(t.jobs(w).user[j])] += 1


@kernel
def predict(w: Record, groups: np.ndarray, j: int) -> None:
    """Writes what is believed of job `j` now."""
    log_limit = math.log(max(float(t.jobs(w).limit[j]), 1.0))
    weight = groups.weight[0]
    mean = log_limit + (groups.center[0] if weight > 0 else math.log(0.5))
    variance = groups.variance[0] if weight > 5 else _START_VARIANCE
    seen = 0.0
    for level in range(LEVELS):
        group = t.jobs(w).group[j, level] + 1
        if group > 0 and groups.weight[group] > 0.0:
            weight = groups.weight[group]
            seen = weight
            share = weight / (weight + _TRUST)
            gap = groups.center[group] - mean
            mean += share * gap
            variance = share * groups.variance[group] + (1.0 - share) * (variance + share * gap * gap)
    variance = min(variance, _MAX_VARIANCE)
    mean = min(mean, log_limit)
    t.live(w).expected[j] = math.exp(mean)
    t.live(w).inverse[j] = math.exp(-mean + 0.5 * variance)
    t.live(w).spread[j] = math.sqrt(variance)
    t.live(w).seen[j] = seen


@kernel
def from_limit(w: Record, j: int) -> None:
    """The time limit taken at its word."""
    known(w, j, float(t.jobs(w).limit[j]))


@kernel
def known(w: Record, j: int, run: float) -> None:
    """A run time known for certain: what `@oracle` alone may use."""
    t.live(w).expected[j] = run
    t.live(w).inverse[j] = 1.0 / max(run, 1.0)
    t.live(w).spread[j] = 0.0
    t.live(w).seen[j] = 0.0
