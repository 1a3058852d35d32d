"""Scores single jobs, for policies that read only the job, and computes Slurm's own priorities."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.jit import kernel, quick_kernel
from slurm_rl.policy.estimate import estimate
from slurm_rl.policy.heuristics import call_score, multifactor_priority


@quick_kernel
def score_new(world: Array, now: float) -> float:
    """Estimates and scores the only job of a world."""
    w = world[0]
    estimate(w, np.int64(0))
    score: float = call_score(w, now, np.int64(0))
    return score


@quick_kernel
def estimate_new(world: Array) -> None:
    """Estimates the only job of a world."""
    estimate(world[0], np.int64(0))


@kernel
def multifactor_all(world: Array, now: float, jobs: Array) -> Array:
    """The model's multifactor priority of each of these jobs."""
    w = world[0]
    found = np.empty(len(jobs))
    for i in range(len(jobs)):
        found[i] = multifactor_priority(w, now, jobs[i])
    return found


@kernel
def score_again(world: Array, now: float, j: int) -> float:
    """Scores a job of a queue as its record is now; its estimate stays."""
    w = world[0]
    score: float = call_score(w, now, j)
    return score
