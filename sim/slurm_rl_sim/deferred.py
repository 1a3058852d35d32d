"""How leaving jobs for later turned out."""

from __future__ import annotations

import numpy as np

from slurm_rl_sim.result import Result
from slurm_rl_sim.simulation import Simulation


def deferral_figures(result: Result, simulation: Simulation) -> dict[str, float | int | None] | None:
    """Of the measured jobs with GPUs that ran: how many were left for later, and how many of these had what they want.

    A deferral succeeds if its job starts on the GPU type that it was left for last, before its bound. None where no job
    may be left for later.
    """
    planner = simulation.planner
    rules = planner.settings.deferral if planner is not None else None
    if planner is None or rules is None:
        return None
    world = simulation.world
    shapes = world["shapes"][world["jobs"]["request"]]
    counted = result.measured & result.ran & (shapes["gpu"] + shapes["share"] > 0)
    jobs = np.array([j for j in planner.put_off if counted[j]], dtype=np.int64)
    bound = np.minimum(rules.seconds, rules.share * np.maximum(world["live"]["expected"][jobs], 1.0))
    on = world["nodes"]["type"][result.log["node"][result.log_first[jobs]]]
    awaited = np.array([planner.put_off[int(j)] for j in jobs], dtype=np.int64)
    succeeded = int(((on == awaited) & (result.wait[jobs] <= bound)).sum())
    everyone = int(counted.sum())
    return {
        "jobs": len(jobs),
        "succeeded": succeeded,
        "success_rate": succeeded / len(jobs) if len(jobs) else None,
        "allocation_rate": 1.0 - len(jobs) / everyone if everyone else None,
    }
