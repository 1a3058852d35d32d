"""The network that chooses a policy, compiled: the value of each member now, equal to the torch module in training.

Two layers of 128 over the figures of regime.py. Its cost does not grow with the queue.
"""

from __future__ import annotations

import math

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Array, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.policy.choice import due, let_rule, pool_of, settle, throw
from slurm_rl.policy.regime import REGIME_COUNT, look

WIDTH = 128
MOST_MEMBERS = 16  # columns of the last layer; those beyond the set are not read
# Name and dimensions of each tensor, in the order in which they lie in `chooser_net`; matrices are [inputs, outputs].
META_LAYOUT: dict[str, tuple[int, ...]] = {
    "shift": (REGIME_COUNT,),
    "scale": (REGIME_COUNT,),
    "first": (REGIME_COUNT, WIDTH),
    "first_bias": (WIDTH,),
    "second": (WIDTH, WIDTH),
    "second_bias": (WIDTH,),
    "last": (WIDTH, MOST_MEMBERS),
    "last_bias": (MOST_MEMBERS,),
}
_SIZES = [math.prod(shape) for shape in META_LAYOUT.values()]
_AT = dict(zip(META_LAYOUT, np.cumsum([0, *_SIZES[:-1]]).tolist(), strict=True))
META_LENGTH = sum(_SIZES)
_SHIFT, _SCALE, _FIRST, _FIRST_BIAS = _AT["shift"], _AT["scale"], _AT["first"], _AT["first_bias"]
_SECOND, _SECOND_BIAS, _LAST, _LAST_BIAS = _AT["second"], _AT["second_bias"], _AT["last"], _AT["last_bias"]


@inlined
def _layer(x: Array, inputs: int, net: Array, weight: int, bias: int, out: Array, outputs: int) -> None:
    for o in range(outputs):
        out[o] = net[bias + o]
    for f in range(inputs):
        value = x[f]
        if value != np.float32(0.0):  # half of what a layer hands on
            row = net[weight + f * outputs : weight + (f + 1) * outputs]
            for o in range(outputs):
                out[o] += value * row[o]


@inner
def value_members(w: Record, pool: int) -> None:
    """Writes what each member is worth by the pool's row of `regime` into its row of `worth`."""
    net, seen, worth, zero = t.chooser_net(w), t.regime(w)[pool], t.worth(w)[pool], np.float32(0.0)
    x = np.empty(REGIME_COUNT, dtype=np.float32)
    for f in range(REGIME_COUNT):
        x[f] = (seen[f] - net[_SHIFT + f]) * net[_SCALE + f]
    h, g = np.empty(WIDTH, dtype=np.float32), np.empty(WIDTH, dtype=np.float32)
    _layer(x, REGIME_COUNT, net, _FIRST, _FIRST_BIAS, h, WIDTH)
    for o in range(WIDTH):
        h[o] = max(h[o], zero)
    _layer(h, WIDTH, net, _SECOND, _SECOND_BIAS, g, WIDTH)
    for o in range(WIDTH):
        g[o] = max(g[o], zero)
    out = np.empty(MOST_MEMBERS, dtype=np.float32)
    _layer(g, WIDTH, net, _LAST, _LAST_BIAS, out, MOST_MEMBERS)
    for k in range(len(worth)):
        worth[k] = out[k]


@inlined
def _record(w: Record, now: float, pool: int) -> None:
    """Notes a choice, if there is room for it: when, where, who rules, and what was seen."""
    rows = t.choices(w)
    if w.choices_made < len(rows):
        row = rows[w.choices_made]
        row[0], row[1], row[2] = now, pool, t.choosers(w).current[pool]
        for f in range(REGIME_COUNT):
            row[3 + f] = t.regime(w)[pool, f]
        w.choices_made += 1


@kernel
def choose_by_network(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """A meta-policy: the member that the network values most."""
    pool = pool_of(w, queue)
    if due(w, now, pool, count):
        look(w, now, pool, queue, count)
        value_members(w, pool)
        worth, current = t.worth(w)[pool], t.choosers(w).current[pool]
        best = 0
        for k in range(1, len(worth)):
            if worth[k] > worth[best]:
                best = k
        gain = worth[best] - worth[current]
        if w.forced > 0:
            best, gain = w.forced - 1, np.inf
        elif w.explore > 0.0 and throw(w, pool) < w.explore:
            best, gain = int(throw(w, pool) * len(worth)), np.inf
        settle(w, now, pool, best, gain)
        if len(t.choices(w)) > 0:
            _record(w, now, pool)
    let_rule(w, pool)
