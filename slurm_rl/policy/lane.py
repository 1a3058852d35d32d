"""The lane: the oldest job goes first while such jobs have had less than their share of the work started.

A cap on waiting lets every job that has waited too long go first, so under a long backlog it turns the order into first
come, first served. The lane promotes one job at a time, the oldest, once it has waited `lane_age` times as long as the
backlog takes, and only while the jobs so promoted make up at most `lane_share` of the work started in the pool, older
work counting less with a half-life. docs/learning.md states what wait this bounds.
"""

from __future__ import annotations

import math

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Array, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.kernel.links import FLOAT, INT, LIST, NOTHING, by_address
from slurm_rl.policy.features import expected_mean

SHARE = 0.2  # of the work started that the lane may have
AGE = 2.0  # backlogs that the oldest job must have waited
HALF_LIFE = 2 * 86_400.0  # seconds after which a start counts half
_SHORTEST = 60.0  # seconds: a backlog is never taken to be shorter


@kernel
def backlog(w: Record, now: float, pool: int, queue: Array, count: int) -> float:
    """Seconds that the whole pool needs for what runs and waits, as estimated."""
    jobs, requests, live = t.jobs(w), t.requests(w), t.live(w)
    work = 0.0
    for k in range(t.pools(w).running[pool]):
        j = t.running(w)[t.pools(w).first_job[pool] + k]
        elapsed = now - live.start[j]
        left = min(max(expected_mean(w, j) - elapsed, 0.3 * elapsed), max(jobs.limit[j] - elapsed, 0.0))
        work += left * requests.volume[jobs.request[j]]
    for i in range(count):
        work += requests.volume[jobs.request[queue[i]]] * expected_mean(w, queue[i])
    return work / t.pools(w).volume[pool]


@kernel
def enter_lane(w: Record, now: float, queue: Array, count: int) -> None:
    """Lets the oldest job of a queue (ascending indices) go first, if it has waited enough and the lane is open."""
    pools, oldest = t.pools(w), queue[0]
    pool = t.requests(w).pool[np.int64(t.jobs(w).request[oldest])]
    pools.lane_job[pool] = 0
    if pools.lane_work[pool] > w.lane_share * pools.started_work[pool]:
        return
    if now - t.jobs(w).submit[oldest] > w.lane_age * max(backlog(w, now, pool, queue, count), _SHORTEST):
        pools.lane_job[pool] = oldest + 1
        t.scores(w)[0] = math.inf


call_enter_lane = by_address("enter_lane", enter_lane, NOTHING, FLOAT, LIST, INT)


@inlined
def in_lane(w: Record, pool: int, j: int) -> bool:
    """Whether a job was last ordered first by the lane."""
    return w.lane_share > 0.0 and t.pools(w).lane_job[pool] == j + 1


@inner
def charge(w: Record, j: int, now: float) -> None:
    """Counts the work of a job that starts, and against the lane if that let it go first."""
    pools, s = t.pools(w), np.int64(t.jobs(w).request[j])
    pool = t.requests(w).pool[s]
    work = t.requests(w).volume[s] * expected_mean(w, j)
    kept = math.exp(-math.log(2.0) * max(now - pools.lane_time[pool], 0.0) / w.lane_half_life)
    pools.lane_work[pool] *= kept
    pools.started_work[pool] = pools.started_work[pool] * kept + work
    pools.lane_time[pool] = now
    if pools.lane_job[pool] == j + 1:
        pools.lane_work[pool] += work
