"""Defers a job although it fits, when a faster GPU type is expected soon: bounded in number and time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import NEVER, Array
from slurm_rl.kernel.tables import World
from slurm_rl.place.gpu_counts import free_by_type
from slurm_rl.place.release_times import accepted, ends

_LOOKED_AT = 1000  # jobs at the head of a queue


@dataclass(frozen=True, slots=True)
class Deferral:
    """How long jobs may be deferred.

    A job that has waited `share` of its expected run time, or `seconds`, is no longer deferred; a deferral lasts at
    least a `times`-th of that, so that there are no more than `times` of them.
    """

    seconds: float = 24 * 3600.0
    share: float = 1.0
    times: int = 8
    gain: float = 0.2  # of what it would cost now: the least that waiting must promise to save

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.share <= 0 or self.times < 1 or not 0 <= self.gain < 1:
            raise InputError("seconds, share and times must be above 0, gain from 0 to below 1", field="deferral")


def defer_jobs(
    world: World, pool: int, queue: Array, now: int, cost: Array, rules: Deferral
) -> dict[int, tuple[int, int]]:
    """Waiting jobs that should not start now: job -> until when, and for which GPU type.

    `cost` is seconds by [request, GPU type] for each second of work.
    """
    requests = world["requests"]
    first, last = int(world["pools"]["first_node"][pool]), int(world["pools"]["last_node"][pool])
    types = cost.shape[1]
    free_of = free_by_type(world, first, last, types)
    free = free_of.sum(axis=0)
    if not free.any():
        return {}
    most = free_of.max(axis=0)
    queue = queue[:_LOOKED_AT]
    rows = world["jobs"]["request"][queue]
    gpus = (requests["units"] * requests["gpu"])[rows]
    unit = requests["gpu"][rows]
    expected = np.maximum(world["live"]["expected"][queue], 1.0)
    waited = now - world["jobs"]["submit"][queue]
    budget = np.minimum(rules.seconds, rules.share * expected)
    step = np.maximum(budget / rules.times, 1.0)
    candidates = np.flatnonzero((gpus > 0) & (waited + step <= budget))
    if not len(candidates):
        return {}
    due = ends(world, pool, now, types)
    accepts = accepted(world, types)
    ahead = np.zeros(types)
    found: dict[int, tuple[int, int]] = {}
    for i in candidates.tolist():
        s = int(rows[i])
        mask = int(requests["accept"][s])  # of a node's several types, those that will do
        mine = [t for t in accepts[int(requests["kind"][s])] if mask >> t & 1]
        if len(mine) < 2:
            continue
        seconds = expected[i] * cost[s]
        here = [t for t in mine if free[t] >= gpus[i] and most[t] >= unit[i]]
        if not here:
            continue
        best = min(here, key=lambda t: seconds[t])
        later = {t: _wait(due[t], free[t], ahead[t] + gpus[i], now) for t in mine if seconds[t] < seconds[best]}
        better = min(later, key=lambda t: later[t] + seconds[t], default=None)
        if better is not None and later[better] + seconds[better] < (1.0 - rules.gain) * seconds[best]:
            ahead[better] += gpus[i]
            until = now + max(int(min(max(later[better], step[i]), budget[i] - waited[i])), 1)
            found[int(queue[i])] = until, better
        else:
            free[best] -= gpus[i]
    return found


def _wait(ends: tuple[Array, Array], free: float, wanted: float, now: int) -> float:
    """Expected seconds until a number of GPUs of a type are free."""
    at = int(np.searchsorted(ends[1], wanted - free))
    return float(ends[0][at] - now) if at < len(ends[0]) else float(NEVER)
