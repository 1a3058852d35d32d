"""The seam for meta-policies: a kernel that, before a queue is scored, chooses the policy that scores it.

A meta-policy is a row of catalogue.py with `choose`, a kernel for the slot `choose_policy`, and `candidates`. The
kernel looks at the World and calls `choose` with the number of a candidate, which stays until another is chosen. Worlds
of other policies have nothing in the slot, and pay one comparison for it.

Meta-policies of ours choose for each pool apart, when a pass has a choice and `decide_every` seconds have gone by; in
between, the last choice stands. `settle` keeps them from flapping.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Array, Record
from slurm_rl.kernel.jit import inlined

_HOUR = 3600.0


@inlined
def choose(w: Record, candidate: int) -> None:
    """Lets a candidate, by its place in the row, score from now on."""
    w.score_queue_at = t.candidates(w)[candidate, 0]
    w.score_at = t.candidates(w)[candidate, 1]


@inlined
def pool_of(w: Record, queue: Array) -> int:
    """The pool whose queue this is."""
    return t.requests(w).pool[np.int64(t.jobs(w).request[queue[0]])]


@inlined
def let_rule(w: Record, pool: int) -> None:
    """Lets the member that rules a pool score its queue, with its own starvation cap."""
    member = t.choosers(w).current[pool]
    choose(w, member)
    w.starve_drain = t.caps(w)[member]


@inlined
def due(w: Record, now: float, pool: int, count: int) -> bool:
    """Whether it is time for a choice: two jobs wait, and the last choice is some time ago."""
    return count >= 2 and now - t.choosers(w).decided[pool] >= w.decide_every


@inlined
def settle(w: Record, now: float, pool: int, wanted: int, gain: float) -> bool:
    """Makes a member rule, unless it is worth too little more than the present one, or the hour has had its switches.

    Whether the member that is wanted rules now.
    """
    c = t.choosers(w)
    c.decided[pool] = now
    c.decisions[pool] += 1
    if wanted == c.current[pool]:
        return True
    if c.decisions[pool] > 1:  # the first choice replaces nobody's
        at = c.switches[pool] % w.switch_limit
        if gain < w.switch_margin or (c.switches[pool] >= w.switch_limit and now - c.recent[pool, at] < _HOUR):
            c.held_back[pool] += 1
            return False
        c.recent[pool, at] = now
        c.switches[pool] += 1
    c.current[pool] = wanted
    c.since[pool] = now
    return True


@inlined
def throw(w: Record, pool: int) -> float:
    """A random number in [0, 1), from the pool's own dice."""
    state = t.choosers(w).dice[pool]
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    t.choosers(w).dice[pool] = state
    return float(state >> np.uint64(11)) / 9007199254740992.0
