"""`auto`: the policy that suits each partition, chosen by replays of its past; Slurm's own order where none is better.

Candidates are replayed on the past, a few times with jittered arrivals, and compared with Slurm's own order in every
stretch of it. A candidate is taken if it keeps the promise beyond chance and is better beyond chance; what is in charge
stays unless another one is clearly better. Pools share no nodes: each is judged on its own jobs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.domain.cluster import Cluster
from slurm_rl.domain.limits import Limits
from slurm_rl.domain.promise import DEFAULT, Promise, parse_promise
from slurm_rl.domain.reservations import Reservation
from slurm_rl.domain.sizes import pools_of
from slurm_rl.evaluate.goals import GOALS
from slurm_rl.evaluate.paired import replicate, tuned_weights
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.registry import PolicySpec, in_style, parse_policy, with_lane
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.metrics import bounded_slowdown, metrics
from slurm_rl_sim.replay import Contender, Prepared, Run, prepare, replay
from slurm_rl_sim.result import Result

OWN, TUNED = "multifactor", "multifactor, tuned"
HEURISTICS = ("sjf-age@user", "saf@user", "wfp3@user")
LEAST_JOBS = 100  # of a pool's past: fewer tell nothing
_REPLICATES, _STRETCHES = 6, 4
_AS_IT_WAS = 2  # replicates with each user's jobs when they came; in the others users are moved in time
_DAY = 86_400
_GAIN = 0.03  # a change must be worth so much, in logarithms, beyond one standard error
_WORSE = 3.0  # a figure that is worse than under Slurm's own order counts so many times
_IDLE = 60.0  # seconds: where the mean wait is shorter, any order will do
_FIGURES = ("bsld", "wait", "p95", "p99", "max")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy to choose, and Slurm's weights where they are not the site's own."""

    name: str
    policy: PolicySpec
    weights: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """How a candidate did on a pool's past: ratios to Slurm's own order, and standard errors of their logarithms."""

    candidate: str
    ratio: dict[str, float]
    error: dict[str, float]
    price: float  # the goals as one logarithm: below 0 is better than Slurm's own order
    price_error: float
    keeps: bool  # the promise, beyond chance


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """What a pool's partitions get, why, and the table behind it."""

    partitions: tuple[str, ...]
    chosen: str
    before: str  # what was in charge
    why: str
    jobs: int
    table: tuple[Standing, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Auto:
    """A choice for each pool, and the candidates by name."""

    choices: tuple[PoolChoice, ...]
    candidates: Mapping[str, Candidate]
    tuned: Mapping[str, float]

    @property
    def chosen(self) -> dict[str, str]:
        """By partition."""
        return {partition: c.chosen for c in self.choices for partition in c.partitions}


def candidates(
    model: PolicySpec | None, weights: Mapping[str, float] | None = None, tuned: Mapping[str, float] | None = None
) -> dict[str, Candidate]:
    """Slurm's own order, also with tuned weights, heuristics, and a model: as trained, with a lane, in its styles."""
    found = [Candidate(OWN, parse_policy("multifactor"), weights)]
    if tuned:
        found.append(Candidate(TUNED, parse_policy("multifactor"), tuned))
    found += [Candidate(name, parse_policy(name), weights) for name in HEURISTICS]
    if model is not None:
        plain = replace(model, styles={})
        found += [Candidate(model.name, plain, weights), Candidate(f"{model.name}, lane", with_lane(plain), weights)]
        found += [Candidate(f"{model.name}, {s}", in_style(model, s), weights) for s in model.styles]
    return {c.name: c for c in found}


def named(name: str, model: PolicySpec | None) -> PolicySpec:
    """The policy behind a candidate's name, as `candidates` makes it."""
    found = candidates(model).get(OWN if name == TUNED else name)
    return found.policy if found is not None else parse_policy(name)


def pools(cluster: Cluster) -> list[tuple[str, ...]]:
    """The partitions of each pool, in the order in which a workload numbers them."""
    names = list(cluster.partitions)
    number = pools_of(names, (c.partitions for c in cluster.classes))
    return [tuple(p for p in names if number[p] == k) for k in range(max(number.values(), default=-1) + 1)]


def pool_of_jobs(prepared: Prepared) -> Array:
    """The number of each job's pool."""
    found: Array = prepared.workload.requests["pool"][prepared.workload.jobs["request"]]
    return found


def figures(result: Result, picked: Array) -> dict[str, float]:
    """Logarithms of slowdown, waits and tails of some jobs; a second is added to waits, which may be 0."""
    picked = picked & result.measured & result.ran
    if not picked.any():
        return dict.fromkeys(_FIGURES, 0.0)
    wait = (result.start[picked] - result.trace.submit_time[picked]).astype(float)
    slow = bounded_slowdown(wait, (result.end[picked] - result.start[picked]).astype(float))
    p95, p99 = np.percentile(wait, (95, 99))
    waits = (float(wait.mean()), float(p95), float(p99), float(wait.max()))
    return {"bsld": math.log(float(slow.mean()))} | {
        k: math.log(w + 1.0) for k, w in zip(_FIGURES[1:], waits, strict=True)
    }


def varied(past: Trace, number: int, seed: int) -> Trace:
    """The past, then with jittered gaps, then with users moved by whole days within it.

    A few queues decide what a short past says. Who meets whom is chance: users who come on other days make other queues
    of the same jobs at the same times of day.
    """
    if number < _AS_IT_WAS:
        return replicate(past, number, seed)
    dice = np.random.default_rng([seed, number, 23])
    first, last = past.span()
    days = (last - first) // _DAY
    step, span = (_DAY, days * _DAY) if days >= 2 else (3600, max((last - first) // 3600, 1) * 3600)
    shift = dice.integers(span // step, size=len(past.user.names) + 1)[past.user.codes] * step
    noise = dice.integers(-300, 301, size=len(past))
    came = past.submit_time - first
    moves = np.ones(len(past), dtype=bool)
    if "reservation" in past.asked:
        moves = past.asked["reservation"].codes < 0  # a reservation stays, and so do its jobs
    come = np.where(moves, (came + shift) % span, came) + noise
    submit = first + np.clip(come, 0, np.where(moves, span, last - first))
    moved = replace(past, submit_time=submit, deadline=np.full(len(past), -1, dtype=np.int64))
    return moved.take(np.argsort(submit, kind="stable"))


def compare_on_past(
    past: Trace,
    cluster: Cluster,
    contenders: Mapping[str, Candidate],
    backfill: str,
    placement: str | None = None,
    *,
    promise: Promise | None = None,
    influence: float = 1.0,
    replicates: int = _REPLICATES,
    seed: int = 0,
    slurm: SlurmSettings | None = None,
    limits: Limits | None = None,
    reservations: Sequence[Reservation] = (),
    on_progress: Callable[[str, float], None] | None = None,
) -> list[tuple[int, float, tuple[Standing, ...]]]:
    """For each pool, then for all jobs: their number, mean wait under Slurm's own order, how candidates stand to it.

    Without a `placement`, jobs go where the backfill rule's own placement puts them; `slurm`: settings of a site;
    `limits` and `reservations`: those that it enforces.
    """
    promise = promise if promise is not None else parse_promise(DEFAULT)
    count = len(pools(cluster))
    rows: dict[str, list[list[list[dict[str, float]]]]] = {name: [[] for _ in range(count + 1)] for name in contenders}
    jobs, waits = np.zeros(count + 1, dtype=np.int64), np.zeros(count + 1)

    def made(number: int) -> Prepared:
        return prepare(varied(past, number, seed), cluster, seed=seed, limits=limits, reservations=reservations)

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as threads:
        following = threads.submit(made, 0)
        for number in range(replicates):
            case = following.result()
            if number + 1 < replicates:
                following = threads.submit(made, number + 1)  # made while this one is replayed
            pool, submit = pool_of_jobs(case), case.trace.submit_time

            def run(candidate: Candidate, case: Prepared = case) -> Result:
                weights = dict(candidate.weights) if candidate.weights else None
                how = {"placement": placement, "influence": influence, "weights": weights, "slurm": slurm}
                return replay(case, [Contender(candidate.policy, backfill)], **how)[0].result  # type: ignore[arg-type]

            for name, result in zip(contenders, threads.map(run, contenders.values()), strict=True):
                for p in range(count + 1):
                    mine = pool == p if p < count else pool >= 0
                    if not mine.any():
                        continue
                    edges = np.quantile(submit[mine], np.linspace(0, 1, _STRETCHES + 1))[1:-1]
                    stretch = np.searchsorted(edges, submit, side="right")
                    cells = [figures(result, mine & (stretch == s)) for s in range(_STRETCHES)]
                    rows[name][p].append([*cells, figures(result, mine)])
                    if name == OWN and number == 0:
                        jobs[p] = int(mine.sum())
                        waits[p] = math.exp(rows[name][p][0][-1]["wait"]) - 1.0
            if on_progress is not None:
                on_progress("auto", (number + 1) / replicates)
    found = []
    for p in range(count + 1):
        table = tuple(_standing(name, rows[name][p], rows[OWN][p], promise) for name in contenders if rows[OWN][p])
        found.append((int(jobs[p]), float(waits[p]), table))
    return found


def _standing(
    name: str, mine: list[list[dict[str, float]]], own: list[list[dict[str, float]]], promise: Promise
) -> Standing:
    """Ratios over the whole past, averaged over replicates; what differs between stretches is the error."""
    whole = {k: np.array([a[-1][k] - b[-1][k] for a, b in zip(mine, own, strict=True)]) for k in _FIGURES}
    pairs = [list(zip(a[:-1], b[:-1], strict=True)) for a, b in zip(mine, own, strict=True)]
    parts = {k: np.array([[x[k] - y[k] for x, y in row] for row in pairs]) for k in _FIGURES}
    mean = {k: float(v.mean()) for k, v in whole.items()}
    error = {k: _error(v) for k, v in parts.items()}
    prices = np.array([[_price({k: float(parts[k][r, s]) for k in GOALS}) for s in range(_STRETCHES)]
                       for r in range(len(mine))])  # fmt: skip
    keeps = all(mean[k] + error[k] <= math.log(bound) for k, bound in promise.bounds.items())
    ratio = {k: math.exp(v) for k, v in mean.items()}
    return Standing(name, ratio, error, _price(mean), _error(prices), keeps or name == OWN)


def _error(cells: Array) -> float:
    """The standard error of a mean over stretches: replicates of one stretch are not independent."""
    over = cells.mean(axis=0)
    return float(over.std(ddof=1)) / math.sqrt(len(over)) if len(over) > 1 else 0.0


def _price(logs: Mapping[str, float]) -> float:
    """The goals as one figure; what is worse than before counts more, for users compare with what they had."""
    each = {k: logs[k] * (_WORSE if logs[k] > 0 else 1.0) for k in GOALS}
    return sum(GOALS[k] * each[k] for k in GOALS) / sum(GOALS.values())


def choose(
    partitions: tuple[str, ...], jobs: int, wait: float, table: Sequence[Standing], before: str = "", usual: str = ""
) -> PoolChoice:
    """The best candidate that keeps the promise; what was in charge stays unless another one is clearly better.

    `usual` suits the site as a whole: where nothing is in charge yet, it stands in the pool if it does no harm there,
    for a pool's few queues tell less than those of all.
    """
    standing = {s.candidate: s for s in table}
    if jobs < LEAST_JOBS or wait < _IDLE:
        told = f"{jobs} jobs tell nothing" if jobs < LEAST_JOBS else "nobody waits"
        return PoolChoice(partitions, before or OWN, before, told, jobs, tuple(table))
    held = before if before in standing and standing[before].keeps else OWN
    if held == OWN and usual in standing and standing[usual].keeps and standing[usual].price < 0:
        held = usual
    best = min((s for s in table if s.keeps), key=lambda s: s.price)
    gain = standing[held].price - best.price
    doubt = math.hypot(best.price_error, standing[held].price_error if held != OWN else 0.0)
    if best.candidate == held or gain <= _GAIN + doubt:
        others = sum(not s.keeps for s in table)
        why = f"no other is better beyond chance ({others} of {len(table)} do not keep the promise)"
        if held == usual != before:
            why = f"suits the site as a whole, and {why}"
        return PoolChoice(partitions, held, before, why, jobs, tuple(table))
    why = f"better than {held} by {1 - math.exp(-gain):.0%} (goals; chance {doubt:.0%})"
    return PoolChoice(partitions, best.candidate, before, why, jobs, tuple(table))


def auto(
    past: Trace,
    cluster: Cluster,
    backfill: str,
    placement: str | None = None,
    *,
    model: PolicySpec | None,
    weights: Mapping[str, float] | None = None,
    promise: Promise | None = None,
    influence: float = 1.0,
    before: Mapping[str, str] | None = None,
    replicates: int = _REPLICATES,
    seed: int = 0,
    tune: bool = True,
    slurm: SlurmSettings | None = None,
    limits: Limits | None = None,
    reservations: Sequence[Reservation] = (),
    on_progress: Callable[[str, float], None] | None = None,
) -> Auto:
    """Chooses for each pool, by its past alone; `before` says what is in charge, by partition."""
    tuned = {}
    if tune:
        case = prepare(past, cluster, seed=seed, limits=limits, reservations=reservations)
        tuned = tuned_weights(case, backfill, placement, slurm)
    contenders = candidates(model, weights, tuned)
    how: dict[str, Any] = {"promise": promise, "influence": influence, "replicates": replicates, "seed": seed}
    how |= {"slurm": slurm, "limits": limits, "reservations": reservations}
    judged = compare_on_past(past, cluster, contenders, backfill, placement, on_progress=on_progress, **how)
    usual = choose((), *judged[-1]).chosen
    choices = [
        choose(names, *found, before=(before or {}).get(names[0], ""), usual=usual)
        for names, found in zip(pools(cluster), judged[:-1], strict=True)
    ]
    return Auto(tuple(choices), contenders, tuned)


def replay_auto(
    prepared: Prepared,
    found: Auto,
    backfill: str,
    placement: str | None = None,
    influence: float = 1.0,
    slurm: SlurmSettings | None = None,
) -> Run:
    """The chosen policies on a prepared trace; each pool's jobs run as in the replay of its own policy.

    Pools share no nodes; they share users' fairshare and history, which each replay has of its own policy.
    """
    runs: dict[str, Run] = {}
    for name in dict.fromkeys(c.chosen for c in found.choices):
        candidate = found.candidates[name]
        weights = dict(candidate.weights) if candidate.weights else None
        how = {"placement": placement, "influence": influence, "weights": weights, "slurm": slurm}
        (runs[name],) = replay(prepared, [Contender(candidate.policy, backfill)], **how)  # type: ignore[arg-type]
    first = next(iter(runs.values()))
    if len(runs) == 1:
        return replace(first, policy="auto")
    pool, result = pool_of_jobs(prepared), first.result
    for p, choice in enumerate(found.choices):
        result = _with_pool(result, runs[choice.chosen].result, pool == p)
    seconds = sum(r.wall_seconds for r in runs.values())
    return replace(
        first,
        policy="auto",
        result=result,
        metrics=metrics(result),
        wall_seconds=seconds,
        jobs_per_second=len(prepared.trace) / max(seconds, 1e-9),
    )


def _with_pool(result: Result, other: Result, mine: Array) -> Result:
    """A result with some jobs as another one has them."""
    if other is result:
        return result
    pick = {k: np.where(mine, getattr(other, k), getattr(result, k)) for k in ("start", "end", "state", "log_count")}
    first = np.where(mine, other.log_first + len(result.log), result.log_first)
    rejected = {j: why for j, why in result.rejected.items() if not mine[j]}
    rejected |= {j: why for j, why in other.rejected.items() if mine[j]}
    for name in ("log", "log_gpus", "log_more"):
        pick[name] = np.concatenate([getattr(result, name), getattr(other, name)])
    return replace(result, **pick, log_first=first, rejected=rejected)
