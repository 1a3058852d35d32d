"""Defers a job that fits by a StartTime that ends by itself.

A job that the plan defers gets the second until which it may wait. A job that the plan no longer defers may start at
once again. Whoever else changes a job's start time has the last word: such a job is not touched any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import msgspec

from slurm_rl.controller.ours import keys_of
from slurm_rl.controller.writers.gpu_type import steerable
from slurm_rl.controller.writers.protocol import TakeBack, TakenBack, Turn, return_all
from slurm_rl.obs.journal import Deferred, Journal, Key
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import JobUpdate, PriorityFactors, SlurmJob, SlurmState, UpdateStatus

if TYPE_CHECKING:
    from slurm_rl.config import Config
    from slurm_rl.obs.metrics import Metrics
    from slurm_rl.place.defer import Deferral

SLACK = 5  # seconds that a plain submission, or a lift, may take to become eligible


def rules(config: Config) -> Deferral | None:
    """How long jobs may be deferred, as configured; None: not at all."""
    if not config.placement_defer:
        return None
    from slurm_rl.place.defer import Deferral  # it imports arrays, which undo must not

    return Deferral(seconds=float(config.placement_defer))


def deferrable(job: SlurmJob) -> str:
    """Why a job is not ours to defer; "" if it is."""
    if job.eligible_time is None or job.submit_time is None:
        return "Slurm has not looked at it yet"
    if job.eligible_time - job.submit_time > SLACK:
        return "its start time may be its user's"
    if job.deadline is not None:
        return "has a deadline"
    return steerable(job, "features")


def still_ours(job: SlurmJob, row: Deferred) -> bool:
    """Whether a job's start time is the one that we wrote."""
    if job.eligible_time is None:
        return False
    return 0 <= job.eligible_time - row.written <= (SLACK if row.lifted else 0)


@dataclass(frozen=True, slots=True)
class StartTimeWrite:
    """A start time to write; `row` is what the journal will say of the job."""

    key: Key  # in the journal
    job: SlurmJob
    row: Deferred
    why: str


class StartTimeWriter:
    """Follows jobs that were deferred until they start, and counts what it was good for."""

    name: ClassVar[str] = "start_time"

    def __init__(self, config: Config, journal: Journal, metrics: Metrics) -> None:
        self.follow(config)
        self.journal = journal
        self.metrics = metrics
        self.ended: Counter[str] = Counter()
        self.made = 0
        self._absent: set[Key] = set()  # jobs that have ended, and may be requeued
        self._imagined: dict[Key, Deferred] = {}  # what would be in the journal, had shadow mode written
        self._factors: dict[Key, PriorityFactors] = {}  # as they were last shown: sprio hides jobs with a start time

    def follow(self, config: Config) -> None:
        """Takes over another configuration."""
        self.rules = rules(config)
        self.horizon = 1.5 * config.interval  # what would end before the next tick is renewed now, or never
        self.patience = config.placement_ticks * config.interval

    def own(self, state: SlurmState) -> SlurmState:
        """The state as users made it: jobs that we deferred are eligible, with the priority they had."""
        rows = self.journal.deferred()
        if not rows:
            return state
        touched = self.journal.touched()
        jobs = []
        for key, job in zip(keys_of(state.jobs, rows), state.jobs, strict=True):
            row = rows.get(key)
            if row is None or not job.pending or not still_ours(job, row):
                jobs.append(job)
                continue
            factors = job.factors or self._remembered(key, job, touched.get(key))
            own = max(row.own, job.submit_time or 0)  # a requeue is another submission
            jobs.append(msgspec.structs.replace(job, eligible_time=own, factors=factors))
        return msgspec.structs.replace(state, jobs=tuple(jobs))

    def _remembered(self, key: Key, job: SlurmJob, site: int | None) -> PriorityFactors:
        known = self._factors.get(key)
        if known is None:  # of a controller that ran before us: the sum is all that Slurm shows
            whole = job.priority - (site or 0)
            return PriorityFactors(job.priority, 0, 0, 0, 0, whole, 0, site or 0, 0, 0, 0.0)
        if site is None:
            return known
        return msgspec.structs.replace(known, site=site, priority=known.priority - known.site + site)

    def wanted(self, turn: Turn) -> list[StartTimeWrite]:
        """What to write: start times of jobs to defer, and lifts of those that are no longer deferred."""
        return self._wanted(turn, self.journal.deferred())

    def imagine(self, turn: Turn, most: int) -> int:
        """Records what would have been written, each start time once; how many. Slurm is told nothing."""
        if self._imagined:
            waiting = set(keys_of((j for j in turn.queue.jobs if j.pending), self._imagined))
            self._imagined = {key: row for key, row in self._imagined.items() if key in waiting}
        puts = self._wanted(turn, self._imagined)
        self._imagined |= {p.key: p.row for p in puts}
        made = [(p.key, p.row) for p in puts if not p.row.lifted]
        if made:
            self.journal.shadow_deferrals(turn.tick, turn.clock(), made)
        for p in puts:
            until = 0 if p.row.lifted else p.row.written
            turn.log.info("defer", tick=turn.tick, job=p.job.job_id, until=until, why=p.why, status="shadow")
        self.metrics.updates.labels("shadow").inc(len(made))
        return len(made)

    def _wanted(self, turn: Turn, rows: dict[Key, Deferred]) -> list[StartTimeWrite]:
        queue, plan, now = turn.queue, turn.plan, turn.queue.now
        if not rows and not plan.deferrals:
            return []
        pending = [j for j in queue.jobs if j.pending]
        waiting = dict(zip(keys_of(pending, rows), pending, strict=True))
        deferrals = dict(zip(keys_of((queue.jobs[d.job] for d in plan.deferrals), rows), plan.deferrals, strict=True))
        found = []
        for key, old in rows.items():
            if key in waiting and key not in deferrals and old.lasts(now):
                lifted = replace(old, written=now, lifted=True)
                found.append(StartTimeWrite(key, waiting[key], lifted, "no longer deferred"))
        for key, d in deferrals.items():
            job, row = waiting[key], rows.get(key)
            times = row.times if row is not None else 0
            if row is not None and (row.lasts(now + self.horizon) or row.lasts(d.until - 1)):
                continue
            if self.rules is None or times >= self.rules.times or deferrable(job):
                continue
            kind = queue.gpu_types[d.awaits]
            self._factors[key] = job.factors or self._remembered(key, job, None)
            put = Deferred(d.until, False, job.eligible_time or 0, d.until, kind, times + 1)
            found.append(StartTimeWrite(key, job, put, kind))
        self._factors = {k: f for k, f in self._factors.items() if k in waiting}
        return found

    def apply(self, client: SlurmClient, writes: Sequence[StartTimeWrite], turn: Turn) -> int:
        """Journals and writes; how many were applied.

        A lift is entered when it is done: until then the job has the start time that the journal names.
        """
        now = turn.clock()  # writing SiteFactors may have taken a while
        puts = [replace(p, row=replace(p.row, written=int(now))) if p.row.lifted else p for p in writes]
        puts = [p for p in puts if p.row.lifted or p.row.lasts(now + 1)]
        if not puts:
            return 0
        before = self.journal.deferred()
        self.journal.defer(turn.token, now, [(p.key, p.row) for p in puts if not p.row.lifted])
        updates = [JobUpdate.of(p.job, start_at=0 if p.row.lifted else p.row.written) for p in puts]
        results = client.update(updates)
        lifted = [(p.key, p.row) for p, r in zip(puts, results, strict=True) if p.row.lifted and r.applied]
        refused = [p for p, r in zip(puts, results, strict=True) if r.status is UpdateStatus.REFUSED]
        kept = [(p.key, before[p.key]) for p in refused if not p.row.lifted and p.key in before]
        self.journal.settle_deferred(now, lifted + kept)
        self.journal.release_deferred([p.key for p in refused if p.key not in before])
        for p, r in zip(puts, results, strict=True):
            until = 0 if p.row.lifted else p.row.written
            turn.log.info("defer", tick=turn.tick, job=p.job.job_id, until=until, why=p.why, status=r.status.value)
            self.metrics.updates.labels(r.status.value).inc()
        made = sum(r.applied and not p.row.lifted for p, r in zip(puts, results, strict=True))
        self.made += made
        self.metrics.deferrals.inc(made)
        return sum(r.applied for r in results)

    def settle(self, turn: Turn) -> None:
        """Counts what became of jobs that were deferred, and forgets those that wait no more."""
        state, now = turn.said, turn.clock()
        rows = self.journal.deferred()
        jobs = dict(zip(keys_of(state.jobs, rows), state.jobs, strict=True)) if rows else {}
        self._absent = {key for key in rows if key not in jobs}
        over, late = [], []
        for key, row in rows.items():
            job = jobs.get(key)
            if job is not None and job.pending:
                if not still_ours(job, row):
                    over.append((key, "changed"))
                elif now > row.due + self.patience and not row.settled:
                    late.append((key, replace(row, settled=True)))
            elif job is not None:
                over.append((key, self._came_to(job, row, state)))
            elif not row.lasts(now):  # until then a requeue would bring our start time back
                over.append((key, "gone"))
        self.journal.settle_deferred(now, late)
        self.journal.release_deferred([key for key, _ in over])
        for outcome in ["late"] * len(late) + [what for key, what in over if not rows[key].settled]:
            self.ended[outcome] += 1
            self.metrics.deferred_ended.labels(outcome).inc()
        for kind, rate in self.rates().items():
            self.metrics.deferral_rate.labels(kind).set(float("nan") if rate is None else rate)
        self.metrics.jobs.labels("deferred").set(self._lasting(now))

    def _came_to(self, job: SlurmJob, row: Deferred, state: SlurmState) -> str:
        if (job.start_time or 0) > row.due + self.patience:
            return "late"
        held = set(job.node_list)
        kinds = {kind for n in state.nodes if n.name in held for kind, count in n.gpus.items() if kind and count}
        return "awaited_type" if kinds == {row.awaits} else "other_type"

    def _lasting(self, now: float) -> int:
        return sum(row.lasts(now) for key, row in self.journal.deferred().items() if key not in self._absent)

    def rates(self) -> dict[str, float | None]:
        """Shares of jobs that started in time, and in time on the awaited type; None before there is one."""
        success, other, late = (self.ended[what] for what in ("awaited_type", "other_type", "late"))
        whole = success + other + late
        if not whole:
            return {"allocation": None, "success": None}
        return {"allocation": (success + other) / whole, "success": success / whole}

    def summary(self, now: float) -> dict[str, float | None]:
        """For readers of the queue."""
        rates = {f"{kind}_rate": rate for kind, rate in self.rates().items()}
        return {"jobs": self._lasting(now), "made": self.made, **rates}

    @staticmethod
    def take_back(order: TakeBack) -> TakenBack:
        """Every waiting job that has a start time of ours may start again; a past one means nothing."""
        journal, now = order.journal, order.clock
        return return_all(
            order,
            journal.deferred,
            journal.release_deferred,
            lambda job, row: job.pending and row.lasts(now()) and still_ours(job, row),
            lambda job, row: JobUpdate.of(job, start_at=0),
            lambda absent, state: {key for key, row in absent.items() if not row.lasts(now())},
        )
