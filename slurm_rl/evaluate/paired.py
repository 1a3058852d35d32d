"""Paired comparison of policies: the same jobs, cluster and rules for all, replicates, and bootstrap intervals."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.domain.bootstrap import middle95
from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.catalogue import MULTIFACTOR
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.perturb import Step, perturb
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.metrics import METRICS, bounded_slowdown, share_of_the_way
from slurm_rl_sim.replay import Contender, Prepared, Run, prepare, replay

# The usual opponents: Slurm's own order, the simple ones, those that use history, and the limit nobody can reach.
OPPONENTS = (
    "multifactor", "fcfs", "fcfs+firstfit", "sjf@user", "saf@user", "sjf-age@user", "smith", "unicef@user",
    "wfp3@user", "sjf@oracle",
)  # fmt: skip
COMPARED = tuple(m.name for m in METRICS if m.compared)
_JITTER = 0.1  # of the gaps between submissions, in all replicates but the first
_BLOCKS = 20  # stretches of equal length into which a replay is cut for the bootstrap
_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class PairedWindows:
    """Stretches of `jobs` jobs, drawn at random; as many jobs before each fill the cluster."""

    count: int
    jobs: int = 1024


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """One policy's figures over all cases, and its ratios to the base policy with 95% intervals."""

    policy: str
    backfill: str
    mean: dict[str, float]  # geometric over replicates, arithmetic over windows
    ratio: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]


def tuned_weights(
    prepared: Prepared, backfill: str, placement: str | None = None, slurm: SlurmSettings | None = None
) -> dict[str, float]:
    """Slurm's weights that do best on a workload (mean BSLD x mean wait), of a grid of age, fairshare and job size."""
    contender = Contender(parse_policy("multifactor"), backfill)
    grid = itertools.product((0.0, 1000.0, 10_000.0), (0.0, 1000.0, 10_000.0), (-1000.0, 0.0, 1000.0))
    all_weights = [{"age": a, "fairshare": f, "job_size": s} for a, f, s in grid if a or f]

    def price(weights: dict[str, float]) -> float:
        found = replay(prepared, [contender], placement=placement, weights=weights, slurm=slurm)[0].metrics
        return _positive(found["mean_bsld"]) * _positive(found["mean_wait"])

    # Kernels run without the interpreter's lock; few at once, for each needs tables of its own.
    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 4)) as threads:
        prices = list(threads.map(price, all_weights))
    return all_weights[int(np.argmin(prices))]


def replicate(trace: Trace, number: int, seed: int) -> Trace:
    """The trace itself as replicate 0, else with gaps between submissions that vary by a tenth."""
    if number == 0:
        return trace
    return perturb(trace, [Step("arrival-noise", _JITTER)], seed=seed * 1000 + number)


def drawn_windows(
    trace: Trace, windows: PairedWindows, span: tuple[int, int] | None, seed: int
) -> Iterator[tuple[Trace, tuple[int, int]]]:
    """Parts of a trace, each with the window of its jobs that are measured."""
    trace = trace.take(np.argsort(trace.submit_time, kind="stable"))
    submit = trace.submit_time
    low, high = (0, len(trace)) if span is None else np.searchsorted(submit, span)
    if high - low < windows.jobs:
        raise InputError(
            f"has {high - low:,} jobs to draw from, fewer than a window's {windows.jobs:,}",
            file=trace.name,
            remedy="give a smaller --window-jobs, or a longer --window",
        )
    for first in np.random.default_rng([seed, 19]).integers(low, high - windows.jobs + 1, size=windows.count).tolist():
        part = trace.take(np.arange(max(first - windows.jobs, 0), first + windows.jobs))
        yield part, (int(submit[first]), int(submit[first + windows.jobs - 1]) + 1)


def compare(
    trace: Trace,
    cluster: Cluster,
    contenders: Sequence[Contender],
    *,
    base: Contender,
    replicates: int = 5,
    window: tuple[int, int] | None = None,
    windows: PairedWindows | None = None,
    placement: str | None = None,
    weights: dict[str, float] | None = None,
    seed: int = 0,
    own_way: Mapping[str, Callable[[Prepared], Run]] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> list[PolicyFigures]:
    """Replays every contender on every replicate, or on every drawn window; `base` is what ratios refer to.

    `own_way` replays contenders, by the names of their policies, that are more than one policy.
    """
    everyone = [base, *(c for c in contenders if c != base)]
    figures: dict[Contender, list[dict[str, float]]] = {c: [] for c in everyone}
    blocks: dict[Contender, list[Array]] = {c: [] for c in everyone}
    cases: Iterator[tuple[Trace, tuple[int, int] | None]]
    if windows is None:
        kind, count = "replicate", replicates
        cases = ((replicate(trace, number, seed), window) for number in range(replicates))
    else:
        kind, count = "window", windows.count
        cases = drawn_windows(trace, windows, window, seed)
    for number, (part, measured) in enumerate(cases):
        prepared = prepare(part, cluster, window=measured, seed=seed)
        for place, contender in enumerate(everyone):
            own = weights if contender.policy.code == MULTIFACTOR else None
            if own_way and contender.policy.name in own_way:
                run = own_way[contender.policy.name](prepared)
            else:
                run = replay(prepared, [contender], placement=placement, weights=own)[0]
            figures[contender].append({k: _positive(run.metrics[k]) for k in COMPARED})
            blocks[contender].append(_blocks(run))
            if on_progress is not None:
                share = (number * len(everyone) + place + 1) / (count * len(everyone))
                on_progress(f"{kind} {number + 1} of {count}", share)
    if windows is not None:
        return [_over_windows(c, figures[c], figures[base], seed) for c in everyone]
    return [_whole(c, base, figures, blocks, seed) for c in everyone]


def _positive(value: float | int | None) -> float:
    return max(float(value or 0.0), 1e-9)


def _blocks(run: Run) -> Array:
    """[blocks, 3]: jobs, sum of bounded slowdowns and sum of waits, by when jobs were submitted."""
    result = run.result
    picked = result.measured & result.ran
    submit, start, end = result.trace.submit_time[picked], result.start[picked], result.end[picked]
    wait = (start - submit).astype(float)
    slow = bounded_slowdown(wait, (end - start).astype(float))
    span = max(int(submit.max() - submit.min()), 1)
    block = np.minimum((submit - submit.min()) * _BLOCKS // (span + 1), _BLOCKS - 1)
    columns = [np.bincount(block, weights=v, minlength=_BLOCKS) for v in (np.ones_like(wait), slow, wait)]
    return np.stack(columns, axis=1)


def _whole(
    contender: Contender,
    base: Contender,
    figures: dict[Contender, list[dict[str, float]]],
    blocks: dict[Contender, list[Array]],
    seed: int,
) -> PolicyFigures:
    mine, theirs = figures[contender], figures[base]
    logs = {k: np.array([math.log(a[k] / b[k]) for a, b in zip(mine, theirs, strict=True)]) for k in COMPARED}
    dice = np.random.default_rng([seed, 17])
    low, high = {}, {}
    draws = dice.integers(len(mine), size=(_DRAWS, len(mine)))
    for k in COMPARED:
        spread = logs[k][draws].mean(axis=1)
        low[k], high[k] = map(math.exp, middle95(spread))
    # Means over jobs vary with the stretch of time as well: these are drawn too, the same ones for both policies.
    a, b = np.stack(blocks[contender]), np.stack(blocks[base])
    stretches = dice.integers(_BLOCKS, size=(_DRAWS, _BLOCKS))
    for column, k in ((1, "mean_bsld"), (2, "mean_wait")):
        top, bottom = (np.stack([x[draws[:, r]][np.arange(_DRAWS)[:, None], stretches, column].sum(axis=1)
                                 for r in range(len(mine))]).sum(axis=0) for x in (a, b))  # fmt: skip
        low[k], high[k] = middle95(top / np.maximum(bottom, 1e-9))
    mean = {k: math.exp(float(np.mean([math.log(f[k]) for f in mine]))) for k in COMPARED}
    ratio = {k: math.exp(float(v.mean())) for k, v in logs.items()}
    return PolicyFigures(contender.policy.name, contender.backfill, mean, ratio, low, high)


def _over_windows(
    contender: Contender, mine: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]], seed: int
) -> PolicyFigures:
    """Ratios of means over windows: in some of them nobody waits, and a ratio of their own would say nothing."""
    draws = np.random.default_rng([seed, 17]).integers(len(mine), size=(_DRAWS, len(mine)))
    mean, ratio, low, high = {}, {}, {}, {}
    for k in COMPARED:
        a, b = (np.array([f[k] for f in found]) for found in (mine, theirs))
        mean[k], ratio[k] = float(a.mean()), float(a.mean() / b.mean())
        low[k], high[k] = middle95(a[draws].mean(axis=1) / b[draws].mean(axis=1))
    return PolicyFigures(contender.policy.name, contender.backfill, mean, ratio, low, high)


def gap_closed(standings: Sequence[PolicyFigures], policy: str, base: str, limit: str = "sjf@oracle") -> float | None:
    """The share of the distance in log mean BSLD between the base and the limit that a policy covers."""
    found = {s.policy: s.mean["mean_bsld"] for s in standings}
    if not {policy, base, limit} <= set(found):
        return None
    return share_of_the_way(found[base], found[policy], found[limit])


def before(trace: Trace, window: tuple[int, int] | None) -> Trace | None:
    """The part of a trace that lies before the measured window: what may be tuned on."""
    if window is None or window[0] <= trace.span()[0]:
        return None
    early = trace.take(np.flatnonzero(trace.submit_time < window[0]))
    return replace(early, name=f"{trace.name} before the window") if len(early) > 100 else None
