"""Synthesises missing time limits, by the overestimates of real users."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from slurm_rl.traces.trace import Floats, Ints, Note, Trace

NOTE = "time limit synthesised"

# Facts: quantiles (0, 5, 10 … 100%) of run time / time limit over the 12,167 GPU jobs of the Cedar cluster in 2021,
# measured on the data of mila-iqia/slurm-queue-time-pred (MIT licence). Half of the jobs use under 15% of their limit;
# the first figure is lifted from 0.00001 so that no limit is a hundred thousand times the run time.
RATIO_QUANTILES = np.array(
    "0.0005 0.00183 0.01289 0.01693 0.017 0.01708 0.01724 0.01782 0.02998 0.07486 0.15038 0.22442 0.2887 0.39778 "
    "0.52994 0.71772 0.82087 0.97933 0.99081 1 1".split(),
    dtype=np.float64,
)
# The share of jobs for which a user falls back on a habit. In that data user and limit explain 0.57 of the spread of
# log(ratio), here 0.6; a larger share lets a single busy user move the median of a whole trace.
_HABIT = 0.4
_JITTER = 0.1  # a habit is a position among the quantiles, met this exactly

_MINUTE, _HOUR, _WEEK = 60, 3600, 7 * 24 * 3600
TYPED = np.array(
    [m * _MINUTE for m in (1, 5, 10, 15, 30)]
    + [h * _HOUR for h in (1, 2, 3, 4, 6, 8, 12, 24, 36, 48, 72, 96, 120, 168)],
    dtype=np.int64,
)


def with_time_limits(trace: Trace, seed: int = 0) -> Trace:
    """The same trace with a limit for every job; a job's limit depends on the seed, its id, user, size and run time.

    So it stays the same when rows are permuted or left out.
    """
    missing = (trace.time_limit <= 0) & (trace.run_time >= 0)
    count = int(missing.sum())
    if not count:
        return trace
    rows = np.flatnonzero(missing)
    ratio = np.interp(_position(trace, rows, seed), np.linspace(0, 1, len(RATIO_QUANTILES)), RATIO_QUANTILES)
    limits = trace.time_limit.copy()
    limits[rows] = typed_limits(trace.run_time[rows], trace.run_time[rows] / ratio)
    return replace(trace, time_limit=limits, notes=(*trace.notes, Note(NOTE, count)))


def typed_limits(run: Ints, wished: Floats) -> Ints:
    """The limit people would type that is nearest to the wished one (as a ratio) and not below the run time."""
    wished = np.maximum(wished, 1.0)
    weeks = np.maximum(np.round(wished / _WEEK), 1).astype(np.int64) * _WEEK
    middles = np.sqrt(TYPED[:-1] * TYPED[1:].astype(np.float64))
    near = np.where(wished > TYPED[-1], weeks, TYPED[np.searchsorted(middles, wished)])
    above = TYPED[np.minimum(np.searchsorted(TYPED, run), len(TYPED) - 1)]
    least = np.where(run > TYPED[-1], -(-run // _WEEK) * _WEEK, above)
    return np.maximum(near, least)


def _position(trace: Trace, rows: npt.NDArray[np.intp], seed: int) -> Floats:
    """For each job where it stands among the quantiles, in [0, 1): its user's habit for such sizes, or its own luck."""
    ids = trace.job_id[rows]
    job = ids.astype(np.uint64) if ids.dtype == np.int64 else text_keys(ids.tolist())
    users = np.concatenate((text_keys(trace.user.names), np.zeros(1, dtype=np.uint64)))[trace.user.codes[rows]]
    size = np.floor(np.log2(np.maximum(trace.num_gpus[rows], 1.0))).astype(np.uint64)
    key = np.uint64(seed & (2**64 - 1))
    habit = _uniform(_mix(users + key) ^ _mix(size + np.uint64(1)))
    own = _uniform(_mix(job + key) ^ np.uint64(0xA5))
    near = (habit + _JITTER * (_uniform(_mix(job + key) ^ np.uint64(0x5A)) - 0.5)) % 1.0
    follows = (_uniform(_mix(job + key) ^ np.uint64(0xC3)) < _HABIT) & (trace.user.codes[rows] >= 0)
    return np.where(follows, near, own)


def text_keys(texts: Iterable[str]) -> npt.NDArray[np.uint64]:
    """A 64-bit number for each text, the same on every machine."""
    encoded = [t.encode() for t in texts]
    return np.array([zlib.crc32(e) | zlib.crc32(e, 0x9E3779B9) << 32 for e in encoded], dtype=np.uint64)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: neighbouring numbers come out unrelated."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _uniform(values: npt.NDArray[np.uint64]) -> Floats:
    return (_mix(values) >> np.uint64(11)).astype(np.float64) * 2.0**-53
