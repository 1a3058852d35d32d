"""Bandits that choose a policy and learn while they run: epsilon-greedy, EXP3 and LinUCB, for each pool apart.

The reward of a choice is the share of urgency that it served: of the jobs that waited or came until the next choice,
each weighing 1 / estimate, the part that does not wait any more; between 0 and 1. What is learned equals river's
`EpsilonGreedy`, `Exp3` and `LinUCBDisjoint` on the same pulls and rewards.
"""

from __future__ import annotations

import math

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Array, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.policy.choice import due, let_rule, pool_of, settle, throw
from slurm_rl.policy.regime import REGIME_FEATURES, look

# What LinUCB sees, each divided by what is common: a bandit that learns while it runs can afford few figures.
CONTEXT = {"free": 1.0, "queue": 5.0, "drain": 5.0, "size": 2.0, "oldest_drain": 1.0, "near": 1.0, "change": 1.0}
CONTEXT_COUNT = len(CONTEXT) + 1  # and a constant
_SEEN = np.array([REGIME_FEATURES.index(name) for name in CONTEXT])
_SCALE = np.array(list(CONTEXT.values()))
# Figures of an arm: how often it was rewarded, the mean of its rewards, log of EXP3's weight, and LinUCB's: sum of
# reward × context, then the inverse of the identity + the sum of the contexts' products.
COUNT, MEAN, LOG_WEIGHT, SUM = range(4)
INVERSE = SUM + CONTEXT_COUNT
ARM = INVERSE + CONTEXT_COUNT * CONTEXT_COUNT


def new_arms(pools: int, members: int) -> Array:
    """Arms that have learned nothing."""
    arms = np.zeros((pools, members, ARM))
    arms[:, :, INVERSE:] = np.eye(CONTEXT_COUNT).ravel()
    return arms


@kernel
def learn_mean(arms: Array, k: int, reward: float) -> None:
    """Counts a reward of arm `k`."""
    arms[k, COUNT] += 1.0
    arms[k, MEAN] += (reward - arms[k, MEAN]) / arms[k, COUNT]


@kernel
def best_mean(arms: Array) -> int:
    """The arm with the best mean; of those that were never tried, the first."""
    best = 0
    for k in range(len(arms)):
        if arms[k, COUNT] == 0.0:
            return k
        if arms[k, MEAN] > arms[best, MEAN]:
            best = k
    return best


@kernel
def exp3_chances(arms: Array, gamma: float, chances: Array) -> None:
    """The probability of each arm."""
    top, total = -np.inf, 0.0
    for k in range(len(arms)):
        top = max(top, arms[k, LOG_WEIGHT])
    for k in range(len(arms)):
        chances[k] = math.exp(arms[k, LOG_WEIGHT] - top)
        total += chances[k]
    for k in range(len(arms)):
        chances[k] = (1.0 - gamma) * chances[k] / total + gamma / len(arms)


@kernel
def learn_exp3(arms: Array, k: int, reward: float, chance: float, gamma: float) -> None:
    """Raises the weight of arm `k`, which was drawn with that chance."""
    arms[k, LOG_WEIGHT] += gamma * reward / chance / len(arms)


@kernel
def linucb_bounds(arms: Array, context: Array, bounds: Array) -> None:
    """What each arm may be worth at most: its mean, and one deviation."""
    n = len(context)
    for k in range(len(arms)):
        mean, variance = 0.0, 1.0
        for a in range(n):
            row = 0.0
            for b in range(n):
                inverse = arms[k, INVERSE + a * n + b]
                row += inverse * context[b]
                mean += context[a] * inverse * arms[k, SUM + b]
            variance += context[a] * row
        bounds[k] = mean + math.sqrt(variance)


@kernel
def learn_linucb(arms: Array, k: int, context: Array, reward: float) -> None:
    """Learns a reward of arm `k` in a context (Sherman and Morrison keep the inverse)."""
    n = len(context)
    product = np.zeros(n)
    for a in range(n):
        for b in range(n):
            product[a] += arms[k, INVERSE + a * n + b] * context[b]
    total = 1.0
    for a in range(n):
        total += context[a] * product[a]
    for a in range(n):
        arms[k, SUM + a] += reward * context[a]
        for b in range(n):
            arms[k, INVERSE + a * n + b] -= product[a] * product[b] / total


@inlined
def _context(w: Record, pool: int) -> Array:
    context = np.ones(CONTEXT_COUNT)
    for a in range(CONTEXT_COUNT - 1):
        context[a] = t.regime(w)[pool, _SEEN[a]] / _SCALE[a]
    return context


@inner
def _served(w: Record, now: float, pool: int, queue: Array, count: int) -> float:
    """The reward of the last choice, between 0 and 1; -1 if there was none. Looks at the pool anew."""
    c = t.choosers(w)
    first = c.decisions[pool] == 0
    left = look(w, now, pool, queue, count)
    before = c.urgency[pool] + c.entered[pool]
    c.urgency[pool], c.entered[pool] = left, 0.0
    if first:
        return -1.0
    return min(max(1.0 - left / before, 0.0), 1.0) if before > 0.0 else 1.0


@inlined
def _draw(chances: Array, at: float) -> int:
    k = 0
    while k < len(chances) - 1 and at >= chances[k]:
        at -= chances[k]
        k += 1
    return k


@kernel
def choose_by_egreedy(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """The arm with the best mean reward; now and then any."""
    pool = pool_of(w, queue)
    if due(w, now, pool, count):
        arms, worth = t.arms(w)[pool], t.worth(w)[pool]
        reward = _served(w, now, pool, queue, count)
        if reward >= 0.0:
            learn_mean(arms, t.choosers(w).current[pool], reward)
        for k in range(len(worth)):
            worth[k] = arms[k, MEAN]
        wanted = best_mean(arms)
        if throw(w, pool) < w.explore:
            wanted = int(throw(w, pool) * len(worth))
        settle(w, now, pool, wanted, np.inf)
    let_rule(w, pool)


@kernel
def choose_by_exp3(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """An arm by chance, likelier by what its rewards have been."""
    pool = pool_of(w, queue)
    if due(w, now, pool, count):
        arms, chances, c = t.arms(w)[pool], t.worth(w)[pool], t.choosers(w)
        reward = _served(w, now, pool, queue, count)
        if reward >= 0.0:
            learn_mean(arms, c.current[pool], reward)
            if c.chance[pool] > 0.0:  # an arm that the bound on switches kept was not drawn
                learn_exp3(arms, c.current[pool], reward, c.chance[pool], w.explore)
        exp3_chances(arms, w.explore, chances)
        drawn = _draw(chances, throw(w, pool))
        c.chance[pool] = chances[drawn] if settle(w, now, pool, drawn, np.inf) else 0.0
    let_rule(w, pool)


@kernel
def choose_by_linucb(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """The arm whose reward, as far as the pool's figures tell it, could be the best."""
    pool = pool_of(w, queue)
    if due(w, now, pool, count):
        arms, bounds, current = t.arms(w)[pool], t.worth(w)[pool], t.choosers(w).current[pool]
        before = _context(w, pool)
        reward = _served(w, now, pool, queue, count)
        if reward >= 0.0:
            learn_mean(arms, current, reward)
            learn_linucb(arms, current, before, reward)
        linucb_bounds(arms, _context(w, pool), bounds)
        best = 0
        for k in range(1, len(bounds)):
            if bounds[k] > bounds[best]:
                best = k
        settle(w, now, pool, best, np.inf)
    let_rule(w, pool)
