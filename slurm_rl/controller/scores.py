"""Scores single jobs, as policies do that look at nothing but the job."""

from __future__ import annotations

import numpy as np

from slurm_rl.domain.arrays import Array
from slurm_rl.jit import kernel
from slurm_rl.policy.estimate import estimate
from slurm_rl.policy.heuristics import score_job


@kernel
def score_new(world: Array, now: float) -> float:
    """Estimates and scores the only job of a world."""
    w = world[0]
    estimate(w, np.int64(0))
    score: float = score_job(w, w.code, now, np.int64(0))
    return score


@kernel
def score_again(world: Array, now: float, j: int) -> float:
    """Scores a job of a queue as its record is now; its estimate stays."""
    w = world[0]
    score: float = score_job(w, w.code, now, j)
    return score
