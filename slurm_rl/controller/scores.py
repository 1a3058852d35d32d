"""The policy's own scores of a queue, before their influence is bounded."""

from __future__ import annotations

import numpy as np

from slurm_rl.controller.observe import View
from slurm_rl.controller.policy import LivePolicy
from slurm_rl.domain import tables as t
from slurm_rl.domain.arrays import Array
from slurm_rl.domain.snapshot import Plan
from slurm_rl.jit import kernel
from slurm_rl.policy.estimate import estimate
from slurm_rl.policy.heuristics import score_job


@kernel
def score_jobs(world: Array, now: float, jobs: Array, out: Array) -> None:
    """Scores jobs; one whose estimate is 0 is estimated first."""
    w = world[0]
    for i in range(len(jobs)):
        if t.live(w).expected[jobs[i]] <= 0.0:
            estimate(w, jobs[i])
        out[i] = score_job(w, w.code, now, jobs[i])


def own_scores(view: View, plan: Plan, policy: LivePolicy) -> Array:
    """Scores of the jobs in the plan's order."""
    order = np.array(plan.order, dtype=np.int64)
    scores = np.empty(len(order))
    if policy.score is not None:
        place = {int(j): i for i, j in enumerate(view.snapshot.pending.tolist())}
        given = np.nan_to_num(policy.score(view.snapshot))
        return given[[place[j] for j in plan.order]]
    score_jobs(view.snapshot.world.record, float(view.now), order, scores)
    return scores
