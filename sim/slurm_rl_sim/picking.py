"""How an agent picks jobs, compiled: goes to the next choice, deals a hand, takes a pick or a deferral."""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.backfill.starting import copy_pool
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import NEVER, NOW, SCRATCH, Array
from slurm_rl.kernel.jit import kernel
from slurm_rl.place.kernels import call_place, deferred, take
from slurm_rl.policy.estimate import refresh
from slurm_rl.policy.features import observe
from slurm_rl_sim.engine import BEFORE_PASS, GROW, advance
from slurm_rl_sim.schedule import NOTHING_FITS

# What a window waits for: an action, another window, more rows for its profile, a plan of where jobs go.
CHOICE, ENDED, CRAMPED, UNPLANNED = range(4)
_FIRST = 1e15  # above any score by submit time


@kernel
def to_choice(world: Array, i: int, count: Array, pool: Array, opening: int, hand: Array, planned: Array) -> int:
    """Goes on to the next pool of window `i` that has a choice."""
    w = world[0]
    pools = len(t.pools(w))
    while True:
        while pool[i] < pools:
            count[i] = _deal(world, pool[i], hand) if w.clock >= opening else 0
            if count[i] > 0:
                return CHOICE
            pool[i] += 1
        if w.pass_due:
            if w.planned and not planned[i]:
                return UNPLANNED
            if advance(world, w.clock, False) == GROW:
                return CRAMPED
            planned[i] = 0
        if advance(world, NEVER - 1, True) != BEFORE_PASS:
            return ENDED
        pool[i] = 0


@kernel
def _deal(world: Array, pool: int, hand: Array) -> int:
    """Begins a pool's picks: its oldest waiting jobs go to `hand`, all scored by submission; how many, 0: no choice."""
    w = world[0]
    first, last = t.pools(w).queue_first[pool], t.pools(w).queue_last[pool]
    refresh(w, t.queue(w)[first:last], last - first)
    for i in range(first, last):
        j = t.queue(w)[i]
        t.live(w).score[j] = -float(t.jobs(w).submit[j])
    if t.pools(w).change[pool] == 0 or last - first < (1 if w.hint_of_0 > 0 else 2):
        return 0
    copy_pool(w, pool, NOW, SCRATCH)
    count, left_out = 0, 0
    for i in range(first, last):
        if not deferred(w, t.queue(w)[i]):
            if count < len(hand):
                hand[count] = t.queue(w)[i]
                count += 1
            else:
                left_out += 1
    if count > 0 and _any_room(w, hand, count):
        return count
    if left_out == 0 and not w.planned and not w.books_many:
        t.pools(w).planned[pool] = NOTHING_FITS  # spares the pass another look
    return 0


@kernel
def _any_room(w: Any, hand: Array, count: int) -> bool:
    """Whether any job in hand fits what the picks so far leave."""
    w.stamp += 1
    for i in range(count):
        s = np.int64(t.jobs(w).request[hand[i]])
        if t.requests(w).misfit[s] != w.stamp:
            if call_place(w, s, SCRATCH) > 0:
                return True
            t.requests(w).misfit[s] = w.stamp
    return False


@kernel
def pick(world: Array, hand: Array, count: int, at: int, picked: int) -> int:
    """Puts a job next in the order; how many are left to pick from, 0 if the pool's order is settled."""
    w = world[0]
    j = hand[at]
    t.live(w).score[j] = _FIRST - picked
    s = np.int64(t.jobs(w).request[j])
    pieces = call_place(w, s, SCRATCH)
    if pieces == 0:
        return 0
    take(w, s, SCRATCH, pieces)
    return _without(w, hand, count, at)


@kernel
def _without(w: Any, hand: Array, count: int, at: int) -> int:
    """Takes a job out of the hand; how many are left to pick from, 0 if none of them fits."""
    for i in range(at, count - 1):
        hand[i] = hand[i + 1]
    count -= 1
    return count if count > 0 and _any_room(w, hand, count) else 0


@kernel
def not_now(world: Array, hand: Array, count: int, at: int, until: int) -> int:
    """Defers a job; how many are left to pick from, 0 if the pool's order is settled."""
    w = world[0]
    t.hint_of(w)[hand[at]] = -until
    w.wake = min(w.wake, until)
    return _without(w, hand, count, at)


@kernel
def see(world: Array, hand: Array, count: int) -> None:
    """Writes the features of the jobs in hand and of their pool; slots that hold none are 0."""
    w = world[0]
    observe(w, float(w.clock), hand, count)
    rows = t.features(w)
    for i in range(count, len(hand)):
        for f in range(rows.shape[1]):
            rows[i, f] = np.float32(0.0)


@kernel
def go(
    records: Array,
    first: int,
    last: int,
    action: Array,
    status: Array,
    count: Array,
    picked: Array,
    pool: Array,
    opening: Array,
    hand: Array,
    jobs: Array,
    context: Array,
    mask: Array,
    seen: Array,
    planned: Array,
    deferred: Array,
    defer: int,
    defer_seconds: float,
) -> None:
    """Makes the picks of windows `first` … `last` - 1 and goes on to their next choice; action -1: no pick.

    The tables of features are `jobs` and `context`; `seen`, unless it is empty, gets what all windows show as vectors.
    """
    slots = hand.shape[1]
    for i in range(first, last):
        world = records[i : i + 1]
        if status[i] == ENDED:
            continue
        if action[i] >= 0:
            at = action[i] if action[i] < mask.shape[1] and mask[i, action[i]] else 0
            if at < slots:
                picked[i] += 1
                count[i] = pick(world, hand[i], count[i], at, picked[i])
            else:
                j = hand[i, at - slots]
                deferred[i, j] += 1
                count[i] = not_now(world, hand[i], count[i], at - slots, _until(world[0], j, defer, defer_seconds))
            if count[i] == 0:
                pool[i] += 1
        if count[i] == 0:
            status[i] = to_choice(world, i, count, pool, opening[i], hand[i], planned)
            if status[i] == CHOICE:
                picked[i] = 0
            elif status[i] != ENDED:
                continue  # the mask still says which rows of the observation are to be cleared
        if status[i] == CHOICE:
            observe(world[0], float(world[0].clock), hand[i], count[i])
        for k in range(count[i], slots):
            if mask[i, k] == 0:
                break
            for f in range(jobs.shape[2]):
                jobs[i, k, f] = np.float32(0.0)
        for k in range(slots):
            mask[i, k] = k < count[i]
        for k in range(slots, mask.shape[1]):
            j = hand[i, k - slots]
            mask[i, k] = k - slots < count[i] and deferred[i, j] < defer
            if mask[i, k]:
                mask[i, k] = _until(world[0], j, defer, defer_seconds) > world[0].clock
        if seen.shape[1] > 0:
            _flatten(seen[i], jobs[i], count[i], context[i], mask[i])


@kernel
def _flatten(seen: Array, jobs: Array, held: int, context: Array, mask: Array) -> None:
    """What a window shows as one vector; the rows of `jobs` from `held` on are 0."""
    width = jobs.shape[1]
    for k in range(held):
        for f in range(width):
            seen[k * width + f] = jobs[k, f]
    end = jobs.shape[0] * width
    seen[held * width : end] = np.float32(0.0)
    seen[end : end + len(context)] = context
    seen[end + len(context) :] = mask


@kernel
def _until(w: Any, j: int, defer: int, seconds: float) -> int:
    """When a job that is deferred now comes back: as ReplayEnv has it."""
    return min(w.clock + int(seconds / defer), t.jobs(w).submit[j] + int(seconds))
