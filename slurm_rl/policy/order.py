"""The order of a pending queue: scores, the bound on their influence, the starvation cap, and a stable sort.

`decide` and the compiled replay loop both call these functions, so that what is simulated is what is done.
"""

from __future__ import annotations

import math

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import NEVER, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.kernel.links import FLOAT, INT, LIST, NOTHING, by_address, slot
from slurm_rl.policy.estimate import refresh
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT, observe
from slurm_rl.policy.heuristics import call_score, multifactor_priority
from slurm_rl.policy.lane import call_enter_lane
from slurm_rl.policy.network import count_size, score_network
from slurm_rl.policy.sorting import sort_by_score


@inlined
def starving(w: Record, wait: float, estimate: float) -> bool:
    """Whether a job has waited so long that it goes first."""
    return (wait > w.starve_age and wait > w.starve_factor * estimate) or wait > w.starve_drain * w.drain


@inlined
def may_starve(w: Record) -> bool:
    """Whether there is a bound on waiting at all."""
    return w.starve_age < math.inf or w.starve_drain < math.inf


@inlined
def site_factor(rank: int, count: int, bound: float) -> float:
    """The whole number that the job at `rank` (0 = first) of `count` gets on top of Slurm's priority."""
    if count < 2:
        return 0.0
    return float(round(bound * (1.0 - 2.0 * rank / (count - 1.0))))


@inlined
def influence_on(w: Record, j: int) -> float:
    """The policy's influence on the pool of a job: less where a promise is in danger."""
    return w.influence * (1.0 - t.pools(w).distrust[t.requests(w).pool[np.int64(t.jobs(w).request[j])]])


@inlined
def weight_sum(w: Record) -> float:
    """All that Slurm's own factors can add up to."""
    factors = w.weight_age + w.weight_fairshare + w.weight_job_size
    return factors + w.weight_partition + w.weight_qos + w.weight_tres


# A policy's scores of the first `count` jobs of a queue, into the table `scores`: kernels for the slot `score_queue`.
call_score_queue = slot("score_queue", NOTHING, FLOAT, LIST, INT)
# A meta-policy's choice of the kernels in `score_queue` and `score`, before they are called (policy/choice.py).
call_choose_policy = slot("choose_policy", NOTHING, FLOAT, LIST, INT)


@kernel
def score_each(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """Job by job, by the heuristic in the slot `score`."""
    for i in range(count):
        t.scores(w)[i] = call_score(w, now, queue[i])


@kernel
def score_each_at_limit(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """Job by job, the time limit taken at its word, by a heuristic that is chosen among others that use estimates."""
    live = t.live(w)
    for i in range(count):
        j = queue[i]
        expected, inverse = live.expected[j], live.inverse[j]
        live.expected[j] = float(t.jobs(w).limit[j])
        live.inverse[j] = 1.0 / float(t.jobs(w).limit[j])
        t.scores(w)[i] = call_score(w, now, j)
        live.expected[j], live.inverse[j] = expected, inverse


@kernel
def score_as_given(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """Scores that were written into `live` from outside."""
    for i in range(count):
        t.scores(w)[i] = t.live(w).score[queue[i]]


@kernel
def score_by_network(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """What a network says of the queue."""
    observe(w, now, queue, count)
    score_network(w, count)
    if w.booking_size != 0.0 and t.pools(w).cpu_only[t.requests(w).pool[np.int64(t.jobs(w).request[queue[0]])]]:
        count_size(w, count)
    if w.temperature > 0.0:
        _perturb(w, count)


@kernel
def _perturb(w: Record, count: int) -> None:
    """Adds Gumbel noise, so that sorting draws an order with the probabilities of Plackett and Luce."""
    scores = t.scores(w)
    state = w.dice
    for i in range(count):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        uniform = (float(state >> np.uint64(11)) + 0.5) / 9007199254740992.0
        scores[i] -= w.temperature * math.log(-math.log(uniform))
    w.dice = state


@kernel
def record_turn(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """Notes what the network saw and the positions that its order begins with, if there is room for it."""
    tape, turns, order = t.tape(w), t.turns(w), t.order(w)
    if count < 2 or w.taped + count > len(tape) or w.turned >= len(turns):
        return
    turn, first = w.turned, w.taped
    turns.time[turn] = int(now)
    turns.pool[turn] = t.requests(w).pool[np.int64(t.jobs(w).request[queue[0]])]
    turns.first[turn] = first
    turns.count[turn] = count
    for k in range(turns.lead.shape[1]):
        turns.lead[turn, k] = order[k] if k < count else -1
        turns.job[turn, k] = queue[order[k]] if k < count else -1
    for i in range(count):
        for f in range(JOB_COUNT):
            tape[first + i, f] = t.features(w)[i, f]
        for f in range(POOL_COUNT):
            tape[first + i, JOB_COUNT + f] = t.context(w)[f]
        tape[first + i, JOB_COUNT + POOL_COUNT] = queue[i]
    w.taped += count
    w.turned += 1


call_record_turn = by_address("record_turn", record_turn, NOTHING, FLOAT, LIST, INT)


@kernel
def order_queue(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """Writes the first `count` jobs of `queue` (ascending indices) into the table `order`, the first to run first.

    Where the World says `scores_only`, estimates are new already, and the table `scores` is all that is wanted.
    """
    if not w.scores_only:
        refresh(w, queue, count)
    scores, order, scratch = t.scores(w), t.order(w), t.scratch(w)
    if w.choose_policy_at != 0:
        call_choose_policy(w, now, queue, count)
    call_score_queue(w, now, queue, count)
    influence = influence_on(w, queue[0])
    if influence < 1.0:
        # A bounded site factor by rank on top of Slurm's own priority, as the controller writes it.
        sort_by_score(scores, count, order, scratch)
        bound = influence * weight_sum(w)
        ranks = np.empty(count, dtype=np.int64)
        for rank in range(count):
            ranks[order[rank]] = rank
        for i in range(count):
            t.live(w).score[queue[i]] = scores[i]  # the policy's own, for those who explain
            scores[i] = multifactor_priority(w, now, queue[i]) + site_factor(ranks[i], count, bound)
    capped = may_starve(w)
    for i in range(count if capped or not w.scores_only else 0):
        j = queue[i]
        if capped and starving(w, now - t.jobs(w).submit[j], t.live(w).expected[j]):
            scores[i] = math.inf  # equal scores fall back on submit order: the longest waiting first
        elif math.isnan(scores[i]):
            scores[i] = -math.inf
    if w.lane_share > 0.0:
        call_enter_lane(w, now, queue, count)
    if w.scores_only:
        return
    sort_by_score(scores, count, order, scratch)
    if w.taping:
        call_record_turn(w, now, queue, count)
    for i in range(count):
        order[i] = queue[order[i]]
    if len(t.tiers(w)) > 0:
        _by_tier(w, count)


@inner
def _by_tier(w: Record, count: int) -> None:
    """Puts jobs of higher tiers first, each tier in the order that it has; there are few tiers."""
    order, scratch, tiers = t.order(w), t.scratch(w), t.tiers(w)
    at, last = 0, NEVER
    while at < count:
        best = -NEVER
        for i in range(count):
            if best < tiers[order[i]] < last:
                best = tiers[order[i]]
        for i in range(count):
            if tiers[order[i]] == best:
                scratch[at] = order[i]
                at += 1
        last = best
    for i in range(count):
        order[i] = scratch[i]


call_order_queue = by_address("order_queue", order_queue, NOTHING, FLOAT, LIST, INT)
