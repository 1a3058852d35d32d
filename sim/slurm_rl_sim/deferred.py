"""The outcome of deferred jobs."""

from __future__ import annotations

import numpy as np

from slurm_rl_sim.result import Result
from slurm_rl_sim.simulation import ReplayState


def deferral_figures(result: Result, simulation: ReplayState) -> dict[str, float | int | None] | None:
    """Of the measured jobs that ran: how many were deferred, started in time, and got what they wanted.

    A deferral succeeds if its job starts in time on the GPU type that it was left for last. None where no job may be
    deferred.
    """
    planner = simulation.planner
    rules = planner.settings.deferral if planner is not None else None
    if planner is None or rules is None:
        return None
    world = simulation.world
    counted = result.measured & result.ran
    jobs = np.array([j for j in planner.defer_jobs if counted[j]], dtype=np.int64)
    bound = np.minimum(rules.seconds, rules.share * np.maximum(world["live"]["expected"][jobs], 1.0))
    on = world["nodes"]["type"][result.log["node"][result.log_first[jobs]]]
    awaited = np.array([planner.defer_jobs[int(j)] for j in jobs], dtype=np.int64)
    in_time = result.wait[jobs] <= bound
    return {
        "jobs": len(jobs),
        "allocation_rate": float(in_time.mean()) if len(jobs) else None,
        "success_rate": float((in_time & (on == awaited)).mean()) if len(jobs) else None,
    }
