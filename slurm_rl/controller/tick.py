"""The controller's tick: observe, decide, compare, journal, write, read back, report."""

from __future__ import annotations

import functools
import importlib.util
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from slurm_rl.config import Config
from slurm_rl.controller.advice import Advisor
from slurm_rl.controller.auto import AutoPolicies
from slurm_rl.controller.budget import ReadBudget, WriteBudget
from slurm_rl.controller.choices import LiveChoices
from slurm_rl.controller.diff import changes, in_safe_write_order, wanted_factors
from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.explain.held_back import HeldBack
from slurm_rl.controller.explain.limits_seen import LimitsSeen
from slurm_rl.controller.explain.queue_report import QueueReport
from slurm_rl.controller.explain.start_forecast import StartForecasts
from slurm_rl.controller.job_rows import JobRows
from slurm_rl.controller.lane import LaneBook
from slurm_rl.controller.learning import Learning
from slurm_rl.controller.live_policy import AUTO, LivePolicy, guardrails_of, load_policy
from slurm_rl.controller.promise import Supervisor
from slurm_rl.controller.promote import CURRENT, Promotions
from slurm_rl.controller.slurm_snapshot import LiveQueue, observe
from slurm_rl.controller.undo import undo
from slurm_rl.controller.writers.gpu_type import GpuTypeWriter
from slurm_rl.controller.writers.protocol import Turn, Writer
from slurm_rl.controller.writers.site_factor import SiteFactorWriter
from slurm_rl.controller.writers.start_time import StartTimeWriter, rules
from slurm_rl.decide import Guardrails
from slurm_rl.domain.promise import parse_promise
from slurm_rl.domain.snapshot import Plan
from slurm_rl.errors import EnvironmentMissing, SlurmRlError
from slurm_rl.kernel.arrays import Array
from slurm_rl.obs.forecast_store import ForecastStore
from slurm_rl.obs.journal import Change, Journal, JournalError, LostLease
from slurm_rl.obs.lease_holder import own_name
from slurm_rl.obs.metrics import Metrics
from slurm_rl.place.plan import Planner, PlannerSettings
from slurm_rl.place.problem import parse_weights
from slurm_rl.slurm.client import SlurmClient

_FALLBACKS = 3  # ticks without usable scores after which Slurm gets its own order back
_LOOK_EVERY = 60.0  # seconds between looks for something of ours that can only be guessed, outside enforce mode

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TickOutcome:
    """The result of one tick."""

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
    """Reconciles a Slurm queue with a policy's order; `tick` does it once, `run` until it is stopped."""

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
        forecasts: ForecastStore | None = None,
    ) -> None:
        self.config = config
        self.client = client
        self.journal = journal
        self.metrics = metrics or Metrics()
        self._promotions = Promotions(Path(config.state_dir))
        self._promoted = self._promotions.stamp()
        self.auto = self._auto(config) if policy is None else None
        self.choose_with: list[str] | None = None  # arguments of `slurm-rl auto`, for a service that lasts
        self.policy = policy or load_policy(config.policy, Path(config.state_dir))
        self.clock = clock
        self.holder = holder or own_name()
        self.budget = WriteBudget(config)
        self.reading = ReadBudget(self.metrics)
        self.planner = _planner(config)
        self.choices = LiveChoices(journal)
        self.learning = Learning(config, clock)
        self.lane = LaneBook(Path(config.state_dir))
        self.supervisor = Supervisor(parse_promise(config.promise), self.metrics)
        self.forecasts = forecasts or ForecastStore(journal.path.with_name("forecasts.sqlite"))
        self.start_forecasts = StartForecasts(config, self.forecasts, self.metrics, clock)
        self.held_back = HeldBack(self.forecasts)
        self.limits_seen = LimitsSeen()
        self.site_factor = SiteFactorWriter(config, journal, self.metrics, self.budget)
        self.gpu_type = GpuTypeWriter(config, journal)
        self.start_time = StartTimeWriter(config, journal, self.metrics)
        self.writers: tuple[Writer[Any], ...] = (self.site_factor, self.gpu_type, self.start_time)
        self.report: QueueReport | None = None  # of the last tick, for the service; replaced as a whole
        self.observed: tuple[LiveQueue, Plan] | None = None
        self.advisor: Advisor | None = None
        self.heartbeat = clock()
        self.trouble = ""  # why the last tick came to nothing
        self.stopping = threading.Event()
        self.poked = threading.Event()
        self._rows = JobRows()
        self._heard = (self.journal.last_command() or (0, "", ""))[0]
        self._mode = config.mode
        self._looked = 0.0
        self._fallbacks = 0
        self._told = False  # that a policy from outside is not promoted
        self.metrics.set_mode(self._mode)

    @property
    def mode(self) -> str:
        """The mode in effect: a policy from outside stays in shadow until it was promoted."""
        if self._mode == "enforce" and not self._promotions.permitted(self.policy.spec):
            return "shadow"
        return self._mode

    def tick(self) -> TickOutcome:
        """One tick. Whatever it raises, it has written nothing that is not in the journal."""
        # 1. Who leads, and in which mode?
        self._obey()
        self._renew()
        mode = self.mode
        if mode != self._mode and not self._told:
            self._told = True
            log.warning("policy", policy=self.policy.name, effect="shadow", remedy="slurm-rl models promote")
        if mode != "enforce" and self._something_left():
            self._take_back()
        if mode == "off":
            return TickOutcome("off", mode)
        token = self._lead() if mode == "enforce" else 0

        # 2. Observe: the queue as users made it, and what finished jobs teach.
        began = time.perf_counter()
        said = self.client.snapshot()
        state = functools.reduce(lambda seen, writer: writer.own(seen), self.writers, said)
        self.start_forecasts.see(state, *self.learning.learn(self.client, state))
        self.held_back.see(state)
        self.limits_seen.see(self.client, state)
        leave_alone, gpus, limits = self.config.leave_alone, self.learning.gpus, self.limits_seen.in_force
        queue = observe(state, self.run_times, self.policy.spec, gpus, leave_alone, memory=self._rows, limits=limits)
        drifted = self.site_factor.drifted(queue)
        self._phase("observe", began)

        # 3. Decide.
        began = time.perf_counter()
        guardrails = guardrails_of(self.config)
        if guardrails.lane_share:
            self.lane.enter(queue)
        self.supervisor.withhold(queue)
        plan = self._plan(queue, guardrails)
        self.choices.keep(queue.snapshot, plan, self.clock())
        if guardrails.lane_share:
            self.lane.note(queue, plan)
        note = self._gate(plan)
        for line in self.supervisor.watch(queue, plan, self.clock()):
            log.warning("promise", said=line)
            note = "; ".join(filter(None, [note, line]))

        # 4. Compare: only what changes the order, the head of the queue first, within the budget.
        self.budget.ease(self.client.health())
        wanted, bound, difference = self._compare(queue, plan, mode)
        number = self.journal.tick(
            self.clock(), mode, self.policy.name, self.policy.model, len(plan.order), len(difference), note
        )
        self._publish(queue, plan, wanted, bound, number)
        self._phase("decide", began)
        if token is None:
            return TickOutcome("standby", mode, len(plan.order), len(difference), 0, drifted, note)

        # 5. Write, each writer within the budget, and read back; or, in shadow mode, only record.
        began = time.perf_counter()
        factors = [(queue.jobs[j], change) for j, change in in_safe_write_order(difference)]
        may_write = functools.partial(self._may_write, token)
        turn = Turn(said, queue, plan, factors, number, token, self.clock, may_write, self.stopping.wait, log)
        applied = 0
        if mode == "shadow":
            for writer in self.writers:
                writer.imagine(turn, self.budget.per_tick)
        else:
            applied, wrong = self._write(turn)
            drifted += wrong
        self._phase("apply", began)

        # 6. Tell when jobs may start, for those who ask.
        began = time.perf_counter()
        if self.report is not None:
            deferrals = self.start_time.summary(self.clock())
            told = self.start_forecasts.renew(queue, plan, self.policy, mode, self.run_times)
            self.report = self.report.with_forecast(told, deferrals)
        self._phase("foresee", began)
        self._count(queue, plan, len(difference) - applied)
        return TickOutcome("done", mode, len(plan.order), len(difference), applied, drifted, note)

    def _plan(self, queue: LiveQueue, guardrails: Guardrails) -> Plan:
        if self.auto is not None:
            return self.auto.plan(queue, guardrails, self.config.placement, self.planner)
        memory = self.choices.tables(self.policy.spec, queue.snapshot)
        order = functools.partial(self.policy.plan, queue.snapshot, guardrails, dict(queue.weights))
        return order(self.config.placement, self.planner, memory)

    def policies(self) -> list[LivePolicy]:
        """Every policy that may order a part of the queue."""
        return [self.policy] if self.auto is None else self.auto.policies()

    def policy_of(self, partition: str) -> LivePolicy:
        """The policy of a partition's jobs."""
        return self.policy if self.auto is None else self.auto.of(partition)

    @staticmethod
    def _auto(config: Config) -> AutoPolicies | None:
        if config.policy != AUTO:
            return None
        found = AutoPolicies(Path(config.state_dir))
        found.renew()
        return found

    def _compare(self, queue: LiveQueue, plan: Plan, mode: str) -> tuple[Array, int, list[tuple[int, Change]]]:
        """The SiteFactor each job should have, the bound on them, and where they are not so."""
        bound = math.floor(self.config.influence * sum(queue.weights.values()))
        site = queue.site
        if mode == "shadow":
            site = np.array(self.site_factor.imagined(queue), dtype=np.int64)
        if self._fallbacks >= _FALLBACKS:
            wanted = np.zeros(len(queue.jobs), dtype=np.int64)
        else:
            wanted = wanted_factors(queue, plan, bound, self.config.top_jobs, site, self.budget.per_tick)
            wanted[self.supervisor.handed_back(queue)] = 0
            if self.auto is not None:
                wanted[self.auto.left_to_slurm(queue)] = 0
        waiting = 0 < self._fallbacks < _FALLBACKS  # scores may be usable again at the next tick
        return wanted, bound, [] if waiting else changes(queue, plan, wanted, site)

    def _write(self, turn: Turn) -> tuple[int, int]:
        """SiteFactors within the budget, then types and start times within another; (applied, not as written)."""
        self.site_factor.settle(turn)
        writes = self.site_factor.wanted(turn)[: self.budget.per_tick]
        applied = self.site_factor.apply(self.client, writes, turn)
        wrong = self.site_factor.read_back(self.client, writes)
        room = self.budget.per_tick
        for writer in self.writers[1:]:
            writer.settle(turn)
            rest = writer.wanted(turn)[:room]
            if rest and turn.may_write():
                writer.apply(self.client, rest, turn)
                room -= len(rest)
        return applied, wrong

    def _may_write(self, token: int) -> bool:
        """Whether a tick may go on writing; raises LostLease if another controller has led meanwhile."""
        self.heartbeat = self.clock()
        if self.stopping.is_set() or self._obey() != "enforce":
            return False
        if self._lead() != token:
            raise LostLease("another controller led meanwhile: this tick ends here")
        return True

    @property
    def run_times(self) -> RunTimes:
        return self.learning.run_times

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
            self._choose_again()
            self.reading.count(self.client, self.config.mb_per_tick)
            self.poked.wait(max(0.0, self.reading.stretch * self.config.interval - (time.monotonic() - began)))
            self.poked.clear()

    def _choose_again(self) -> None:
        """Lets `slurm-rl auto` look at the last weeks when its choice has grown old."""
        if self.auto is None or self.choose_with is None or self.stopping.is_set():
            return
        if self.auto.due(self.clock(), self.config.auto_days):
            self.choose_policies()

    def choose_policies(self) -> bool:
        """Starts a choice beside the service; False while one is being made, or where nothing is to be chosen."""
        if self.auto is None or self.choose_with is None:
            return False
        return self.auto.choose(self.choose_with, self.clock())

    def stop(self) -> None:
        """Ends `run` at the next chance."""
        if self.auto is not None:
            self.auto.stop()
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
        self.auto = self._auto(config)
        if config.promise != self.config.promise:
            self.supervisor = Supervisor(parse_promise(config.promise), self.metrics)
        self.config, self.policy, self.planner = config, policy, planner
        self.budget = self.site_factor.budget = WriteBudget(config)
        self.learning.follow(config)
        self.start_forecasts.config = config
        for writer in self.writers:
            writer.follow(config)
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
            self._looked = 0.0
            log.warning("mode", mode=self._mode, by=who)
            self.metrics.set_mode(self._mode)
        return self._mode

    def _renew(self) -> None:
        """Takes over the model that was promoted meanwhile; if it is not as it should be, the last good one stays."""
        if self.auto is not None:
            if self.auto.renew():
                self.policy = self.auto.policy
                log.warning("auto", chosen=dict(self.auto.chosen.chosen))
            elif self.auto.trouble:
                log.error("auto", error=self.auto.trouble)
            return
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
        if self.journal.touched():
            return True
        due = not 0 <= self.clock() - self._looked < _LOOK_EVERY  # a clock that was set back must not put it off
        return due and bool(self.journal.deferred() or self.journal.watched() or self.journal.steered())

    def _take_back(self) -> None:
        """Outside enforce mode nothing of ours stays in Slurm."""
        token = self._lead()
        if token is not None:
            done = undo(self.client, self.journal, token=token, clock=self.clock)
            self._looked = self.clock()
            log.warning(
                "undo",
                touched=done.touched,
                returned=done.returned,
                left=len(done.left),
                unverified=len(done.unverified),
            )
            self.site_factor.forget()

    def _gate(self, plan: Plan) -> str:
        """Counts ticks without usable scores: the first ones are dropped, then Slurm gets its own order back."""
        if not plan.reasons or not plan.reasons[0].fallback:
            self._fallbacks = 0
            return ""
        self._fallbacks += 1
        self.metrics.fallbacks.inc()
        log.error("scores", policy=self.policy.name, error=str(plan.reasons[0]))
        return "fallback"

    def _publish(self, queue: LiveQueue, plan: Plan, wanted: Array, bound: int, number: int) -> None:
        self.observed = (queue, plan)
        if self.auto is not None and self.auto.mixed:
            self.advisor = None  # a job's first factor would be that of another partition's policy
        else:
            self.advisor = Advisor.of(queue, plan, wanted, bound, self.policy, self.run_times, self.advisor)
        told = self.start_forecasts.told
        self.report = QueueReport(queue, plan, wanted, bound, number, self._mode, self.policy, told).prepared()

    def _count(self, queue: LiveQueue, plan: Plan, unsettled: int) -> None:
        self.metrics.jobs.labels("ordered").set(len(plan.order))
        self.metrics.jobs.labels("left_alone").set(len(queue.left_alone))
        self.metrics.jobs.labels("promoted").set(int(plan.promoted.sum()))
        self.metrics.jobs.labels("unsettled").set(unsettled)
        for ruler in plan.rulers:
            for kind in ("decisions", "switches", "held_back"):
                self.metrics.choices.labels(ruler.pool, kind).set(getattr(ruler, kind))

    def _phase(self, name: str, began: float) -> None:
        self.metrics.tick_seconds.labels(name).observe(time.perf_counter() - began)
