"""Start forecasts of the live queue: made each tick, recorded, scored by outcomes, and calibrated."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from slurm_rl.config import Config
from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.explain.live_scene import LiveScene, RecentJobs
from slurm_rl.controller.live_policy import LivePolicy
from slurm_rl.controller.slurm_snapshot import LiveQueue
from slurm_rl.domain.snapshot import Plan
from slurm_rl.obs.forecast_store import ForecastStore, Skill, Told
from slurm_rl.obs.metrics import Metrics
from slurm_rl.slurm.model import HistoryJob, SlurmState
from slurm_rl_sim.forecast import Calibration, Forecast, Made, summarise
from slurm_rl_sim.forward import DAY, Scene, futures

Key = tuple[int, int]  # job id, submit time

TOP = 1000  # jobs at the head of the order that are foreseen: those behind them start far in the future
HORIZON = 7 * DAY
MOST, LEAST = 24, 5  # futures of a forecast
_SECONDS = 1.5  # for all futures of a tick
_REST = 10.0  # times as long as a forecast took until the next: a tenth of a processor at most
_FREE = 0.1  # seconds: what costs less needs no rest
_AGAIN = 3600.0  # seconds after which a job's forecast is recorded anew
_RECORDED = 200  # forecasts that are recorded in a tick
_GONE = 3 * 3600.0  # seconds after which a job that vanished without a trace is given up
_SKILL_EVERY = 60.0
_PRUNE_EVERY = 3600.0


@dataclass(frozen=True, slots=True)
class StartForecast:
    """When a job may start, as Unix times; beyond the horizon means its end, or later."""

    made: float
    median: float
    low: float
    high: float


def foretell(
    scene: Scene,
    targets: np.ndarray,
    rng: np.random.Generator,
    *,
    most: int = MOST,
    seconds: float = _SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> list[Forecast] | None:
    """Raw forecasts of these jobs from as many futures as there is time for; None if that is too few."""
    deadline = clock() + seconds
    drawn = []
    for starts in futures(scene, targets, rng, HORIZON, lambda: clock() > deadline):
        drawn.append(np.minimum(starts, HORIZON))
        if len(drawn) >= most:
            break
    return summarise(np.stack(drawn)) if len(drawn) >= min(LEAST, most) else None


class StartForecasts:
    """Makes forecasts as ticks go by, and learns from their outcomes; one thread calls it, others read `told`."""

    def __init__(self, config: Config, store: ForecastStore, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.config, self.store, self.metrics, self.clock = config, store, metrics, clock
        self.recent = RecentJobs()
        self.calibration = Calibration()
        self.told: Mapping[int, StartForecast] = {}
        self._open: dict[Key, list[tuple[Told, Made]]] = {}
        self._recorded: dict[Key, float] = {}
        self._vanished: dict[Key, float] = {}
        self.seconds = _SECONDS
        self._rested = 0.0
        self._pruned = 0.0
        self._skill: tuple[float, Skill] | None = None
        for told in store.latest(600):
            self._remember(told)

    @property
    def skill(self) -> Skill:
        """How the forecasts of a week fared; read anew once a minute."""
        now = self.clock()
        if self._skill is None or not 0 <= now - self._skill[0] < _SKILL_EVERY:
            self._skill = (now, self.store.skill(now))
        return self._skill[1]

    def see(self, state: SlurmState, ended: Iterable[HistoryJob] = (), since: float = 0.0) -> None:
        """Notes arrivals, and what became of jobs that were forecast."""
        now = state.taken
        self.recent.see(state.jobs, now)
        if not 0 <= now - self._pruned < _PRUNE_EVERY:
            self._pruned = now
            self.store.prune(now - self.config.journal_days * 86_400)
        rows = list(ended)
        if rows:
            self.recent.learn(rows, since, now)
        if not self._open:
            return
        starts: dict[Key, float] = {}
        waiting: set[Key] = set()
        for job in state.jobs:
            key = (job.job_id, job.submit_time or 0)
            if job.pending:
                waiting.add(key)
            elif job.start_time:
                starts[key] = float(job.start_time)
        for row in rows:
            key = (row.job_id, row.submit_time or 0)
            if key in self._open and row.start_time:
                starts.setdefault(key, float(row.start_time))
            elif key in self._open and row.end_time:
                self._drop(key)
        for key in [k for k in self._open if k not in waiting]:
            if key in starts:
                self._settle(key, starts[key])
            elif now - self._vanished.setdefault(key, now) > _GONE:
                self._drop(key)

    def renew(
        self, queue: LiveQueue, plan: Plan, policy: LivePolicy, mode: str, run_times: RunTimes
    ) -> Mapping[int, StartForecast]:
        """Forecasts of the jobs at the head of the order; those of earlier ticks while it is not time for new ones."""
        now = queue.state.taken
        waiting = [queue.jobs[j] for j in plan.order[:TOP]]
        ids = {job.job_id for job in waiting}
        if time.monotonic() < self._rested and (not self.told or ids & self.told.keys()):
            self.told = {j: f for j, f in self.told.items() if j in ids}
            return self.told
        held = self.skill.held
        self.metrics.forecast_held.set(math.nan if held is None else held)
        began = time.monotonic()
        self.told = self._make(queue, plan, policy, mode, run_times, now) if waiting else {}
        cost = time.monotonic() - began
        self._rested = time.monotonic() + (_REST * cost if cost > _FREE else 0.0)
        return self.told

    def _make(
        self, queue: LiveQueue, plan: Plan, policy: LivePolicy, mode: str, run_times: RunTimes, now: float
    ) -> dict[int, StartForecast]:
        waiting = [queue.jobs[j] for j in plan.order[:TOP]]
        known = run_times.known()
        live = LiveScene(queue.state, waiting, self.recent, known, policy, mode, self.config, limits=queue.limits)
        rows = np.array(live.waiting, dtype=np.int64)
        raw = foretell(live.scene(), rows, np.random.default_rng(int(now)), seconds=self.seconds)
        if raw is None:
            return {}
        self.calibration.learn(now)
        found: dict[int, StartForecast] = {}
        record: list[Told] = []
        for row, one in zip(live.waiting, raw, strict=True):
            job = live.queue.jobs[row]
            told = self.calibration.corrected(one)
            found[job.job_id] = StartForecast(now, now + told.median, now + told.low, now + told.high)
            key = (job.job_id, job.submit_time or 0)
            if now - self._recorded.get(key, 0.0) >= _AGAIN and len(record) < _RECORDED:
                slurm = max(job.start_time - now, 0.0) if job.start_time else None
                numbers = (one.median, one.low, one.high), (told.median, told.low, told.high)
                record.append(Told(key, now, *numbers, slurm))
        self.store.tell(record)
        for told_row in record:
            self._recorded[told_row.key] = now
            self._remember(told_row)
        return found

    def _remember(self, told: Told) -> None:
        wait = -1.0 if told.wait is None else told.wait
        made = Made(told.made, Forecast(*told.raw), wait, Forecast(*told.told))
        self.calibration.note(made)
        if told.wait is None:
            self._open.setdefault(told.key, []).append((told, made))

    def _settle(self, key: Key, start: float) -> None:
        rows = self._open.pop(key)
        for told, made in rows:
            told.wait = made.wait = max(start - told.made, 0.0)
            _, low, high = told.told
            outcome = "held" if low <= told.wait <= high else "early" if told.wait < low else "late"
            self.metrics.forecasts.labels(outcome).inc()
        self.store.settle(told for told, _ in rows)
        self._forget(key)
        self._skill = None

    def _drop(self, key: Key) -> None:
        """A job that went without a start: cancelled, or nobody saw it run."""
        rows = self._open.pop(key)
        self.store.settle((told for told, _ in rows), gone=True)
        for _, made in rows:
            self.calibration.drop(made)
        self.metrics.forecasts.labels("gone").inc(len(rows))
        self._forget(key)

    def _forget(self, key: Key) -> None:
        self._recorded.pop(key, None)
        self._vanished.pop(key, None)
