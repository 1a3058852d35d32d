"""Writes SiteFactors, within the budget, and sees that they stay as written."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from slurm_rl.controller.ours import advised, at_zero, given_unseen, rows_of, shown, to_clear
from slurm_rl.controller.writers.clear_factors import clear_factors, may_return_for
from slurm_rl.controller.writers.protocol import TakeBack, TakenBack, Turn, key_of
from slurm_rl.obs.journal import Change, Journal, Key, LostLease
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import JobUpdate, SlurmJob, SlurmState, UpdateStatus

if TYPE_CHECKING:
    from slurm_rl.config import Config
    from slurm_rl.controller.budget import WriteBudget
    from slurm_rl.controller.slurm_snapshot import LiveQueue
    from slurm_rl.obs.metrics import Metrics

_FENCE = 1.0  # seconds after the journal's word in which a write must begin
_ADVISED = 600.0  # seconds for which advice may still be on its way into a job
_REVIEW_EVERY = 60.0  # seconds between looks at jobs that may have a factor of ours, though none is shown
_PRUNE_EVERY = 3600.0

FactorWrite = tuple[SlurmJob, Change]


@runtime_checkable
class ReadsSiteFactors(Protocol):
    """A client that can read SiteFactors back without a whole snapshot."""

    def site_factors(self, jobs: Sequence[int] = ()) -> dict[int, int]:
        """By job id; of these jobs at least, or of all that Slurm shows."""
        ...


class SiteFactorWriter:
    """Remembers what it wrote, so that a factor that somebody else changed is noticed."""

    name: ClassVar[str] = "site_factor"

    def __init__(self, config: Config, journal: Journal, metrics: Metrics, budget: WriteBudget) -> None:
        self.journal, self.metrics, self.budget = journal, metrics, budget
        self._written: dict[Key, int] = {}
        self._shadow: dict[Key, int] = {}  # what would be in Slurm, had shadow mode written
        self._absent: dict[Key, float] = {}  # jobs of the journal that are not there, and since when
        self._reviewed = 0.0
        self._pruned = 0.0
        self.follow(config)

    def follow(self, config: Config) -> None:
        """Takes over another configuration."""
        self._keep = config.journal_days * 86_400, config.journal_mb * 1e6

    def own(self, state: SlurmState) -> SlurmState:
        """The state as it is: a job's own priority is told apart from our factor (`own_priority`)."""
        return state

    def drifted(self, queue: LiveQueue) -> int:
        """How many factors are no longer as written: an operator, a restart or backfill changed them."""
        if not self._written:
            return 0
        rows = queue.rows_of([key[0] for key in self._written])
        seen = {
            key_of(queue.jobs[i]): site
            for i, site in zip(rows, queue.site[rows].tolist(), strict=True)
            if queue.jobs[i].pending
        }
        self._written = {key: value for key, value in self._written.items() if key in seen}
        wrong = [key for key, value in self._written.items() if seen[key] != value]
        for key in wrong:
            del self._written[key]
        self.metrics.drift.inc(len(wrong))
        return len(wrong)

    def imagined(self, queue: LiveQueue) -> list[int]:
        """The factors as they would be had shadow mode written: it records each change once."""
        present = {key_of(j) for j in queue.jobs}
        self._shadow = {key: value for key, value in self._shadow.items() if key in present}
        return [self._shadow.get(key_of(j), 0) for j in queue.jobs]

    def settle(self, turn: Turn) -> None:
        """Enters jobs that got a factor at submission into the journal, and drops jobs that have none any more."""
        state, now = turn.queue.state, turn.clock()
        advice = self.journal.advice(now - _ADVISED)
        recent = [*advised(state.jobs, advice), *given_unseen(state.jobs, advice)]
        if recent:
            self.journal.adopt([(*key_of(j), j.site_factor or 0) for j in recent], now)
        if now - self._reviewed > _REVIEW_EVERY:
            self._review(state, now)
            self._reviewed = now
        if now - self._pruned > _PRUNE_EVERY:
            age, size = self._keep
            self.journal.prune(now - age, size)
            self._pruned = now

    def _review(self, state: SlurmState, now: float) -> None:
        """Drops jobs from the journal that were seen at 0, or that cannot come back by a requeue."""
        touched = self.journal.touched()
        there = rows_of(state.jobs, touched)
        self._absent = {key: self._absent.get(key, now) for key in touched if key not in there}
        late = now - may_return_for(state)
        over = {key for key, since in self._absent.items() if since < late}
        over |= at_zero(state.jobs, touched) & self.journal.touched_before(now - 2 * _REVIEW_EVERY)
        self.journal.forget(sorted(over))

    def wanted(self, turn: Turn) -> list[FactorWrite]:
        """Factors to clear first, then those to change."""
        return [*self._to_clear(turn), *turn.factors]

    def _to_clear(self, turn: Turn) -> list[FactorWrite]:
        """Factors of ours on jobs that must not have one: given at submission, or before they were exempt."""
        queue = turn.queue
        jobs = [j for j in queue.state.jobs if j.job_id in queue.never]
        if not jobs:
            return []
        found = to_clear(jobs, self.journal.touched(), self.journal.advice(turn.clock() - _ADVISED))
        return [(j, Change(*key_of(j), shown(j), 0, queue.left_alone[j.job_id])) for j in found]

    def imagine(self, turn: Turn, most: int) -> int:
        """Records what would have been written, each change once."""
        batch = [change for _, change in turn.factors[:most]]
        if batch:
            self.journal.shadow(turn.tick, turn.clock(), batch)
            self._shadow |= {(c.job_id, c.submit_time): c.new for c in batch}
            self.metrics.updates.labels("shadow").inc(len(batch))
        return len(batch)

    def apply(self, client: SlurmClient, writes: Sequence[FactorWrite], turn: Turn) -> int:
        """Writes in portions of a second's budget; each is committed to the journal before it is sent."""
        rate = self.budget.per_second
        self.metrics.budget.set(rate)
        size = max(1, math.floor(rate))
        applied = 0
        for at in range(0, len(writes), size):
            portion = writes[at : at + size]
            began = time.monotonic()
            if not turn.may_write():
                break
            now = turn.clock()
            numbers = self.journal.intend(turn.tick, turn.token, now, [c for _, c in portion])
            if turn.clock() - now > _FENCE:
                raise LostLease("stood still between journal and write: nothing is written")
            results = client.update([JobUpdate.of(j, site_factor=c.new) for j, c in portion])
            for (_, change), result in zip(portion, results, strict=True):
                self.metrics.updates.labels(result.status.value).inc()
                if result.status is UpdateStatus.APPLIED:
                    self._written[change.job_id, change.submit_time] = change.new
                    applied += 1
            self.journal.settle([(n, r.status.value) for n, r in zip(numbers, results, strict=True)])
            if at + size < len(writes):
                turn.pause(max(0.0, len(portion) / rate - (time.monotonic() - began)))
        return applied

    def read_back(self, client: SlurmClient, writes: Sequence[FactorWrite]) -> int:
        """How many jobs do not have the factor that was just written; started ones are no longer shown."""
        if not writes or not isinstance(client, ReadsSiteFactors):
            return 0
        now = client.site_factors([c.job_id for _, c in writes])
        written = [c for _, c in writes if self._written.get((c.job_id, c.submit_time)) == c.new]
        wrong = sum(1 for c in written if now.get(c.job_id, c.new) != c.new)
        self.metrics.drift.inc(wrong)
        return wrong

    def forget(self) -> None:
        """Nothing of ours is in Slurm any more."""
        self._written.clear()

    @staticmethod
    def take_back(order: TakeBack) -> TakenBack:
        """Every job of the journal or of our advice gets SiteFactor 0."""
        return clear_factors(order)
