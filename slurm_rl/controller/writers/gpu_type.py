"""Writes a plan's GPU types as features of jobs that are about to start, and takes them back.

A job that any of several GPU types would serve gets the planned type's feature: hard (`features`), or as a wish
(`prefer`). Jobs that name a type or carry a constraint of their own are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import msgspec

from slurm_rl.controller.ours import keys_of, rows_of
from slurm_rl.controller.writers.clear_factors import may_return_for
from slurm_rl.controller.writers.protocol import IN_FLIGHT, TakeBack, TakenBack, Turn, return_all
from slurm_rl.obs.journal import Journal, JournalError, Key, Steered
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.gpufeatures import feature_names, lacking
from slurm_rl.slurm.model import JobUpdate, SlurmJob, SlurmState, UpdateStatus
from slurm_rl.slurm.release import prefer_is_sound

if TYPE_CHECKING:
    from slurm_rl.config import Config
    from slurm_rl.controller.slurm_snapshot import LiveQueue
    from slurm_rl.domain.snapshot import Plan


def steerable(job: SlurmJob, field: str) -> str:
    """Why a job's type is not ours to choose; "" if it is."""
    if not job.gpu_count:
        return "asks for no GPUs"
    if any(kind for kind, count in job.gpus.items() if kind and count):
        return "names its GPU type"
    if job.required_nodes:
        return "names its nodes"
    if job.prefer:
        return "has a preference of its own"
    if job.features and field == "features":
        return "has a constraint of its own"
    if job.array_task_count > 1:
        return "is an array whose tasks start one by one"
    return ""


@dataclass(frozen=True, slots=True)
class FeatureWrite:
    """One feature expression to write."""

    key: Key  # in the journal
    job: SlurmJob
    value: str
    own: str  # what the user asked for
    why: str


class GpuTypeWriter:
    """Follows a job from the tick that planned a type for it until it starts, or has its own features again."""

    name: ClassVar[str] = "gpu_type"

    def __init__(self, config: Config, journal: Journal) -> None:
        self.follow(config)
        self.journal = journal
        self._ticks: dict[Key, int] = {}  # ticks since a job was steered, without a start
        self._resting: dict[Key, int] = {}  # jobs that got their own back, and for how many ticks they are left alone

    def follow(self, config: Config) -> None:
        """Takes over another configuration."""
        self.field = config.placement_lever
        self.names = feature_names(config.gpu_features)
        self.patience = config.placement_ticks

    @property
    def active(self) -> bool:
        return self.field != "off"

    def _problem(self, state: SlurmState) -> str:
        """Why nothing may be steered on this site; "" if it may."""
        if not self.active:
            return ""
        if self.field == "prefer" and not prefer_is_sound(state.release):
            return f"Slurm {state.release} does not keep Prefer= apart from a user's constraint"
        missing = lacking(state.nodes, self.names)
        return f"no such feature on {next(iter(missing.values()))[0]}: {next(iter(missing))}" if missing else ""

    def own(self, state: SlurmState) -> SlurmState:
        """The state as users made it: expressions that we wrote replaced by what was there before."""
        steered = self.journal.steered()
        if not steered:
            return state
        jobs = []
        for key, job in zip(keys_of(state.jobs, steered), state.jobs, strict=True):
            ours = steered.get(key)
            if ours is not None and getattr(job, ours.field) == ours.value:
                jobs.append(msgspec.structs.replace(job, **{ours.field: ours.own}))
            else:
                jobs.append(job)
        return msgspec.structs.replace(state, jobs=tuple(jobs))

    def settle(self, turn: Turn) -> None:
        """Drops jobs from the journal that are gone for good, or that somebody gave another expression.

        A job that runs, or ended a moment ago, waits again with our expression if it is requeued.
        """
        steered, now = self.journal.steered(), turn.clock()
        if not steered:
            return
        jobs = turn.said.jobs
        absent = steered.keys() - rows_of(jobs, steered)
        old = self.journal.steered_before(now - IN_FLIGHT)
        changed = {
            key
            for key, job in zip(keys_of(jobs, steered), jobs, strict=True)
            if key in old and job.pending and getattr(job, steered[key].field) != steered[key].value
        }
        self.journal.release_steered(sorted(changed | gone_for_good(self.journal, absent, turn.said, now)))

    def wanted(self, turn: Turn) -> list[FeatureWrite]:
        """What to write: the planned type of jobs that start now, and users' own where a start did not come."""
        problem = self._problem(turn.queue.state)
        if problem:
            turn.log.error("placement", error=problem)
            return []
        steered = self.journal.steered()
        if not (steered or self.active or self._resting):
            return []
        pending = [j for j in turn.queue.state.jobs if j.pending]
        waiting = dict(zip(keys_of(pending, steered), pending, strict=True))
        planned = self._planned(turn.queue, turn.plan, steered) if self.active else {}
        self._resting = {k: n - 1 for k, n in self._resting.items() if n > 1 and k in waiting}
        self._ticks = {k: self._ticks.get(k, 0) + 1 for k in steered if k in waiting}
        found = []
        for key, (job, feature, kind) in planned.items():
            value = feature if not job.features else f"({job.features})&{feature}"
            before = steered.get(key)
            if key in self._resting or (before is not None and before.value == value):
                continue
            found.append(FeatureWrite(key, job, value, getattr(job, self.field), f"planned to start on {kind}"))
            self._ticks[key] = 0
        for key, ours in steered.items():
            late = self._ticks.get(key, 0) >= self.patience
            if key not in waiting or not (late or ours.field != self.field):
                continue
            found = [s for s in found if s.key != key]
            found.append(FeatureWrite(key, waiting[key], ours.own, ours.own, "it did not start: the user's own again"))
            self._resting[key] = self.patience
        return found

    def _planned(self, queue: LiveQueue, plan: Plan, steered: Iterable[Key]) -> dict[Key, tuple[SlurmJob, str, str]]:
        """Jobs that start now on one GPU type, of several that would do."""
        world = queue.snapshot.world
        nodes, requests = world["nodes"], world["requests"]
        found = {}
        keys = keys_of((queue.jobs[start.job] for start in plan.starts), steered)
        for key, start in zip(keys, plan.starts, strict=True):
            job = queue.jobs[start.job]
            kinds = {queue.gpu_types[int(nodes["type"][n])] for n, _ in start.nodes}
            several = any(
                len(set(world["devices"][nodes["klass"][n], :, 0].tolist()) - {-1}) > 1 for n, _ in start.nodes
            )
            if len(kinds) != 1 or several or steerable(job, self.field):
                continue  # a node's feature does not say which of its types a job gets
            kind = int(requests["kind"][world["jobs"]["request"][start.job]])
            mine = world["kind_node"][world["kind_ptr"][kind] : world["kind_ptr"][kind + 1]]
            if len({int(t) for t in nodes["type"][mine]}) > 1:
                (name,) = kinds
                found[key] = (job, self.names.get(name.lower(), name), name)
        return found

    def imagine(self, turn: Turn, most: int) -> int:
        """Shadow mode records no types: a plan that is not carried out is made anew at every tick."""
        return 0

    def apply(self, client: SlurmClient, writes: Sequence[FeatureWrite], turn: Turn) -> int:
        """Journals and writes; how many were applied.

        A job that has an expression of ours gets its user's own first, and another one then: at any moment the journal
        names the one that it has, whenever we are killed.
        """
        before = self.journal.steered()
        first = [s for s in writes if s.key in before]
        self.journal.steer(turn.token, turn.clock(), [])  # raises if another one leads
        results = client.update([features_update(s.job, own_again(before[s.key])) for s in first])
        freed = {s.key for s, r in zip(first, results, strict=True) if r.applied}
        self.journal.release_steered(sorted(freed))
        done = [(s, r) for s, r in zip(first, results, strict=True) if s.value == s.own or not r.applied]
        rest = [s for s in writes if s.value != s.own and (s.key not in before or s.key in freed)]
        rows = [Steered(self.field, s.value, s.own) for s in rest]
        self.journal.steer(turn.token, turn.clock(), [(s.key, row) for s, row in zip(rest, rows, strict=True)])
        results = client.update([features_update(s.job, row) for s, row in zip(rest, rows, strict=True)])
        done += zip(rest, results, strict=True)
        refused = [s.key for s, r in zip(rest, results, strict=True) if r.status is UpdateStatus.REFUSED]
        self.journal.release_steered(refused)
        for s, r in done:
            turn.log.info("steer", tick=turn.tick, job=s.job.job_id, value=s.value, why=s.why, status=r.status.value)
        return sum(r.applied for _, r in done)

    @staticmethod
    def take_back(order: TakeBack) -> TakenBack:
        """Every waiting job that was steered gets its user's own expression.

        A running job's cannot be changed, nor that of one that has ended. Its row stays as long as it may be requeued,
        because then the job waits with our expression.
        """
        journal = order.journal

        def over(absent: Mapping[Key, Steered], state: SlurmState) -> set[Key]:
            try:
                return gone_for_good(journal, absent.keys(), state, order.clock())
            except JournalError:  # a full disk: nothing is forgotten
                return set()

        return return_all(
            order,
            journal.steered,
            journal.release_steered,
            lambda job, row: getattr(job, row.field) == row.value != row.own,
            lambda job, row: features_update(job, own_again(row)),
            over,
        )


def gone_for_good(journal: Journal, absent: Iterable[Key], state: SlurmState, now: float) -> set[Key]:
    """Of steered jobs that are not there, those that nobody can requeue any more."""
    late = now - may_return_for(state)
    return {key for key, since in journal.absent_since(absent, now).items() if since < late}


def own_again(row: Steered) -> Steered:
    """The row of a job that has its user's own expression."""
    return replace(row, value=row.own)


def features_update(job: SlurmJob, row: Steered) -> JobUpdate:
    """The update that writes a feature expression."""
    if row.field == "prefer":
        return JobUpdate.of(job, prefer=row.value)
    return JobUpdate.of(job, features=row.value)
