"""A queue sorted by estimates stays sorted: when jobs have ended, only the waiting jobs of their users move.

For policies whose scores change with the estimate alone. The waiting jobs of each user are a list (alike.py); the order
is that of `order_queue`, job by job, and passes go along the queue as under an order that never changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Record
from slurm_rl.kernel.jit import inlined, kernel
from slurm_rl.kernel.links import INT, NOTHING, by_address, link
from slurm_rl.kernel.tables import World
from slurm_rl.policy.estimate import estimate
from slurm_rl.policy.heuristics import call_score
from slurm_rl_sim.alike import drop, fill_groups, goes_by_score, push
from slurm_rl_sim.state import queue_place

_HEAD, _LIST, _VERSION = 0, 3, 4  # columns of the table `alikes`: the last is of the estimates when last renewed
_FIRST, _COUNT = range(2)  # … of `alike_lists`
_NEXT = 2  # … of `alike`


def keeps_sorted(world: World) -> bool:
    """Whether the scores of a World change with estimates alone, and nothing else puts jobs in another order."""
    return bool(world["steady"]) and goes_by_score(world)


def keep_sorted(world: World) -> None:
    """Makes a World, in which nobody waits yet, keep its queues sorted, and links the kernels for it."""
    jobs = world["jobs"]
    fill_groups(world, [world["requests"]["pool"][jobs["request"]], jobs["user"]])
    world["fixed_order"] = 1
    link(world, "renew_order")


@inlined
def _goes_before(live: Any, j: int, score: float, other: int) -> bool:
    return score > live.score[other] or (score == live.score[other] and j < other)


@kernel
def renew_order(w: Record, pool: int) -> None:
    """Renews the estimates of waiting jobs whose user has finished jobs since, and moves these jobs."""
    jobs, live, users, queue, groups = t.jobs(w), t.live(w), t.users(w), t.queue(w), t.alikes(w)
    heap, scores, places = t.scratch(w), t.scores(w), t.order(w)
    first, last = t.pools(w).queue_first[pool], t.pools(w).queue_last[pool]
    listed = t.alike_lists(w)[pool, _FIRST]
    stale = np.int64(0)
    for k in range(listed, listed + t.alike_lists(w)[pool, _COUNT]):
        g = groups[k, _LIST]
        j = groups[g, _HEAD]
        version = users.version[jobs.user[j]]
        if groups[g, _VERSION] == version:
            continue
        groups[g, _VERSION] = version
        while j >= 0:
            if live.version[j] != version:
                places[stale] = queue_place(w, pool, j)  # by the old score
                stale += 1
            j = np.int64(t.alike(w)[j, _NEXT])
    if stale == 0:
        return
    low = last
    for k in range(stale):
        at = places[k]
        j = queue[at]
        queue[at] = -1
        low = min(low, at)
        estimate(w, j)
        live.score[j] = call_score(w, 0.0, j)
        push(heap, scores, k, j, live.score[j])
    # Those that stay close up towards the end; then both are merged from the first place on where one may change.
    best = scores[0]
    while low > first and _goes_before(live, heap[0], best, queue[low - 1]):
        low -= 1
    write = last
    for i in range(last - 1, low - 1, -1):
        if queue[i] >= 0:
            write -= 1
            queue[write] = queue[i]
    at = low
    while stale > 0:
        if write < last and not _goes_before(live, heap[0], scores[0], queue[write]):
            queue[at] = queue[write]
            write += 1
        else:
            queue[at] = heap[0]
            stale = drop(heap, scores, stale)
        at += 1


call_renew_order = by_address("renew_order", renew_order, NOTHING, INT)
