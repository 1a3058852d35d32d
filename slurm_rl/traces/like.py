"""Imitates a trace: its cycles, bursts, users, sizes, run times, limits and GPU types, but no job or name."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import InputError
from slurm_rl.traces.arrivals import fitted_rate
from slurm_rl.traces.limits import typed_limits, with_time_limits
from slurm_rl.traces.summary import offered_load
from slurm_rl.traces.trace import Floats, Ints, Labels, Trace

_BLOCK = 64  # jobs that stay together: submissions come in runs of one user
_SMOOTH = 0.05  # run times are spread by this much (as a ratio) around the observed ones
Rows = npt.NDArray[np.intp]


def imitate(
    trace: Trace,
    *,
    seed: int = 0,
    jobs: int | None = None,
    days: float | None = None,
    load: float | None = None,
    cluster: Cluster | None = None,
) -> Trace:
    """A new trace like the given one, of the same load unless `load` (which needs `cluster`) says otherwise.

    Runs of submissions are taken from the trace in another order and placed on its weekly cycle; each job's run time
    is drawn anew from those of its user and size; users, groups and job names are numbered.
    """
    n, span = len(trace), float(trace.span()[1] - trace.span()[0])
    if n < 2 * _BLOCK or span <= 0:
        raise InputError(f"{trace.name}: too little to imitate: {n} jobs over {span:g} s", remedy="give a longer trace")
    if load is not None and cluster is None:
        raise InputError("a load needs a cluster to relate to", remedy="give --cluster FILE.json")
    generator = np.random.default_rng(seed)
    wanted = _work(trace) / span
    if load is not None and cluster is not None:
        now = offered_load(trace, cluster)
        if not now:
            raise InputError("the trace offers no work to this cluster", remedy="give the cluster it belongs to")
        wanted *= load / now
    if days is not None and jobs is None:
        jobs = max(1, round(n * days * 86_400 * wanted / _work(trace)))
    rows = _blocks(n, jobs or n, generator)
    made = trace.take(rows)
    run = _run_times(trace, rows, generator)
    work = float(np.sum(_size(made) * run))
    # The load is met by the run times as far as a twentieth, and beyond that by the pace of submissions.
    part = min(max(wanted * span * len(rows) / n / max(work, 1e-300), 0.95), 1.05) if load is None else 1.0
    run = np.where(run > 0, np.maximum(np.floor(run * part + 0.5), 1), 0).astype(np.int64)
    submit = _times(trace, rows, span, float(np.sum(_size(made) * run)) / wanted, generator)
    made = replace(
        made,
        name=f"like-{trace.name}",
        job_id=np.arange(1, len(rows) + 1, dtype=np.int64),
        submit_time=submit,
        run_time=run,
        time_limit=np.full(len(rows), -1, dtype=np.int64),
        user=_numbered(made.user, "u"),
        account=_numbered(made.account, "g"),
        job_name=_numbered(made.job_name, "job"),
        deadline=np.where(made.deadline >= 0, made.deadline - made.submit_time + submit, -1),
        notes=(),
        meta={"like": trace.name, "seed": seed},
    )
    return _limits(made, trace, rows, seed, generator)


def _blocks(n: int, count: int, generator: np.random.Generator) -> Rows:
    """Row numbers: runs of neighbours in a new order, each used once before any is used again."""
    parts: list[Rows] = []
    have = 0
    while have < count:
        offset = int(generator.integers(_BLOCK))
        edges = [0, *range(offset or _BLOCK, n, _BLOCK), n]
        order = generator.permutation(len(edges) - 1)
        for i in order.tolist():
            parts.append(np.arange(edges[i], edges[i + 1]))
            have += edges[i + 1] - edges[i]
    return np.concatenate(parts)[:count]


def _times(trace: Trace, rows: Rows, span: float, target: float, generator: np.random.Generator) -> Ints:
    """Gaps between submissions, on a clock that runs as fast as submissions usually come, laid on the cycle again."""
    submit = (trace.submit_time - trace.submit_time[0]).astype(np.float64)
    rate = fitted_rate(submit, span)
    shares = rate.shares(submit, span)
    gaps = np.diff(shares, prepend=shares[0])
    gaps[0] = np.median(gaps)
    drawn = gaps[rows] * np.exp(_SMOOTH * generator.standard_normal(len(rows)))
    place = np.cumsum(drawn)
    times = rate.place((place - place[0]) / max(place[-1] - place[0], 1e-300), target)
    whole: Ints = np.floor(times + 0.5).astype(np.int64)
    return whole


def _run_times(trace: Trace, rows: Rows, generator: np.random.Generator) -> Ints:
    """For each user and size the observed distribution, drawn evenly, so that few draws already match it."""
    size = np.round(np.log2(np.maximum(trace.num_gpus, 2.0**-6)) * 2).astype(np.int64) + 64
    key = (trace.user.codes.astype(np.int64) + 1) * 1024 + size
    drawn_key = key[rows]
    run = np.zeros(len(rows))
    order = np.argsort(key, kind="stable")
    values, starts = np.unique(key[order], return_index=True)
    bounds = np.append(starts, len(key))
    drawn_order = np.argsort(drawn_key, kind="stable")
    for k, a, b in zip(values.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        low, high = np.searchsorted(drawn_key[drawn_order], [k, k + 1])
        wanted = drawn_order[low:high]
        if not len(wanted):
            continue
        seen = np.sort(np.log(np.maximum(trace.run_time[order[a:b]], 0.5)))
        even = (generator.permutation(len(wanted)) + generator.random(len(wanted))) / len(wanted)
        run[wanted] = np.interp(even * len(seen) - 0.5, np.arange(len(seen)), seen)
    noisy = np.exp(run + _SMOOTH * generator.standard_normal(len(rows)))
    return np.where(run < math.log(0.75), 0, np.maximum(np.floor(noisy + 0.5), 1)).astype(np.int64)


def _work(trace: Trace) -> float:
    """GPU seconds, or CPU seconds where there are no GPUs."""
    return float(np.sum(_size(trace) * trace.run_time))


def _size(trace: Trace) -> Floats:
    return trace.num_gpus if (trace.num_gpus > 0).any() else np.nan_to_num(trace.cpus, nan=1.0)


def _limits(made: Trace, trace: Trace, rows: Rows, seed: int, generator: np.random.Generator) -> Trace:
    """Limits in the observed ratio of a job of the same run of submissions; synthesised where there were none."""
    known = (trace.time_limit > 0) & (trace.run_time > 0)
    if known.any():
        ratio = np.where(known, trace.run_time / np.maximum(trace.time_limit, 1), np.nan)[rows]
        swap = np.arange(len(rows)) // 8 * 8 + generator.integers(0, 8, len(rows))
        ratio = ratio[np.minimum(swap, len(rows) - 1)]
        has = ~np.isnan(ratio)
        wished = made.run_time / np.where(has, np.clip(ratio, 1e-4, 1.0), 1.0)
        made = replace(made, time_limit=np.where(has, typed_limits(made.run_time, wished), -1))
    return with_time_limits(made, seed)


def _numbered(labels: Labels, prefix: str) -> Labels:
    """The same labels under numbers, in order of first appearance."""
    if not len(labels.names):
        return labels
    present, first = np.unique(labels.codes, return_index=True)
    order = [int(c) for c in present[np.argsort(first)] if c >= 0]
    width = len(str(len(order)))
    lookup = np.full(len(labels.names) + 1, -1, dtype=np.int32)
    for number, code in enumerate(order):
        lookup[code] = number
    return Labels(lookup[labels.codes], tuple(f"{prefix}{i + 1:0{width}d}" for i in range(len(order))))


def distances(a: Trace, b: Trace) -> dict[str, float]:
    """Kolmogorov–Smirnov distances (0 is equal, 1 is disjoint) of run times, sizes and gaps between submissions."""
    return {
        "run_time": _distance(a.run_time, b.run_time),
        "size": _distance(_size(a), _size(b)),
        "gap": _distance(np.diff(a.submit_time), np.diff(b.submit_time)),
    }


def _distance(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> float:
    x, y = np.sort(a), np.sort(b)
    marks = np.concatenate((x, y))
    gap = np.searchsorted(x, marks, side="right") / len(x) - np.searchsorted(y, marks, side="right") / len(y)
    return round(float(np.abs(gap).max()), 4)
