"""A stretch of a prepared trace as a separate workload: cut from its tables, not built anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl_sim.replay import Prepared


def stretch(prepared: Prepared, first: int, last: int, opening: int) -> Prepared:
    """Jobs `first` … `last` - 1 alone, of which those submitted from `opening` on are measured.

    Its replay is that of a trace of these rows: users, accounts, requests and the estimator's groups are those that
    occur in it.
    """
    whole = prepared.workload
    jobs = whole.jobs[first:last].copy()
    requests, jobs["request"] = _renumbered(jobs["request"])
    users, jobs["user"] = _renumbered(jobs["user"])
    accounts, jobs["account"] = _renumbered(jobs["account"])
    named = jobs["group"] >= 0
    groups, numbers = _renumbered(jobs["group"][named])
    jobs["group"][named] = numbers
    user_account = np.zeros(max(len(users), 1), dtype=np.int32)
    user_account[jobs["user"][::-1]] = jobs["account"][::-1]  # that of a user's first job
    distinct, pools = whole.requests[requests], whole.pools.copy()
    count = np.bincount(distinct["pool"][jobs["request"]], minlength=len(pools))
    pools["last_job"] = np.cumsum(count)
    pools["first_job"] = pools["last_job"] - count
    pools["queue_first"] = pools["queue_last"] = pools["first_job"]
    workload = replace(
        whole,
        jobs=jobs,
        requests=distinct,
        pools=pools,
        user_account=user_account,
        accounts=max(len(accounts), 1),
        groups=len(groups),
        reference_speed=whole.reference_speed[first:last],
        demand=whole.demand[requests] if len(whole.demand) else whole.demand,
        rejected={j - first: why for j, why in whole.rejected.items() if first <= j < last},
    )
    trace = prepared.trace.take(slice(first, last))
    return Prepared(trace, prepared.cluster, workload, trace.submit_time >= opening)


def _renumbered(codes: Array) -> tuple[Array, Array]:
    """The codes that occur, in order, and the place of each code among them."""
    found, place = np.unique(codes, return_inverse=True)
    return found, place
