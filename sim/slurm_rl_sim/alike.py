"""Long queues whose order changes with time: jobs that are alike but for their age are one group with a list.

Within a group the one that came first goes first, whatever the time. So a pass compares the first of each group, takes
the best, and the next of its group follows: cost goes with the groups, and with the jobs that the rule looks at. For
rules that hold nodes for one job at most (`none`, `firstfit`, `easy`): of the jobs that do not fit only the first in
order matters, it is the head. The order is that of `order_queue`, job by job.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slurm_rl.backfill.catalogue import FIRSTFIT, NONE
from slurm_rl.backfill.dispatch import call_backfill_pass
from slurm_rl.backfill.starting import spent
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import NOW, Array, Record
from slurm_rl.kernel.codes import number
from slurm_rl.kernel.jit import inlined, kernel
from slurm_rl.kernel.links import INT, NOTHING, by_address, link
from slurm_rl.kernel.tables import World
from slurm_rl.place.capacity import fits_totals
from slurm_rl.policy.catalogue import BY_LIMIT, POLICIES
from slurm_rl.policy.heuristics import call_score

_GROUP, _BEFORE, _BEHIND = range(3)  # columns of the table `alike`
_HEAD, _LAST, _PLACE, _LIST, _LIMIT = range(5)  # … of `alikes`
_FIRST, _COUNT = range(2)  # … of `alike_lists`
_FEW = 16  # jobs that are handed over at first; then twice as many each time
_STANDS = np.int64(-1)  # for `fresh`: the reservation made in this pass stands, and all that is handed over is tested
NOTHING_FITS = np.int64(-1)
LONG = 1000  # jobs that wait under an order that never changes, from which on groups of them are compared, too
_MEMBERS = 8  # … if they are so many in each on average
# Of these orders, what jobs have in common that keep the order in which they came.
_FIXED = {"fcfs": ("request",), "sjf": ("request", "limit"), "ljf": ("request", "limit"), "saf": ("request", "limit")}
# Policies that go by a job's request, user, partition, QOS, nice value and age, the older the better.
_BY_AGE = tuple(POLICIES.code(name) for name in ("multifactor", "static-equal"))


def compares_groups(world: World) -> bool:
    """Whether the policy of a World lets jobs that are alike keep their order, and nothing else interferes."""
    return int(world["code"]) in _BY_AGE and world["weight_age"] >= 0.0 and goes_by_score(world)


def goes_by_score(world: World) -> bool:
    """Whether the scores of a policy alone order the queues of a World, for a rule that books for one job at most."""
    bounded = world["influence"] < 1.0 or world["lane_share"] > 0.0
    starve = world["starve_age"] < math.inf or world["starve_drain"] < math.inf
    site = any(len(world[name]) for name in ("tiers", "quotas", "kept", "hint_of"))
    return not (bounded or starve or site or world["books_many"] or world["preempt"] or world["taping"])


def may_group_later(world: World) -> bool:
    """Whether jobs of a World whose order never changes may be grouped when many wait."""
    known = POLICIES.of_code(int(world["code"])).name in _FIXED and world["source"] == BY_LIMIT
    return bool(world["fixed_order"]) and known and goes_by_score(world)


def group_waiting(world: World, waiting: Array) -> None:
    """Groups the jobs of a World in which these wait, or puts it off where hardly any are alike."""
    jobs, requests = world["jobs"], world["requests"]
    columns = [jobs[name] for name in _FIXED[POLICIES.of_code(int(world["code"])).name]]
    if _MEMBERS * number(*(column[waiting] for column in columns))[1] > len(waiting):
        world["long_queue"] = 4 * world["longest"]
        return
    world["scores"] = np.empty(len(jobs))
    world["order"], world["scratch"] = (np.empty(len(jobs), dtype=np.int64) for _ in range(2))
    _for_passes(world, fill_groups(world, [requests["pool"][jobs["request"]], *columns]))
    _join_all(world.record, waiting)


@kernel
def _join_all(world: Array, waiting: Array) -> None:
    for i in range(len(waiting)):
        call_join_alike(world[0], waiting[i])


def make_groups(world: World) -> None:
    """Gives a World, in which nobody waits yet, the groups of its jobs, and links their kernels."""
    jobs, requests = world["jobs"], world["requests"]
    keys: list[Array] = [requests["pool"][jobs["request"]]]
    keys += [jobs[name] for name in ("request", "user", "partition", "qos", "nice")]
    if len(world["points"]):
        keys.append(np.unique(world["points"], return_inverse=True)[1])
    _for_passes(world, fill_groups(world, keys))


def _for_passes(world: World, group: Array) -> None:
    """Notes the shortest limit of each group, and links the kernel of passes that compare groups."""
    limit = world["alikes"][:, _LIMIT]
    limit[:] = np.iinfo(np.int64).max
    np.minimum.at(limit, group, world["jobs"]["limit"])
    link(world, "start_alike")


def fill_groups(world: World, keys: list[Array]) -> Array:
    """Groups jobs by these columns, of which the first is the pool; the group of each."""
    group, count = number(*keys)
    pool = np.zeros(count, dtype=np.int64)
    pool[group] = keys[0]
    by_pool = np.argsort(pool, kind="stable")  # groups of a pool are neighbours
    rank = np.empty(count, dtype=np.int64)
    rank[by_pool] = np.arange(count)
    alike = np.full((len(group), 3), -1, dtype=np.int32)
    alike[:, _GROUP] = rank[group]
    lists = np.zeros((len(world["pools"]), 2), dtype=np.int64)
    lists[:, _FIRST] = np.searchsorted(pool[by_pool], np.arange(len(lists)))
    world["alike"], world["alikes"], world["alike_lists"] = alike, np.full((count, 5), -1, dtype=np.int64), lists
    link(world, "join_alike")
    link(world, "leave_alike")
    return np.asarray(rank[group])


@kernel
def join_alike(w: Record, j: int) -> None:
    """Puts a job that begins to wait into its group, by its index: mostly at the end."""
    alike, groups = t.alike(w), t.alikes(w)
    g = alike[j, _GROUP]
    before, behind = groups[g, _LAST], np.int64(-1)
    while before > j:
        behind = before
        before = np.int64(alike[before, _BEFORE])
    alike[j, _BEFORE], alike[j, _BEHIND] = before, behind
    if groups[g, _HEAD] < 0:
        pool = t.requests(w).pool[t.jobs(w).request[j]]
        at = t.alike_lists(w)[pool, _FIRST] + t.alike_lists(w)[pool, _COUNT]
        t.alike_lists(w)[pool, _COUNT] += 1
        groups[at, _LIST], groups[g, _PLACE] = g, at
    if before < 0:
        groups[g, _HEAD] = j
    else:
        alike[before, _BEHIND] = j
    if behind < 0:
        groups[g, _LAST] = j
    else:
        alike[behind, _BEFORE] = j


call_join_alike = by_address("join_alike", join_alike, NOTHING, INT)


@kernel
def leave_alike(w: Record, j: int) -> None:
    """Takes a job that waits no longer out of its group."""
    alike, groups = t.alike(w), t.alikes(w)
    g, before, behind = alike[j, _GROUP], alike[j, _BEFORE], alike[j, _BEHIND]
    if before < 0:
        groups[g, _HEAD] = behind
    else:
        alike[before, _BEHIND] = behind
    if behind < 0:
        groups[g, _LAST] = before
    else:
        alike[behind, _BEFORE] = before
    if groups[g, _HEAD] < 0:
        # The last group of the list takes its place.
        pool = t.requests(w).pool[t.jobs(w).request[j]]
        t.alike_lists(w)[pool, _COUNT] -= 1
        end = t.alike_lists(w)[pool, _FIRST] + t.alike_lists(w)[pool, _COUNT]
        other, at = groups[end, _LIST], groups[g, _PLACE]
        groups[at, _LIST], groups[other, _PLACE] = other, at


call_leave_alike = by_address("leave_alike", leave_alike, NOTHING, INT)


@kernel
def start_alike(w: Record, now: int, pool: int, stamp: int) -> int:
    """Starts what the rule lets start of a pool's queue; how many, or NOTHING_FITS."""
    jobs, requests, alike, groups = t.jobs(w), t.requests(w), t.alike(w), t.alikes(w)
    order, heap, scores, pools = t.order(w), t.scratch(w), t.scores(w), t.pools(w)
    listed, last = t.alike_lists(w)[pool, _FIRST], t.alike_lists(w)[pool, _COUNT]
    size = np.int64(0)
    for k in range(listed, listed + last):
        s = np.int64(jobs.request[groups[groups[k, _LIST], _HEAD]])
        if requests.misfit[s] != stamp:
            if fits_totals(w, s, NOW):
                size = np.int64(1)
                break
            requests.misfit[s] = stamp
    if size == 0:
        return int(NOTHING_FITS)
    size = np.int64(0)
    blocked, bar = np.int64(-1), 0.0  # the first job that does not fit, and its score
    for k in range(listed, listed + last):
        j = groups[groups[k, _LIST], _HEAD]
        s = np.int64(jobs.request[j])
        score = _score(w, now, j)
        if requests.misfit[s] != stamp and fits_totals(w, s, NOW):
            push(heap, scores, size, j, score)
            size += 1
            continue
        requests.misfit[s] = stamp
        if blocked < 0 or score > bar or (score == bar and j < blocked):
            blocked, bar = j, score
    count: Any = np.int64(0)
    head, fresh, batch = np.int64(-1), np.int64(0), _FEW
    while True:
        ready = np.int64(0)
        if head >= 0 and fresh == 0:
            order[0] = head
            ready = np.int64(1)
        known = bool(head >= 0)  # … or among those that are handed over
        first = ready
        while size > 0 and ready < batch:
            j, score = heap[0], scores[0]
            s = np.int64(jobs.request[j])
            if requests.misfit[s] == stamp or not fits_totals(w, s, NOW):
                # It and all of its group; only the first that does not fit matters.
                requests.misfit[s] = stamp
                size = drop(heap, scores, size)
                if blocked < 0 or score > bar or (score == bar and j < blocked):
                    blocked, bar = j, score
                continue
            if not known and blocked >= 0 and (score < bar or (score == bar and j > blocked)):
                order[ready] = blocked
                ready += 1
                known = True
            # What the sums alone say of the reservation may change yet.
            late = fresh != 0 and pools.extra_known[pool] == 1 and requests.misfit_both[s] == stamp
            shadow = pools.shadow[pool]
            if late and now + groups[alike[j, _GROUP], _LIMIT] > shadow:
                size = drop(heap, scores, size)  # nobody of its group may start beside the reservation, or before it
                continue
            if not (late and now + jobs.limit[j] > shadow):
                order[ready] = j
                ready += 1
            following = np.int64(alike[j, _BEHIND])
            size = drop(heap, scores, size)
            if following >= 0:
                push(heap, scores, size, following, _score(w, now, following))
                size += 1
        if ready == first:
            return count
        batch = min(2 * batch, 1 << 20)
        began = t.started(w)[count:]
        more = call_backfill_pass(w, now, pool, order, 0, ready, fresh, stamp, began)
        count += more
        if spent(w, pool):
            return count
        if fresh == 0 and w.backfill != FIRSTFIT:
            k = 0
            while k < more and began[k] == order[k]:
                k += 1
            if k < ready:
                if w.backfill == NONE:
                    return count
                head = order[k]
                if pools.shadow[pool] >= 0:
                    fresh = _STANDS


call_start_alike = by_address("start_alike", start_alike, INT, INT, INT, INT)


@inlined
def _score(w: Record, now: int, j: int) -> float:
    score = call_score(w, float(now), j)
    return -math.inf if math.isnan(score) else score


@inlined
def _goes_before(scores: Array, heap: Array, score: float, j: int, k: int) -> bool:
    """Whether a job goes before the one at a place of the heap."""
    return score > scores[k] or (score == scores[k] and j < heap[k])


@inlined
def push(heap: Array, scores: Array, size: int, j: int, score: float) -> None:
    """Adds a job to a heap of so many, the first in order on top."""
    k = size
    while k > 0:
        up = (k - 1) >> 1
        if not _goes_before(scores, heap, score, j, up):
            break
        heap[k], scores[k] = heap[up], scores[up]
        k = up
    heap[k], scores[k] = j, score


@inlined
def drop(heap: Array, scores: Array, size: int) -> int:
    """Takes the top off a heap; how many are left."""
    size -= 1
    j, score = heap[size], scores[size]
    k = 0
    while 2 * k + 1 < size:
        low = 2 * k + 1
        if low + 1 < size and _goes_before(scores, heap, scores[low + 1], heap[low + 1], low):
            low += 1
        if _goes_before(scores, heap, score, j, low):
            break
        heap[k], scores[k] = heap[low], scores[low]
        k = low
    heap[k], scores[k] = j, score
    return size
