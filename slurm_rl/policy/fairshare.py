"""Usage that decays with a half-life, and Fair Tree factors from it, as Slurm's multifactor computes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slurm_rl.kernel.jit import inlined, inner
from slurm_rl.policy.sorting import sort_by_score


@inlined
def _advance(usage: float, rate: float, elapsed: float, decay: float) -> float:
    """Solves dU/dt = rate - decay · U over an elapsed time: exact, whenever it is asked."""
    if elapsed <= 0.0:
        return usage
    kept = math.exp(-decay * elapsed)
    return usage * kept + rate * (1.0 - kept) / decay


@inner
def hold(users: Any, accounts: Any, u: int, a: int, change: float, now: float, half_life: float) -> None:
    """Notes that a user holds `change` more (or, negative, fewer) TRES from now on."""
    decay = math.log(2.0) / half_life
    users.usage[u] = _advance(users.usage[u], users.rate[u], now - users.time[u], decay)
    users.time[u] = now
    users.rate[u] += change
    accounts.usage[a] = _advance(accounts.usage[a], accounts.rate[a], now - accounts.time[a], decay)
    accounts.time[a] = now
    accounts.rate[a] += change


@inner
def fair_tree(users: Any, accounts: Any, now: float, half_life: float) -> None:
    """Fair Tree with equal shares: accounts by usage, then users within; a factor is the share of users ranked below.

    Users tied at both levels share the better rank, so that on an unused cluster everyone's factor is 1.
    """
    decay = math.log(2.0) / half_life
    count = len(users)
    own = np.empty(count)
    above = np.empty(count)
    of_account = np.empty(len(accounts))
    for a in range(len(accounts)):
        of_account[a] = _advance(accounts.usage[a], accounts.rate[a], now - accounts.time[a], decay)
    for u in range(count):
        own[u] = _advance(users.usage[u], users.rate[u], now - users.time[u], decay)
        above[u] = of_account[users.account[u]]
    # From the most used to the least: stable sorts on the second key, then on the first.
    by_user = np.empty(count, dtype=np.int64)
    order = np.empty(count, dtype=np.int64)
    scratch = np.empty(count, dtype=np.int64)
    sort_by_score(own, count, by_user, scratch)
    first_key = np.empty(count)
    for i in range(count):
        first_key[i] = above[by_user[i]]
    sort_by_score(first_key, count, order, scratch)
    for i in range(count):
        order[i] = by_user[order[i]]
    i = 0
    while i < count:
        k = i
        while k + 1 < count and own[order[k + 1]] == own[order[i]] and above[order[k + 1]] == above[order[i]]:
            k += 1
        for tied in range(i, k + 1):
            users.fairshare[order[tied]] = (k + 1.0) / count
        i = k + 1
