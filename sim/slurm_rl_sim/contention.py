"""Finds the windows of a trace in which jobs queue."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.registry import parse_policy
from slurm_rl_sim.metrics import bounded_slowdown
from slurm_rl_sim.replay import Prepared
from slurm_rl_sim.simulation import ReplayState

_SHARE = 0.5  # of all windows: those with the larger slowdown
_LEAST = 1.1  # mean bounded slowdown, below which nobody waits to speak of


def contended_begins(prepared: Prepared, jobs: int, backfill: str, placement: str) -> Array:
    """The first jobs of windows of `jobs` jobs in which jobs queue, by one replay of the whole trace under FCFS.

    All windows, if nobody queues anywhere.
    """
    placement = "best-fit" if placement == "mip" else placement  # a plan for every pass would take minutes
    simulation = ReplayState(
        prepared.workload, prepared.trace.run_time, parse_policy("fcfs"), backfill=backfill, placement=placement
    )
    simulation.run()
    live = simulation.world["live"]
    ran = live["start"] >= 0
    wait = np.where(ran, live["start"] - prepared.trace.submit_time, 0).astype(float)
    slow = bounded_slowdown(wait, np.where(ran, live["end"] - live["start"], 1).astype(float))
    total = np.concatenate([[0.0], np.cumsum(np.log(slow))])
    means = np.exp((total[jobs:] - total[:-jobs]) / jobs)[: len(prepared.trace) - jobs]
    picked = np.flatnonzero((means >= np.quantile(means, 1.0 - _SHARE)) & (means >= _LEAST))
    return picked if len(picked) else np.arange(len(prepared.trace) - jobs)
