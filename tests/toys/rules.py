"""One toy of each kind: a heuristic, a placement, a backfill rule and a meta-policy."""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.starting import try_start
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Record
from slurm_rl.kernel.jit import kernel
from slurm_rl.place.capacity import capacity
from slurm_rl.place.kernels import deferred
from slurm_rl.policy.choice import choose


@kernel
def widest(w: Record, now: float, j: int) -> float:
    """A heuristic: the largest job first."""
    return t.requests(w).volume[t.jobs(w).request[j]]


@kernel
def last_fit(w: Record, s: int, view: int, first: int, last: int) -> int:
    """A placement: as many units as fit on each node in turn, from the last node to the first."""
    left, count = t.requests(w).units[s], 0
    for at in range(last - 1, first - 1, -1):
        n = t.kind_node(w)[at]
        units = capacity(w, s, view, n, left)
        if units > 0:
            t.spot(w).node[count], t.spot(w).units[count], t.spot(w).gpus[count] = n, units, 0
            count += 1
            left -= units
            if left == 0:
                return count
    return 0


@kernel
def second_chance(
    w: Record,
    now: int,
    pool: int,
    order: np.ndarray,
    first: int,
    last: int,
    fresh: int,
    stamp: int,
    started: np.ndarray,
) -> int:
    """A backfill rule: strict order, but one job that does not fit may be passed over."""
    count, misfits = 0, 0
    for i in range(first, last):
        j = order[i]
        if deferred(w, j):
            continue
        if try_start(w, j, now, stamp):
            started[count] = j
            count += 1
        else:
            misfits += 1
            if misfits == 2:
                break
    return count


@kernel
def short_queue_first_come(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """A meta-policy: first come, first served in a queue of up to three, else the shortest first."""
    choose(w, 0 if count <= 3 else 1)
