"""A pass that sorts a scored queue only as far as it looks.

For rules that hold nodes for one job at most (`none`, `firstfit`, `easy`). Nothing is released in a pass: of the
jobs that do not fit only the first in order matters: it is the head. The others are never sorted. Jobs that fit are
handed to the rule a few at a time, the best first: often these take all that is free. Only pools of one node are
scheduled so: where many jobs that fit the sums fit on no nodes, looking again and again costs more than sorting once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slurm_rl.backfill.catalogue import FIRSTFIT, NONE
from slurm_rl.backfill.dispatch import call_backfill_pass
from slurm_rl.backfill.starting import spent
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import NOW, Record
from slurm_rl.kernel.jit import inlined, kernel
from slurm_rl.kernel.links import BOOL, INT, LIST, by_address
from slurm_rl.kernel.tables import World
from slurm_rl.place.capacity import fits_totals
from slurm_rl.policy.sorting import sort_by_score

_FEW = 16  # jobs that are handed over at a time …
_TURNS = 8  # … so often: then come all that are left
_BEHIND = np.int64(-1)  # for `fresh`: the reservation made in this pass stands, and all that is handed over is tested


def sorts_as_it_looks(world: World) -> bool:
    """Whether passes of a World may be made so: then `start_best` is to be linked."""
    pools = world["pools"]
    alone = bool((pools["last_node"] - pools["first_node"] == 1).any())
    return alone and not (world["books_many"] or world["fixed_order"] or world["preempt"])


@kernel
def start_best(w: Record, now: int, pool: int, queue: np.ndarray, stamp: int, kept: bool) -> int:
    """Starts what the rule lets start of a queue; how many. Scores are in `t.scores(w)`, or kept since estimates."""
    scores, order = t.scores(w), t.order(w)
    places = np.empty(len(queue), dtype=np.int64)  # of jobs that may fit; -1: handed over. Scores move up with them.
    left, turn = len(queue), 0
    count: Any = np.int64(0)
    blocked, bar = np.int64(-1), 0.0  # the place of the first job that does not fit, and its score
    head, fresh = np.int64(-1), np.int64(0)
    while True:
        left, blocked, bar = _drop_misfits(w, queue, stamp, places, left, blocked, bar, turn == 0, kept)
        if left == 0:
            return count
        size = _choose(w, left, turn == _TURNS)
        turn += 1
        # From the last on, so that the head, which goes before them, can push them back.
        shift: Any = np.int64(0)
        if head < 0 and blocked >= 0:
            last = order[size - 1]
            shift = np.int64(scores[last] < bar or (scores[last] == bar and places[last] > blocked))
        elif head >= 0 and fresh == 0:
            shift = np.int64(1)
        ahead = shift
        for k in range(size - 1, -1, -1):
            at = order[k]
            if ahead == 1 and head < 0 and not (scores[at] < bar or (scores[at] == bar and places[at] > blocked)):
                order[k + 1] = queue[blocked]
                ahead = 0
            order[k + ahead] = queue[places[at]]
            places[at] = -1
        if ahead == 1:
            order[0] = head if head >= 0 else queue[blocked]
        size += shift
        began = t.started(w)[count:]
        more = call_backfill_pass(w, now, pool, order, 0, size, fresh, stamp, began)
        count += more
        if spent(w, pool):
            return count
        if fresh == 0 and w.backfill != FIRSTFIT:
            k = 0
            while k < more and began[k] == order[k]:
                k += 1
            if k < size:
                if w.backfill == NONE:
                    return count
                head = order[k]
                if t.pools(w).shadow[pool] >= 0:
                    fresh = _BEHIND


call_start_best = by_address("start_best", start_best, INT, INT, INT, LIST, INT, BOOL)


@inlined
def _drop_misfits(
    w: Record,
    queue: np.ndarray,
    stamp: int,
    places: np.ndarray,
    left: int,
    blocked: int,
    bar: float,
    whole: bool,
    kept: bool,
) -> tuple[int, int, float]:
    """Keeps the places and scores of jobs that may fit, and the first in order of those that do not."""
    jobs, requests, scores = t.jobs(w), t.requests(w), t.scores(w)
    live = t.live(w)
    fit = 0
    for k in range(left):
        i = k if whole else places[k]
        if i < 0:
            continue
        j = queue[i]
        score = live.score[j] if whole and kept else scores[k]
        if math.isnan(score):
            score = -math.inf
        s = np.int64(jobs.request[j])
        if requests.misfit[s] != stamp and fits_totals(w, s, NOW):
            places[fit], scores[fit] = i, score
            fit += 1
            continue
        requests.misfit[s] = stamp
        if blocked < 0 or score > bar or (score == bar and i < blocked):
            blocked, bar = i, score
    return fit, blocked, bar


@inlined
def _choose(w: Record, left: int, whole: bool) -> int:
    """The best of the first `left` scores, in order, into `t.order(w)`; how many."""
    scores, order = t.scores(w), t.order(w)
    if whole or left <= 2 * _FEW:
        sort_by_score(scores, left, order, t.scratch(w))
        return left
    size = 0
    for k in range(left):
        score = scores[k]
        if size == _FEW:
            if score <= scores[order[size - 1]]:
                continue
            size -= 1
        at = size
        while at > 0 and scores[order[at - 1]] < score:
            order[at] = order[at - 1]
            at -= 1
        order[at] = k
        size += 1
    return size
