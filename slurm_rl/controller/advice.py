"""A first SiteFactor at submission: from the job's rank in the last tick's queue."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

import numpy as np

from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.live_policy import LivePolicy
from slurm_rl.controller.scores import estimate_new, score_new
from slurm_rl.controller.slurm_snapshot import LiveQueue
from slurm_rl.domain.sizes import job_size, weights_by_partition
from slurm_rl.domain.snapshot import Plan
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.linking import link_slot
from slurm_rl.kernel.tables import World
from slurm_rl.kernel.world import bare_world
from slurm_rl.policy.multifactor import RELATIVE_TO_TIME, size_share
from slurm_rl.policy.registry import settings_for
from slurm_rl.slurm.model import PriorityWeights

_YEAR = 365 * 86_400


@dataclass(frozen=True, slots=True)
class Submission:
    """What the plugin tells of a job."""

    user: str
    name: str
    partition: str
    gpus: int
    cpus: int
    limit: int  # seconds; 0: the partition's default
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class FirstFactor:
    """A SiteFactor and why."""

    site_factor: int
    reason: str


@dataclass(slots=True)
class _Line:
    """A partition's jobs in the policy's own order, those submitted since the tick included."""

    falling: list[float] = field(default_factory=list)  # scores, negated
    places: list[int] = field(default_factory=list)  # factors, and what Slurm adds for the jobs' sizes
    best: int = 0  # how often a job came to the front since the tick …
    worst: int = 0  # … and to the end

    def enter(self, score: float, bound: int, size: int, floor: int) -> tuple[int, int]:
        """Puts a job in line; its position and its factor: between its neighbours, or a step beyond the first or last.

        The first of all gets the middle, and steps get smaller with every job that goes there: so a long run of ever
        shorter jobs finds room. They end at the bound of factors and at `floor`, the place below which nobody is to be.
        """
        top, bottom = size + bound, max(size - bound, min(size, floor))
        at = bisect.bisect_right(self.falling, -score)
        above = self.places[at - 1] if at else None
        below = self.places[at] if at < len(self.places) else None
        if above is not None and below is not None:
            place = (above + below) // 2
        elif below is not None:
            self.best += 1
            place = below + max((top - below) // (1 + self.best), 1)
        elif above is not None:
            self.worst += 1
            place = above - max((above - bottom) // (1 + self.worst), 1)
        else:
            place = (top + bottom) // 2
        factor = max(bottom, min(top, place)) - size
        self.add(score, factor + size)
        return at, factor

    def add(self, score: float, place: int) -> None:
        """Puts a job in line that has its place already."""
        at = bisect.bisect_right(self.falling, -score)
        self.falling.insert(at, -score)
        self.places.insert(at, place)


class Advisor:
    """Ranks new jobs against the scores of the last tick; made anew by every tick, used by one thread."""

    def __init__(self, bound: int, policy: LivePolicy, run_times: RunTimes) -> None:
        self.bound = bound
        self.other = 0  # what Slurm gives every job at least, beside what it gives for its size
        self.floor = 1  # the least priority that jobs are left with
        self.policy = policy
        self.run_times = run_times
        self.default_partition = ""
        self.limits: dict[str, int] = {}
        self.lines: dict[str, _Line] = {}
        self.gpus_per_cpu: dict[str, float] = {}
        self.since: list[tuple[float, str, float, int]] = []  # time, partition, score and place of jobs advised since
        self._weights = PriorityWeights()
        self._machine = (1, 1)  # CPUs and nodes
        self._world: World | None = None
        self._alike: dict[str, tuple[Array, Array]] = {}  # partition -> what its jobs are like, and their scores

    @classmethod
    def of(
        cls,
        queue: LiveQueue,
        plan: Plan,
        wanted: Array,
        bound: int,
        policy: LivePolicy,
        run_times: RunTimes,
        last: Advisor | None = None,
    ) -> Advisor:
        """The advisor after a tick; jobs that the last one advised after this tick's snapshot stay in line."""
        self = cls(bound, policy, run_times)
        self.floor = queue.floor
        order = np.array(plan.order, dtype=np.int64)
        sizes = queue.size[order]
        sized = (queue.base[order] - sizes)[sizes >= 0] if len(order) else order
        self.other = int(sized.min()) if len(sized) else 0 if last is None else last.other
        partitions = queue.state.partitions
        self.default_partition = next((p.name for p in partitions if p.default), "")
        self.limits = {p.name: p.default_time or p.max_time or _YEAR for p in partitions}
        if bound <= 0 or not policy.advisable:
            return self
        self.lines = {p.name: _Line() for p in partitions}
        scores = np.nan_to_num(plan.scores, posinf=1e300, neginf=-1e300)
        first = queue.first[order]
        for number in np.unique(first).tolist():
            name = queue.partitions[number]
            mine = np.flatnonzero(first == number)
            best = mine[np.argsort(-scores[mine], kind="stable")]
            places = wanted[order[best]] + np.maximum(sizes[best], 0)
            self.lines[name] = _Line((-scores[best]).tolist(), places.tolist())
            if policy.context_free:
                continue
            jobs, requests = queue.snapshot.world["jobs"], queue.snapshot.world["requests"]
            rows = order[mine]
            volume = requests["volume"][jobs["request"][rows]]
            waited = np.maximum(queue.now - jobs["submit"][rows], 0)
            self._alike[name] = (_likeness(queue.estimate[rows], volume, waited), scores[mine])
        self._world = _one_job(queue, policy)
        self._weights, nodes = queue.state.weights, queue.state.nodes
        self._machine = (max(sum(n.cpus for n in nodes), 1), max(len(nodes), 1))
        self.gpus_per_cpu = weights_by_partition(nodes)
        for when, name, score, place in last.since if last is not None and last.policy is policy else []:
            if when > queue.state.taken and name in self.lines:
                self.lines[name].add(score, place)
                self.since.append((when, name, score, place))
        return self

    def advise(self, job: Submission, now: float) -> FirstFactor | None:
        """None where nothing is known: the job then goes on without a factor until the next tick."""
        partition = (job.partition or self.default_partition).partition(",")[0]
        line = self.lines.get(partition)
        if line is None or self._world is None:
            return None
        score = self._score(self._world, job, partition, int(now))
        if not np.isfinite(score):
            return None
        size = self._size(job, partition)
        at, factor = line.enter(score, self.bound, size, self.floor - self.other)
        self.since.append((now, partition, score, factor + size))
        return FirstFactor(factor, f"{self.policy.name} would put it at {at + 1} of {len(line.falling)}")

    def _size(self, job: Submission, partition: str) -> int:
        """What Slurm will add to the job's priority for its size (M1)."""
        cpus, nodes = self._machine
        asked = np.array([min(job.cpus, cpus)]), np.array([min(job.nodes, nodes)])
        relative = RELATIVE_TO_TIME in self._weights.flags
        limit = np.array([self._limit(job, partition)])
        share = size_share(*asked, cpus, nodes, limit, small=self._weights.favor_small, relative=relative)
        return round(self._weights.job_size * float(share[0]))

    def _limit(self, job: Submission, partition: str) -> int:
        return max(job.limit or self.limits.get(partition, _YEAR), 1)

    def _score(self, world: World, job: Submission, partition: str, now: int) -> float:
        limit = self._limit(job, partition)
        volume = float(job_size(job.gpus, max(job.cpus, 1), self.gpus_per_cpu.get(partition, 1.0)))
        row = world["jobs"]
        row["submit"], row["limit"] = now, limit
        row["group"] = self.run_times.known_groups(job.user, job.name, volume, job.gpus > 0, limit)
        world["groups"] = self.run_times.table()
        world["requests"]["volume"] = volume
        if self.policy.context_free:
            return float(score_new(world.record, float(now)))
        estimate_new(world.record)
        # A network scores a job among the others of its queue: it stands where the job most like it stands.
        if partition not in self._alike:
            return 0.0
        known, scores = self._alike[partition]
        mine = _likeness(world["live"]["expected"], np.array([volume]), np.zeros(1))
        return float(scores[int(np.argmin(((known - mine) ** 2).sum(axis=1)))])


def _likeness(estimate: Array, volume: Array, waited: Array) -> Array:
    """What makes two jobs alike to a policy: their run times, their sizes, and less so how long they have waited."""
    columns = (np.log(np.maximum(estimate, 1.0)), np.log(np.maximum(volume, 1e-3)), 0.3 * np.log1p(waited / 60.0))
    return np.stack(columns, axis=1)


def _one_job(queue: LiveQueue, policy: LivePolicy) -> World:
    """The little that the heuristics look at, for one job."""
    settings = settings_for(policy.spec, weights=queue.weights)
    world = bare_world(1, settings, groups=queue.snapshot.world["groups"])
    link_slot(world, policy.spec.row, "score")
    return world
