"""Scores forecasts of start times on history: replays a period and compares forecasts with outcomes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.backfill.catalogue import RULES, make_tables
from slurm_rl.backfill.slurm_settings import read_slurm_conf
from slurm_rl.controller.estimates import batches, finish_all, predict_all
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import GROUP, Array
from slurm_rl.kernel.build import Workload
from slurm_rl.kernel.tables import WORLD
from slurm_rl.kernel.world import bare_world
from slurm_rl.place.counting import ONE_BY_ONE
from slurm_rl.policy.registry import parse_policy
from slurm_rl_sim import state as st
from slurm_rl_sim.forecast import Calibration, Forecast, Made, log_wait, summarise
from slurm_rl_sim.forward import DAY, Past, Scene, SiteRules, draw_starts, starts_by_limits
from slurm_rl_sim.replay import Prepared
from slurm_rl_sim.residuals import Residuals
from slurm_rl_sim.simulation import ReplayState

PAST = 7 * DAY  # arrivals to come are drawn from so long a past
_LIKE = 20  # jobs like this whose mean wait is the naive forecast
_HOUR = 3600
_TOGETHER = 4  # pending jobs that are forecast at one full hour

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Scored:
    """One forecast: of which job, made when, what each method told, and what happened (seconds from then)."""

    job: int
    time: int
    at_submission: bool
    wait: float
    raw: Forecast
    ours: Forecast
    by_limits: float
    naive: float
    passed: float  # share of the futures in which it started before it did


@dataclass(frozen=True, slots=True)
class Scores:
    """How one method fared."""

    method: str
    coverage: float | None  # share of the starts within the 80% range
    log_error: float  # median of |log((told + 60 s) / (happened + 60 s))|
    error: float  # median absolute error in seconds
    bias: float  # median of the logarithm's error: above 0, jobs started later than told


@dataclass(frozen=True, slots=True)
class ForecastReport:
    """Everything the command tells."""

    forecasts: int
    at_submission: int
    calibrated_on: int  # earlier forecasts that only served to learn
    methods: list[Scores]
    ratio: float  # our median absolute log error to that of backfill by limits
    calibration: list[tuple[float, float]]  # nominal share, share of the starts at or below that quantile
    futures: list[tuple[float, float]]  # the same of the futures as they were simulated, before they were put right
    rows: list[Scored] = field(repr=False, default_factory=list)

    def as_value(self) -> dict[str, Any]:
        value = asdict(self)
        value.pop("rows")
        return value


class ReplayEstimator:
    """The estimator fed with the jobs of a replay as they end, and its residuals."""

    def __init__(self, workload: Workload) -> None:
        self._jobs = workload.jobs
        self._groups = np.zeros(workload.groups + 1, dtype=GROUP)
        self.residuals = Residuals()
        self._seen = 0

    def learn(self, jobs: Array, ran: Array) -> None:
        """Jobs in the order in which they ended."""
        for part in batches(len(jobs), self._seen):
            some, run = jobs[part], ran[part].astype(float)
            self.residuals.note(*self.predict(some), run)
            world = self._world(some)  # a record alone would not keep its tables
            finish_all(world.record, run)
        self._seen += len(jobs)

    def predict(self, jobs: Array) -> tuple[Array, Array]:
        """(logarithm of the estimate, its spread) of each."""
        world = self._world(jobs)
        predict_all(world.record, np.arange(len(jobs)))
        return np.log(np.maximum(world["live"]["expected"], 1.0)), world["live"]["spread"].astype(float)

    def _world(self, jobs: Array) -> Any:
        world = bare_world(len(jobs), {}, groups=self._groups)
        world["jobs"]["limit"] = np.maximum(self._jobs["limit"][jobs], 1)
        world["jobs"]["group"] = self._jobs["group"][jobs]
        return world


def site_of(policy: str, backfill: str, slurm_conf: Path | None = None) -> SiteRules:
    """How a site schedules: by names, or as its slurm.conf has it."""
    if slurm_conf is None:
        return SiteRules(parse_policy(policy), RULES[backfill].name)
    conf = read_slurm_conf(slurm_conf)
    weights = dict(conf.weights) if conf.has_weights else None
    return SiteRules(parse_policy(policy), "slurm", weights=weights, settings=conf.world)


def moments(submit: Array, start: Array, window: tuple[int, int], count: int, seed: int) -> list[tuple[int, int, bool]]:
    """(time, job, at submission) of a sample of all forecasts: half made at submission, half at full hours.

    A job that starts in the instant of its submission needs no forecast.
    """
    rng = np.random.default_rng(seed)
    waited = np.flatnonzero((start > submit) & (submit >= window[0]) & (submit < window[1]))
    if not len(waited):
        raise InputError("no job waits in this window: there is nothing to forecast", field="--window")
    chosen = rng.choice(waited, min(count // 2, len(waited)), replace=False)
    found = {(int(submit[j]), int(j), True) for j in chosen}
    first = -(-submit // _HOUR)
    hours = np.maximum((start - 1) // _HOUR - first + 1, 0)[waited]
    total = int(hours.sum())
    if total:
        # One hour, and some of those that wait then: their futures cost no more than that of one.
        ends = np.cumsum(hours)
        for pick in rng.integers(0, total, max(count // 2 // _TOGETHER, 1)):
            k = int(np.searchsorted(ends, pick, side="right"))
            hour = int(first[waited[k]] + pick - (ends[k] - hours[k])) * _HOUR
            there = np.flatnonzero((submit <= hour) & (start > hour))
            for j in rng.choice(there, min(_TOGETHER, len(there)), replace=False):
                found.add((hour, int(j), False))
    return sorted(found)


def forecast_history(
    prepared: Prepared,
    site: SiteRules,
    *,
    window: tuple[int, int],
    count: int = 400,
    draws: int = 40,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> tuple[list[Scored], int]:
    """Replays a trace, makes a sample of forecasts as it goes, and scores them; also how many came before the window.

    The time before the window teaches estimator and calibration, in the same density of forecasts.
    """
    submit = prepared.workload.jobs["submit"]
    truth = _simulation(prepared, site)
    truth.run()
    start = np.where(truth.world["live"]["start"] >= 0, truth.world["live"]["start"], submit)
    end = truth.world["live"]["end"]
    before = max(int(count * 0.5), 60)
    length = window[1] - window[0]
    early = max(window[0] - length // 2, int(submit[0]) + (window[0] - int(submit[0])) // 3)
    asked = moments(submit, start, window, count, seed)
    if early < window[0]:
        with contextlib.suppress(InputError):  # nobody waited then
            asked = moments(submit, start, (early, window[0]), before, seed + 1) + asked
    asked = [m for m in asked if m[0] < window[1]]
    asked.sort()
    return _walk(prepared, site, asked, start, end, window, draws, seed, on_progress)


def _simulation(prepared: Prepared, site: SiteRules) -> ReplayState:
    simulation = ReplayState(
        prepared.workload,
        prepared.trace.run_time,
        site.policy,
        backfill=site.backfill,
        placement=site.placement or RULES[site.backfill].placement,
        influence=site.influence,
        weights=dict(site.weights) if site.weights else None,
        index=ONE_BY_ONE if site.settings.get("least_loaded") else None,
    )
    for name, value in site.settings.items():
        if simulation.rule.on_tick and name in (WORLD.names or ()):
            simulation.world[name] = value
    make_tables(simulation.world, simulation.rule)
    return simulation


def _walk(
    prepared: Prepared,
    site: SiteRules,
    asked: Sequence[tuple[int, int, bool]],
    start: Array,
    end: Array,
    window: tuple[int, int],
    draws: int,
    seed: int,
    on_progress: Progress | None,
) -> tuple[list[Scored], int]:
    simulation = _simulation(prepared, site)
    learned, calibration = ReplayEstimator(prepared.workload), Calibration()
    submit = prepared.workload.jobs["submit"]
    over = np.argsort(end, kind="stable")
    over = over[end[over] >= 0]
    begun = np.argsort(start, kind="stable")
    fed = 0
    rows: list[Scored] = []
    earlier, at = 0, 0
    while at < len(asked):
        now = asked[at][0]
        together = [m for m in asked[at : at + 64] if m[0] == now]
        at += len(together)
        simulation.run(now)
        upto = int(np.searchsorted(end[over], now, side="right"))
        learned.learn(over[fed:upto], (end - start)[over[fed:upto]])
        fed = upto
        targets = np.array([m[1] for m in together], dtype=np.int64)
        there = simulation.world["live"]["state"][targets] == st.QUEUED
        together, targets = [m for m, yes in zip(together, there, strict=True) if yes], targets[there]
        if not len(targets):
            continue
        scene = scene_of(simulation, site, learned, now)
        futures = draw_starts(scene, targets, draws, np.random.default_rng([seed, now]))
        raw = summarise(futures)
        limits = starts_by_limits(scene, targets)
        calibration.learn(now)
        for k, (_, j, at_submission) in enumerate(together):
            wait = float(start[j] - now)
            told = calibration.corrected(raw[k])
            calibration.note(Made(now, raw[k], wait, told))
            if now < window[0]:
                earlier += 1
                continue
            naive = _naive(prepared.workload, start, submit, begun, j, now)
            passed = float(np.mean(futures[:, k] < wait) + np.mean(futures[:, k] <= wait)) / 2.0
            rows.append(Scored(j, now, at_submission, wait, raw[k], told, float(limits[k]), naive, passed))
        if on_progress is not None:
            on_progress(at / len(asked))
    return rows, earlier


def scene_of(simulation: ReplayState, site: SiteRules, learned: ReplayEstimator, now: int) -> Scene:
    """The replay's present moment; what is to come is looked at by nobody."""
    world = simulation.world
    live, submit = world["live"], world["jobs"]["submit"]
    running = np.flatnonzero(live["state"] == st.RUNNING)
    pending = np.flatnonzero(live["state"] == st.QUEUED)
    since = max(now - PAST, int(submit[0]))
    recent = np.arange(*np.searchsorted(submit, [since, now]))
    state = live["state"][recent]
    recent, state = recent[state != st.REJECTED], state[state != st.REJECTED]
    over = (state == st.COMPLETED) | (state == st.KILLED)
    ran = np.where(state == st.RUNNING, now - live["start"][recent], 0)
    past = Past(recent, submit[recent], np.where(over, live["end"][recent] - live["start"][recent], -1), ran, since)
    needed = np.unique(np.concatenate([running, pending, recent]))
    median, spread = np.zeros(len(submit)), np.zeros(len(submit))
    median[needed], spread[needed] = learned.predict(needed)
    return Scene(now, world, simulation.workload, running, pending, median, spread, site, past, learned.residuals)


def _naive(wl: Workload, start: Array, submit: Array, begun: Array, j: int, now: int) -> float:
    """What is left of the mean wait of the last jobs like this: as many GPUs or CPUs (in octaves), in its pool."""
    upto = int(np.searchsorted(start[begun], now, side="right"))
    recent = begun[max(0, upto - 5000) : upto]
    request = wl.requests[wl.jobs["request"]]
    mine = request[j]
    size = np.floor(np.log2(np.maximum(request["volume"][recent], 1e-3)))
    like = recent[
        (request["pool"][recent] == mine["pool"]) & (size == math.floor(math.log2(max(mine["volume"], 1e-3))))
    ]
    like = like[-_LIKE:]
    if not len(like):
        return 0.0
    return max(float(np.mean(start[like] - submit[like])) - (now - int(submit[j])), 0.0)


def report_of(rows: Sequence[Scored], earlier: int) -> ForecastReport:
    """The scores of a period."""
    if not rows:
        raise InputError("no forecast could be made in this window", field="--window")
    wait = np.array([r.wait for r in rows])
    ours = [_scores("forecast", wait, [r.ours.median for r in rows], [r.ours for r in rows])]
    ours.append(_scores("forecast, not calibrated", wait, [r.raw.median for r in rows], [r.raw for r in rows]))
    limits = _scores("backfill by limits", wait, [r.by_limits for r in rows])
    naive = _scores("mean wait of jobs like it", wait, [r.naive for r in rows])
    ratio = ours[0].log_error / limits.log_error if limits.log_error else math.inf
    submitted = sum(r.at_submission for r in rows)
    passed = np.array([r.passed for r in rows])
    futures = [(q, float(np.mean(passed <= q))) for q in np.round(np.arange(0.05, 1.0, 0.05), 2).tolist()]
    methods = [*ours, limits, naive]
    return ForecastReport(len(rows), submitted, earlier, methods, ratio, _curve(rows), futures, list(rows))


def _scores(method: str, wait: Array, told: Sequence[float], ranges: Sequence[Forecast] | None = None) -> Scores:
    guess = np.minimum(np.array(told), 60 * DAY)
    error = log_wait(wait) - log_wait(guess)
    held = None
    if ranges is not None:
        held = float(np.mean([r.holds(w) for r, w in zip(ranges, wait, strict=True)]))
    absolute = float(np.median(np.abs(guess - wait)))
    return Scores(method, held, float(np.median(np.abs(error))), absolute, float(np.median(error)))


def _curve(rows: Sequence[Scored]) -> list[tuple[float, float]]:
    """How often starts came at or before the low end, the median and the high end, which should be .1, .5, .9."""
    points = []
    for share, name in ((0.1, "low"), (0.5, "median"), (0.9, "high")):
        points.append((share, float(np.mean([r.wait <= getattr(r.ours, name) for r in rows]))))
    return points
