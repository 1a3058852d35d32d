"""The price of a second on each GPU type for the waiting jobs: the lookahead over the queue.

A linear programme shares the waiting jobs out over the types, all of which are to be through after h seconds:

    minimise    Σ run times  +  h · waiting jobs / 2
    subject to  GPU-seconds on each type ≤ its GPUs · h

Each second that a GPU is held costs the queue the dual value of its type. So a job that a fast type serves little
better than another leaves it to those that it serves much better; and nothing costs anything while nobody waits.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.arrays import GPU_MILLI, Array
from slurm_rl.kernel.jit import kernel
from slurm_rl.kernel.tables import World
from slurm_rl.place.gpu_counts import free_by_type, has_by_type
from slurm_rl.place.release_times import holds

_DELAYED = 0.5  # of the time to the end of the queue, for a job somewhere in it
_ROUNDS = 200
_STEP = 0.5
_BLUR = 0.02  # a group is shared out among types whose costs differ by less than about this


class Prices:
    """Prices of GPU types in one World after another of the same jobs and nodes; a function of the state alone."""

    def __init__(self, world: World) -> None:
        requests, speed = world["requests"], world["speed"]
        self.types = speed.shape[1]
        self.gpus = requests["units"] * (requests["gpu"] + requests["share"] / GPU_MILLI)
        # Jobs that the programme need not tell apart: GPUs, speeds, and types that could hold them.
        columns = np.column_stack([self.gpus, speed[requests["row"]], holds(world, self.types)])
        groups, group = np.unique(columns, axis=0, return_inverse=True)
        self._group = group.reshape(-1)
        self._gpus, self._speed = groups[:, 0], groups[:, 1 : 1 + self.types]
        self._holds = groups[:, 1 + self.types :] > 0

    def of(self, world: World, pool: int, queue: Array, *, least: int = 2) -> Array:
        """Seconds of delay for each second that a GPU is held, by type; 0 if no job finds room on `least` types."""
        first, last = int(world["pools"]["first_node"][pool]), int(world["pools"]["last_node"][pool])
        down = world["nodes"]["down"][first:last]
        free = free_by_type(world, first, last, self.types).sum(axis=0)
        group = self._group[world["jobs"]["request"][queue]]
        expected = np.maximum(world["live"]["expected"][queue], 1.0)
        work = np.bincount(group, weights=expected, minlength=len(self._gpus))
        here = np.flatnonzero((work > 0) & (self._gpus > 0))
        room = (free >= self._gpus[here, None]) & self._holds[here]
        if not len(here) or room.sum(axis=1).max() < least:
            return np.zeros(self.types)
        has = has_by_type(world, first, last, self.types)[down == 0].sum(axis=0)
        seconds = np.where(self._holds[here] & (has > 0), work[here, None] / self._speed[here], np.inf)
        waiting = int((self._gpus[group] > 0).sum())
        return drain_prices(seconds, self._gpus[here], has, _DELAYED * waiting)


@kernel
def drain_prices(seconds: Array, gpus: Array, has: Array, delay: float) -> Array:
    """Dual values of the types' capacities, to a few percent.

    `seconds` is the run time by [group, type] of all jobs of the group one after the other, inf where they do not run;
    `gpus` is what one of them holds, `has` the GPUs of each type, `delay` what a second of h costs. Of all prices that
    add up to `delay` over the GPUs, those are wanted that make the least cost of the groups largest: types that the
    groups fill above average at the prices so far become dearer, the others cheaper, in smaller and smaller steps.
    """
    groups, types = seconds.shape
    share = np.zeros(types)  # of `delay` that falls on each type
    for t in range(types):
        share[t] = has[t]
    share /= max(share.sum(), 1.0)
    price, mean = np.zeros(types), np.zeros(types)
    load = np.empty(types)
    cost = np.empty(types)
    for step in range(_ROUNDS):
        load[:] = 0.0
        for t in range(types):
            price[t] = delay * share[t] / has[t] if has[t] > 0 else 0.0
        for i in range(groups):
            least = np.inf
            for t in range(types):
                cost[t] = seconds[i, t] * (1.0 + gpus[i] * price[t])
                least = min(least, cost[t])
            if least == np.inf:
                continue
            whole = 0.0
            for t in range(types):
                cost[t] = np.exp((1.0 - cost[t] / least) / _BLUR) if cost[t] < np.inf else 0.0
                whole += cost[t]
            for t in range(types):
                if cost[t] > 0.0:
                    load[t] += cost[t] / whole * seconds[i, t] * gpus[i]
        average = 0.0
        for t in range(types):
            load[t] = load[t] / has[t] if has[t] > 0 else 0.0
            average += share[t] * load[t]
        if average <= 0.0:
            return np.zeros(types)
        for t in range(types):
            share[t] *= np.exp(_STEP / np.sqrt(step + 1.0) * min(load[t] / average - 1.0, 3.0))
        share /= share.sum()
        if 2 * step >= _ROUNDS:
            mean += price
    return mean / (_ROUNDS - (_ROUNDS + 1) // 2)
