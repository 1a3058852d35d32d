"""The controller's cycle: observe, decide, diff, journal, apply, read back."""

from __future__ import annotations

import importlib.util
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import structlog

from slurm_rl.config import Config
from slurm_rl.controller.advice import Advisor
from slurm_rl.controller.budget import WriteBudget
from slurm_rl.controller.diff import changes, in_safe_write_order, wanted_factors
from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.explain.queue_report import QueueReport
from slurm_rl.controller.explain.start_forecast import expected_starts
from slurm_rl.controller.live_policy import LivePolicy, load_policy
from slurm_rl.controller.ours import advised, at_zero, given_unseen, rows_of, shown, to_clear
from slurm_rl.controller.promote import CURRENT, Promotions
from slurm_rl.controller.slurm_snapshot import LiveQueue, finished_jobs, observe
from slurm_rl.controller.undo import min_job_age, undo
from slurm_rl.controller.writers.gpu_type import GpuTypeWriter, given_speeds, ran_on
from slurm_rl.controller.writers.start_time import StartTimeWriter, rules
from slurm_rl.decide import Guardrails
from slurm_rl.domain.snapshot import Plan
from slurm_rl.errors import EnvironmentMissing, SlurmError, SlurmRlError
from slurm_rl.kernel.arrays import Array
from slurm_rl.obs.journal import Change, Journal, JournalError, Key, LostLease, own_name
from slurm_rl.obs.metrics import Metrics
from slurm_rl.place.plan import Planner, PlannerSettings
from slurm_rl.place.problem import parse_weights
from slurm_rl.place.speed import Ran, learn_speeds
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import JobUpdate, SlurmJob, SlurmState, UpdateStatus
from slurm_rl.slurm.text import setting

_LEARN_EVERY = 300.0
_FENCE = 1.0  # seconds after the journal's word in which a write must begin
_FALLBACKS = 3  # ticks without usable scores after which Slurm gets its own order back
_PRUNE_EVERY = 3600.0
_REVIEW_EVERY = 60.0  # seconds between looks at jobs that may have a factor of ours, though none is shown
_REMEMBERED = 20_000  # finished jobs that GPU speeds are learned from

log = structlog.get_logger()


@runtime_checkable
class ReadsSiteFactors(Protocol):
    """A client that can read SiteFactors back without a whole snapshot."""

    def site_factors(self) -> dict[int, int]: ...


@dataclass(frozen=True, slots=True)
class TickOutcome:
    """What one cycle came to."""

    outcome: str  # done, off, standby
    mode: str
    ordered: int = 0
    wanted: int = 0  # factors that were not as decided
    applied: int = 0
    drifted: int = 0
    note: str = ""


def _planner(config: Config) -> Planner:
    if config.placement == "mip" and importlib.util.find_spec("mip") is None:
        raise EnvironmentMissing(
            'placement = "mip" needs python-mip, which is not installed: pip install "slurm-rl[mip]", or choose another'
        )
    weights = parse_weights(config.placement_weights, "placement_weights")
    return Planner(PlannerSettings(weights=weights, deferral=rules(config)))


class Controller:
    """Reconciles a Slurm queue with a policy's order; `cycle` does it once, `run` until it is stopped."""

    def __init__(
        self,
        config: Config,
        client: SlurmClient,
        journal: Journal,
        metrics: Metrics | None = None,
        *,
        policy: LivePolicy | None = None,
        clock: Callable[[], float] = time.time,
        holder: str | None = None,
    ) -> None:
        self.config = config
        self.client = client
        self.journal = journal
        self.metrics = metrics or Metrics()
        self._promotions = Promotions(Path(config.state_dir))
        self._promoted = self._promotions.stamp()
        self.policy = policy or load_policy(config.policy, Path(config.state_dir))
        self.clock = clock
        self.holder = holder or own_name()
        self.budget = WriteBudget(config)
        self.planner = _planner(config)
        self.speeds = given_speeds(config)
        self._ran: list[Ran] = []  # on which GPU types finished jobs ran, where speeds are learned
        self.steering = GpuTypeWriter(config, journal)
        self.deferring = StartTimeWriter(config, journal, self.metrics)
        self.run_times = RunTimes()
        self.view: QueueReport | None = None  # of the last tick, for the service; replaced as a whole
        self.observed: tuple[LiveQueue, Plan] | None = None
        self.advisor: Advisor | None = None
        self.heartbeat = clock()
        self.trouble = ""  # why the last tick came to nothing
        self.stopping = threading.Event()
        self.poked = threading.Event()
        self._heard = (self.journal.last_command() or (0, "", ""))[0]
        self._mode = config.mode
        self._written: dict[tuple[int, int], int] = {}
        self._shadow: dict[tuple[int, int], int] = {}
        self._learned_until = 0.0
        self._learned: set[tuple[int, int]] = set()
        self._pruned = 0.0
        self._reviewed = 0.0
        self._absent: dict[Key, float] = {}  # jobs of the journal that are not there, and since when
        self._fallbacks = 0
        self.metrics.set_mode(self._mode)

    @property
    def mode(self) -> str:
        return self._mode

    def tick(self) -> TickOutcome:
        """One tick. Whatever it raises, it has written nothing that is not in the journal."""
        # 1. Who leads, and in which mode?
        mode = self._obey()
        self._renew()
        if mode != "enforce" and self._something_left():
            self._take_back()
        if mode == "off":
            return TickOutcome("off", mode)
        token = self._lead() if mode == "enforce" else 0

        # 2. Observe: Slurm's queue, nodes and factors, and what finished jobs teach.
        began = time.perf_counter()
        said = self.client.snapshot()
        state = self.deferring.own(self.steering.own(said))
        self._learn(state)
        view = observe(state, self.run_times, self.policy.spec, self.speeds, self.config.leave_alone)
        drifted = self._drift(view)
        self._phase("observe", began)

        # 3. Decide.
        began = time.perf_counter()
        guardrails = Guardrails(self.config.influence, self.config.starve_age, self.config.starve_factor)
        plan = self.policy.plan(view.snapshot, guardrails, dict(view.weights), self.config.placement, self.planner)
        note = self._gate(plan)

        # 4. Diff: only what changes the order, the head of the queue first, within the budget.
        self.budget.ease(self.client.health())
        bound = math.floor(self.config.influence * sum(view.weights.values()))
        site = self._virtual(view) if mode == "shadow" else view.site
        if self._fallbacks >= _FALLBACKS:
            wanted = np.zeros(len(view.jobs), dtype=np.int64)
        else:
            wanted = wanted_factors(view, plan, bound, self.config.top_jobs, site, self.budget.per_tick)
        difference = [] if 0 < self._fallbacks < _FALLBACKS else changes(view, plan, wanted, site)
        number = self.journal.tick(
            self.clock(), mode, self.policy.name, self.policy.model, len(plan.order), len(difference), note
        )
        self._publish(view, plan, wanted, bound, number)
        self._phase("decide", began)

        # 5. Journal and apply, within the budget; or, in shadow mode, only record.
        began = time.perf_counter()
        batch = [(view.jobs[j], c) for j, c in in_safe_write_order(difference)]
        applied = 0
        if mode == "shadow":
            self._record_shadow(number, [c for _, c in batch[: self.budget.per_tick]])
            made = self.deferring.imagine(view, plan, number, self.clock())
            self.metrics.updates.labels("shadow").inc(made)
        elif token is None:
            return TickOutcome("standby", mode, len(plan.order), len(difference), 0, drifted, note)
        else:
            self._adopt(state)
            batch = [*self._to_clear(view), *batch][: self.budget.per_tick]
            applied = self._apply(number, token, batch)
            # 6. Read back what was written; the next tick corrects what is not as it should be.
            drifted += self._read_back([c for _, c in batch])
            steered = self._steer(state, view, plan, number, token)
            self._defer(said, view, plan, number, token, self.budget.per_tick - steered)
        self._phase("apply", began)

        # 7. Foresee when jobs may start, for those who ask.
        began = time.perf_counter()
        if self.view is not None:
            deferrals = self.deferring.summary(self.clock())
            self.view = replace(self.view, foreseen=expected_starts(view, plan), deferrals=deferrals)
        self._phase("foresee", began)
        self._count(view, plan, len(difference) - applied if mode == "enforce" else len(difference))
        return TickOutcome("done", mode, len(plan.order), len(difference), applied, drifted, note)

    def _steer(self, state: SlurmState, view: LiveQueue, plan: Plan, tick: int, token: int) -> int:
        """Tells Slurm which GPU types were planned for jobs that start now, and takes back what came to nothing."""
        self.steering.forget(state)
        problem = self.steering.problem(state.release, state.nodes) if self.steering.active else ""
        if problem:
            log.error("placement", error=problem)
            return 0
        steers = self.steering.wanted(view, plan)[: self.budget.per_tick]
        if steers and self._lead() != token:
            raise LostLease("another controller led meanwhile: this tick ends here")
        self.steering.apply(self.client, steers, tick, token, self.clock())
        return len(steers)

    def _defer(self, said: SlurmState, view: LiveQueue, plan: Plan, tick: int, token: int, most: int) -> None:
        """Defers jobs as planned, and lets those start that are no longer deferred; after types are told."""
        self.deferring.settle(said, self.clock())
        puts = self.deferring.wanted(view, plan)[:most]
        if not puts or self.stopping.is_set() or self._obey() != "enforce":
            return
        if self._lead() != token:
            raise LostLease("another controller led meanwhile: this tick ends here")
        self.deferring.apply(self.client, puts, tick, token, self.clock())

    def run(self) -> None:
        """Ticks until stopped. A failing tick leaves Slurm as it is, says so, and the next one tries again."""
        while not self.stopping.is_set():
            began = time.monotonic()
            try:
                tick = self.tick()
                self.metrics.ticks.labels(tick.outcome).inc()
                self.metrics.static.set(0)
                self.trouble = ""
                self.metrics.last_tick.set(self.clock())
                log.info("tick", **{name: getattr(tick, name) for name in TickOutcome.__slots__})
            except LostLease as error:
                self.metrics.leader.set(0)
                self._failed("standby", error)
            except SlurmRlError as error:
                self._failed("static", error)
            except Exception as error:  # a defect of ours must not end the loop: stop writing, keep the last state
                log.exception("tick failed")
                self._failed("static", error)
            self.heartbeat = self.clock()
            self.poked.wait(max(0.0, self.config.interval - (time.monotonic() - began)))
            self.poked.clear()

    def stop(self) -> None:
        """Ends `run` at the next chance."""
        self.stopping.set()
        self.poked.set()

    def reconfigure(self, config: Config) -> None:
        """Takes over another configuration; a policy that is refused leaves everything as it was."""
        learned = config.policy.startswith("rl:")  # its files may have changed
        keep = config.policy == self.config.policy and not learned
        policy = self.policy if keep else load_policy(config.policy, Path(config.state_dir))
        planner = _planner(config)
        if config.mode != self.config.mode:
            self.journal.command(self.clock(), config.mode, "reload")
        self.config, self.policy, self.budget = config, policy, WriteBudget(config)
        self.steering = GpuTypeWriter(config, self.journal)
        self.planner = planner
        self.deferring.follow(config)
        self.speeds = given_speeds(config)
        self.poked.set()

    def command(self, mode: str, who: str) -> None:
        """Changes the mode, from the next tick on."""
        self.journal.command(self.clock(), mode, who)
        self.poked.set()

    def _failed(self, outcome: str, error: Exception) -> None:
        self.metrics.ticks.labels(outcome).inc()
        self.metrics.static.set(outcome == "static")
        self.trouble = str(error) if outcome == "static" else ""
        if isinstance(error, JournalError):
            self.metrics.journal_errors.inc()
        log.error("tick", outcome=outcome, error=str(error))

    def _obey(self) -> str:
        command = self.journal.last_command()
        if command is not None and command[0] > self._heard:
            self._heard, self._mode, who = command
            self._reviewed = 0.0
            log.warning("mode", mode=self._mode, by=who)
            self.metrics.set_mode(self._mode)
        return self._mode

    def _renew(self) -> None:
        """Takes over the model that was promoted meanwhile; if it is not as it should be, the last good one stays."""
        stamp = self._promotions.stamp()
        if self.config.policy != CURRENT or stamp == self._promoted:
            return
        self._promoted = stamp
        try:
            self.policy = load_policy(CURRENT, Path(self.config.state_dir))
            log.warning("model", policy=self.policy.name, model=self.policy.model)
        except SlurmRlError as error:
            self.metrics.models_refused.inc()
            log.error("model", error=str(error), kept=self.policy.model)

    def _lead(self) -> int | None:
        token = self.journal.acquire(self.holder, self.clock(), self.config.lease_seconds)
        self.metrics.leader.set(token is not None)
        return token

    def _something_left(self) -> bool:
        """Whether something of ours may be left: at once if it is known, now and then if it can only be guessed."""
        if self.journal.touched() or self.journal.deferred():
            return True
        due = self.clock() - self._reviewed >= _REVIEW_EVERY
        return due and bool(self.journal.watched() or self.journal.steered())

    def _take_back(self) -> None:
        """Outside enforce mode nothing of ours stays in Slurm."""
        token = self._lead()
        if token is not None:
            self._reviewed = self.clock()
            done = undo(self.client, self.journal, token=token, clock=self.clock)
            log.warning(
                "undo",
                touched=done.touched,
                returned=done.returned,
                left=len(done.left),
                unverified=len(done.unverified),
            )
            self._written.clear()

    def _learn(self, state: SlurmState) -> None:
        """Feeds the estimator with jobs that ended since the last time."""
        now = self.clock()
        if now - self._learned_until < _LEARN_EVERY:
            return
        if setting(state.config, "AccountingStorageType") != "accounting_storage/slurmdbd":
            self._learned_until = now
            return
        start = self._learned_until - 600 if self._learned_until else now - self.config.history_days * 86_400
        try:
            rows = [r for r in self.client.history(start, now) if (r.job_id, r.end_time or 0) not in self._learned]
        except SlurmError as error:
            log.warning("history", error=str(error))
            return
        ended = [r for r in rows if r.end_time]
        self.run_times.learn(finished_jobs(ended, state.nodes))
        self._learned = {k for k in self._learned if k[1] > start} | {(r.job_id, r.end_time or 0) for r in ended}
        self._learned_until = now
        if self.config.gpu_speeds == "learned":
            self._ran = [*self._ran, *ran_on(ended)][-_REMEMBERED:]
            self.speeds = learn_speeds(self._ran)

    def _gate(self, plan: Plan) -> str:
        """Counts ticks without usable scores: the first ones are dropped, then Slurm gets its own order back."""
        if not plan.reasons or not plan.reasons[0].fallback:
            self._fallbacks = 0
            return ""
        self._fallbacks += 1
        self.metrics.fallbacks.inc()
        log.error("scores", policy=self.policy.name, error=str(plan.reasons[0]))
        return "fallback"

    def _virtual(self, view: LiveQueue) -> Array:
        """The factors as they would be had shadow mode written: so that it records each change once."""
        present = {(j.job_id, j.submit_time or 0) for j in view.jobs}
        self._shadow = {key: value for key, value in self._shadow.items() if key in present}
        return np.array([self._shadow.get((j.job_id, j.submit_time or 0), 0) for j in view.jobs], dtype=np.int64)

    def _record_shadow(self, tick: int, batch: list[Change]) -> None:
        if batch:
            self.journal.shadow(tick, self.clock(), batch)
            self._shadow |= {(c.job_id, c.submit_time): c.new for c in batch}
            self.metrics.updates.labels("shadow").inc(len(batch))

    def _adopt(self, state: SlurmState) -> None:
        """Enters jobs that got a factor at submission into the journal, and drops jobs that have none any more."""
        now = self.clock()
        advice = self.journal.advice(now - 600)
        recent = [*advised(state.jobs, advice), *given_unseen(state.jobs, advice)]
        if recent:
            self.journal.adopt([(j.job_id, j.submit_time or 0, j.site_factor or 0) for j in recent], now)
        if now - self._reviewed > _REVIEW_EVERY:
            self._review(state, now)
            self._reviewed = now
        if now - self._pruned > _PRUNE_EVERY:
            self.journal.prune(now - self.config.journal_days * 86_400, self.config.journal_mb * 1e6)
            self._pruned = now

    def _review(self, state: SlurmState, now: float) -> None:
        """Drops jobs from the journal that were seen at 0, or that cannot come back by a requeue."""
        touched = self.journal.touched()
        there = rows_of(state.jobs, touched)
        self._absent = {key: self._absent.get(key, now) for key in touched if key not in there}
        late = now - min_job_age(state) - _REVIEW_EVERY
        over = {key for key, since in self._absent.items() if since < late}
        over |= at_zero(state.jobs, touched) & self.journal.touched_before(now - 2 * _REVIEW_EVERY)
        self.journal.forget(sorted(over))

    def _to_clear(self, view: LiveQueue) -> list[tuple[SlurmJob, Change]]:
        """Factors of ours on jobs that must not have one: given at submission, or before they were exempt."""
        jobs = [j for j in view.state.jobs if j.job_id in view.never]
        if not jobs:
            return []
        found = to_clear(jobs, self.journal.touched(), self.journal.advice(self.clock() - 600))
        why = view.left_alone
        return [(j, Change(j.job_id, j.submit_time or 0, shown(j), 0, why[j.job_id])) for j in found]

    def _apply(self, tick: int, token: int, batch: list[tuple[SlurmJob, Change]]) -> int:
        """Writes in portions of a second's budget; each is committed to the journal before it is sent."""
        rate = self.budget.per_second
        self.metrics.budget.set(rate)
        size = max(1, math.floor(rate))
        applied = 0
        for at in range(0, len(batch), size):
            portion = batch[at : at + size]
            began = time.monotonic()
            if self.stopping.is_set() or self._obey() != "enforce":
                break
            if self._lead() != token:
                raise LostLease("another controller led meanwhile: this tick ends here")
            now = self.clock()
            numbers = self.journal.intend(tick, token, now, [c for _, c in portion])
            if self.clock() - now > _FENCE:
                raise LostLease("stood still between journal and write: nothing is written")
            results = self.client.update([JobUpdate.of(j, site_factor=c.new) for j, c in portion])
            for (_, change), result in zip(portion, results, strict=True):
                self.metrics.updates.labels(result.status.value).inc()
                if result.status is UpdateStatus.APPLIED:
                    self._written[change.job_id, change.submit_time] = change.new
                    applied += 1
            self.journal.settle([(n, r.status.value) for n, r in zip(numbers, results, strict=True)])
            self.heartbeat = self.clock()
            if at + size < len(batch):
                self.stopping.wait(max(0.0, len(portion) / rate - (time.monotonic() - began)))
        return applied

    def _read_back(self, batch: list[Change]) -> int:
        """How many jobs do not have the factor that was just written; started ones are no longer shown."""
        if not batch or not isinstance(self.client, ReadsSiteFactors):
            return 0
        shown = self.client.site_factors()
        written = [c for c in batch if self._written.get((c.job_id, c.submit_time)) == c.new]
        wrong = sum(1 for c in written if shown.get(c.job_id, c.new) != c.new)
        self.metrics.drift.inc(wrong)
        return wrong

    def _drift(self, view: LiveQueue) -> int:
        """How many factors are no longer as written: an operator, a restart or backfill changed them."""
        seen = {(j.job_id, j.submit_time or 0): int(view.site[i]) for i, j in enumerate(view.jobs) if j.pending}
        self._written = {key: value for key, value in self._written.items() if key in seen}
        wrong = [key for key, value in self._written.items() if seen[key] != value]
        for key in wrong:
            del self._written[key]
        self.metrics.drift.inc(len(wrong))
        return len(wrong)

    def _publish(self, view: LiveQueue, plan: Plan, wanted: Array, bound: int, number: int) -> None:
        self.observed = (view, plan)
        self.advisor = Advisor.of(view, plan, wanted, bound, self.policy, self.run_times, self.advisor)
        self.view = QueueReport(view, plan, wanted, bound, number, self._mode, self.policy)

    def _count(self, view: LiveQueue, plan: Plan, unsettled: int) -> None:
        self.metrics.jobs.labels("ordered").set(len(plan.order))
        self.metrics.jobs.labels("left_alone").set(len(view.left_alone))
        self.metrics.jobs.labels("promoted").set(sum(r.promoted for r in plan.reasons))
        self.metrics.jobs.labels("unsettled").set(unsettled)

    def _phase(self, name: str, began: float) -> None:
        self.metrics.tick_seconds.labels(name).observe(time.perf_counter() - began)
