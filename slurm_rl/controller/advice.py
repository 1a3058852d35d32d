"""A first SiteFactor for a job that is being submitted: where the policy would put it in the queue of the last tick."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.observe import View
from slurm_rl.controller.policy import LivePolicy
from slurm_rl.controller.scores import own_scores, score_jobs
from slurm_rl.domain.arrays import JOB, LIVE, POOL, SHAPE, USER, Array
from slurm_rl.domain.snapshot import Plan
from slurm_rl.domain.tables import World
from slurm_rl.policy.registry import settings_for


@dataclass(frozen=True, slots=True)
class Submission:
    """What the plugin tells of a job."""

    user: str
    name: str
    partition: str
    gpus: int
    cpus: int
    limit: int  # seconds; 0: the partition's default


@dataclass(frozen=True, slots=True)
class Advice:
    """A SiteFactor and why."""

    site_factor: int
    reason: str


class Advisor:
    """Ranks new jobs against the scores of the last tick; made anew by every tick, used by one thread."""

    def __init__(self, bound: int, policy: LivePolicy, run_times: RunTimes) -> None:
        self.bound = bound
        self.policy = policy
        self.run_times = run_times
        self.default_partition = ""
        self.limits: dict[str, int] = {}
        self.queues: dict[str, tuple[list[float], list[int]]] = {}  # partition -> falling scores (negated), factors
        self.gpus_per_cpu: dict[str, float] = {}
        self._world: World | None = None

    @classmethod
    def of(cls, view: View, plan: Plan, wanted: Array, bound: int, policy: LivePolicy, run_times: RunTimes) -> Advisor:
        self = cls(bound, policy, run_times)
        partitions = view.state.partitions
        self.default_partition = next((p.name for p in partitions if p.default), "")
        self.limits = {p.name: p.default_time or p.max_time or 365 * 86_400 for p in partitions}
        if policy.score is not None or len(plan.order) < 2:
            return self
        order = np.array(plan.order, dtype=np.int64)
        scores = own_scores(view, plan, policy)
        names = np.array([view.jobs[j].partitions[0] for j in order.tolist()])
        for name in dict.fromkeys(names.tolist()):
            mine = np.flatnonzero(names == name)
            best = mine[np.argsort(-scores[mine], kind="stable")]
            self.queues[name] = ((-scores[best]).tolist(), wanted[order[best]].tolist())
        self._world = _one_job(view, policy)
        for p in partitions:
            members = [n for n in view.state.nodes if p.name in n.partitions]
            gpus, cpus = sum(sum(n.gpus.values()) for n in members), sum(n.cpus for n in members)
            self.gpus_per_cpu[p.name] = gpus / max(cpus, 1) if gpus else 1.0
        return self

    def advise(self, job: Submission, now: float) -> Advice | None:
        """None where nothing is known: the job then goes on without a factor until the next tick."""
        partition = (job.partition or self.default_partition).partition(",")[0]
        queue = self.queues.get(partition)
        if queue is None or self._world is None:
            return None
        world, limit = self._world, job.limit or self.limits.get(partition, 365 * 86_400)
        volume = float(job.gpus) if job.gpus else max(job.cpus, 1) * self.gpus_per_cpu.get(partition, 1.0)
        row = world["jobs"]
        row["submit"], row["limit"] = int(now), max(limit, 1)
        row["group"] = self.run_times.groups_of(job.user, job.name, volume, job.gpus > 0, limit)
        world["groups"] = self.run_times.table()
        world["shapes"]["volume"] = max(volume, 1e-9)
        world["live"]["expected"] = 0.0
        score = np.empty(1)
        score_jobs(world.record, float(int(now)), np.zeros(1, dtype=np.int64), score)
        if not np.isfinite(score[0]):
            return None
        falling, factors = queue
        at = bisect.bisect_right(falling, -float(score[0]))
        beside = factors[max(at - 1, 0) : at + 1]
        factor = round(sum(beside) / len(beside))
        factor = max(-self.bound, min(self.bound, factor))
        return Advice(factor, f"{self.policy.name} would put it at {at + 1} of {len(falling) + 1}")


def _one_job(view: View, policy: LivePolicy) -> World:
    """The little that the heuristics look at, for one job."""
    world = World(
        jobs=np.zeros(1, dtype=JOB),
        live=np.zeros(1, dtype=LIVE),
        shapes=np.zeros(1, dtype=SHAPE),
        pools=np.ones(1, dtype=POOL),
        users=np.zeros(1, dtype=USER),
        groups=view.snapshot.world["groups"],
        partition_factor=np.zeros(1),
        qos_factor=np.zeros(1),
    )
    world["jobs"]["deadline"] = -1
    settings = settings_for(policy.spec, backfill=2, placer=0, influence=1.0, preempt=False, weights=dict(view.weights))
    for name, value in settings.items():
        world[name] = value
    return world
