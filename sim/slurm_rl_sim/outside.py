"""Lets a Python policy score the queues of the next pass."""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.starting import next_fitting
from slurm_rl.decide import renew_fairshare
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.jit import kernel
from slurm_rl.kernel.tables import World
from slurm_rl.policy.outside_calls import OutsideCalls
from slurm_rl.policy.queue import Queue, renew, slurms_order


@kernel
def _anything_fits(world: Array, pool: int) -> bool:
    """Whether any job of a pool's queue fits what is free: otherwise its order does not matter now."""
    w = world[0]
    w.stamp += 1
    first, last = t.pools(w).queue_first[pool], t.pools(w).queue_last[pool]
    return next_fitting(w, t.queue(w), first, last, w.stamp) < last


def score_from_outside(world: World, calls: OutsideCalls, now: int) -> None:
    """Writes scores where the order of a queue matters now; Slurm's own priorities where none are usable."""
    renew_fairshare(world.record, now)
    pools = world["pools"]
    tick = bool(world["tick"] == now)
    for pool in np.flatnonzero(pools["queue_last"] > pools["queue_first"]).tolist():
        row = pools[pool]
        if not (row["change"] or (tick and row["due"]) or world["planned"]):
            continue
        if not (world["books_many"] or world["planned"] or _anything_fits(world.record, pool)):
            continue
        jobs = world["queue"][int(row["queue_first"]) : int(row["queue_last"])].copy()
        renew(world.record, jobs)
        scores = calls(Queue(world, now, jobs))
        if scores is None:
            scores = np.empty(len(jobs))
            slurms_order(world.record, float(now), jobs, scores)
        world["live"]["score"][jobs] = scores
