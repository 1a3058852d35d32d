"""The network's compiled twin: scores a queue inside the engine, equal to the torch module of train/module.py.

A job's features pass a shared encoder; attention pools the queue into one vector, which with the pool's features
becomes a context; each job's score comes from its encoding, the context, and a linear path from its features. Cost
grows linearly with the queue, and permuting the jobs permutes the scores.
"""

from __future__ import annotations

import math

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Array, Record
from slurm_rl.kernel.jit import kernel
from slurm_rl.policy.features import JOB_COUNT, JOB_FEATURES, POOL_COUNT
from slurm_rl.policy.simd import add_product, dot

HIDDEN, CONTEXT = 32, 16
# The hidden layers see a job as no smaller and no wider than the jobs of its kind, without or with GPUs, in training:
# beyond, they would extrapolate. The linear path sees its size as it is.
_SIZE, _ON_GPU = JOB_FEATURES.index("size"), JOB_FEATURES.index("on_gpu")
SIZE_FEATURES, KINDS = JOB_FEATURES[_SIZE : _SIZE + 3], 2  # size, pool_share and units
# Name and dimensions of each tensor, in the order in which they lie in the table `net`; matrices are [inputs, outputs].
LAYOUT: dict[str, tuple[int, ...]] = {
    "job_shift": (JOB_COUNT,),
    "job_scale": (JOB_COUNT,),
    "pool_shift": (POOL_COUNT,),
    "pool_scale": (POOL_COUNT,),
    "size_low": (KINDS, len(SIZE_FEATURES)),
    "size_high": (KINDS, len(SIZE_FEATURES)),
    "encode": (JOB_COUNT, HIDDEN),
    "encode_bias": (HIDDEN,),
    "attend": (HIDDEN,),
    "gather": (HIDDEN + POOL_COUNT, CONTEXT),
    "gather_bias": (CONTEXT,),
    "mix": (HIDDEN, HIDDEN),
    "inform": (CONTEXT, HIDDEN),
    "mix_bias": (HIDDEN,),
    "out": (HIDDEN,),
    "skip": (JOB_COUNT,),
}
_SIZES = [math.prod(shape) for shape in LAYOUT.values()]
AT = dict(zip(LAYOUT, np.cumsum([0, *_SIZES[:-1]]).tolist(), strict=True))  # where each tensor begins
LENGTH = sum(_SIZES)

_JOB_SHIFT, _JOB_SCALE, _POOL_SHIFT, _POOL_SCALE = (
    AT[k] for k in ("job_shift", "job_scale", "pool_shift", "pool_scale")
)
_SIZE_LOW, _SIZE_HIGH = AT["size_low"], AT["size_high"]
_ENCODE, _ENCODE_BIAS, _ATTEND = AT["encode"], AT["encode_bias"], AT["attend"]
_GATHER, _GATHER_BIAS = AT["gather"], AT["gather_bias"]
_MIX, _INFORM, _MIX_BIAS, _OUT, _SKIP = AT["mix"], AT["inform"], AT["mix_bias"], AT["out"], AT["skip"]
_SIZE_COUNT = len(SIZE_FEATURES)


def unbounded() -> dict[str, Array]:
    """Sizes as they are: the tensors of a network that was made before there were bounds."""
    most = np.full(LAYOUT["size_high"], np.finfo(np.float32).max, dtype=np.float32)
    return {"size_low": -most, "size_high": most}


_encode = add_product(JOB_COUNT, HIDDEN)
_mix = add_product(HIDDEN, HIDDEN)
_skip = dot(JOB_COUNT)
_weigh = dot(HIDDEN)


@kernel
def score_network(w: Record, count: int) -> None:
    """Scores the first `count` rows of the features into the table `scores`."""
    net, rows, hidden, scores = t.net(w), t.features(w), t.hidden(w), t.scores(w)
    zero = np.float32(0.0)
    x = np.empty(JOB_COUNT, dtype=np.float32)
    pooled = np.zeros(HIDDEN, dtype=np.float32)
    top, weights = np.float32(-np.inf), zero
    for i in range(count):
        for f in range(JOB_COUNT):
            x[f] = (rows[i, f] - net[_JOB_SHIFT + f]) * net[_JOB_SCALE + f]
        scores[i] = _skip(x, 0, net, _SKIP)
        bound = _SIZE_COUNT if rows[i, _ON_GPU] > 0.5 else 0
        for k in range(_SIZE_COUNT):
            f = _SIZE + k
            seen = min(max(rows[i, f], net[_SIZE_LOW + bound + k]), net[_SIZE_HIGH + bound + k])
            x[f] = (seen - net[_JOB_SHIFT + f]) * net[_JOB_SCALE + f]
        for o in range(HIDDEN):
            hidden[i, o] = net[_ENCODE_BIAS + o]
        _encode(x, 0, net, _ENCODE, hidden, i * HIDDEN)
        for o in range(HIDDEN):
            hidden[i, o] = max(hidden[i, o], zero)
        interest = _weigh(hidden, i * HIDDEN, net, _ATTEND)
        # A softmax in one sweep: what was gathered so far shrinks whenever a greater interest turns up.
        if interest > top:
            shrink = np.float32(math.exp(top - interest))
            weights *= shrink
            for o in range(HIDDEN):
                pooled[o] *= shrink
            top = interest
        share = np.float32(math.exp(interest - top))
        weights += share
        for o in range(HIDDEN):
            pooled[o] += share * hidden[i, o]
    base = np.empty(HIDDEN, dtype=np.float32)
    _context(w, pooled, weights, base)
    z = np.empty(HIDDEN, dtype=np.float32)
    for i in range(count):
        for o in range(HIDDEN):
            z[o] = base[o]
        _mix(hidden, i * HIDDEN, net, _MIX, z, 0)
        for o in range(HIDDEN):
            z[o] = max(z[o], zero)
        scores[i] += _weigh(z, 0, net, _OUT)


@kernel
def count_size(w: Record, count: int) -> None:
    """Adds `booking_size` to the linear path's weight of the size; what is the same for all jobs is left out."""
    weight = w.booking_size * t.net(w)[_JOB_SCALE + _SIZE]
    for i in range(count):
        t.scores(w)[i] += weight * t.features(w)[i, _SIZE]


@kernel
def _context(w: Record, pooled: np.ndarray, weights: float, base: np.ndarray) -> None:
    """What the queue and the pool add to every job's second layer."""
    net, pool = t.net(w), t.context(w)
    g = np.empty(CONTEXT, dtype=np.float32)
    for o in range(CONTEXT):
        g[o] = net[_GATHER_BIAS + o]
    for f in range(HIDDEN + POOL_COUNT):
        if f < HIDDEN:
            value = pooled[f] / weights
        else:
            p = f - HIDDEN
            value = (pool[p] - net[_POOL_SHIFT + p]) * net[_POOL_SCALE + p]
        for o in range(CONTEXT):
            g[o] += value * net[_GATHER + f * CONTEXT + o]
    for o in range(HIDDEN):
        base[o] = net[_MIX_BIAS + o]
    for f in range(CONTEXT):
        value = max(g[f], np.float32(0.0))
        for o in range(HIDDEN):
            base[o] += value * net[_INFORM + f * HIDDEN + o]
