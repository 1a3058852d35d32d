"""A live queue as a Scene to simulate forward: present jobs, recent jobs as future arrivals, and a queried job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec
import numpy as np

from slurm_rl.backfill.slurm_settings import settings_from
from slurm_rl.config import Config
from slurm_rl.controller.estimates import KnownRunTimes
from slurm_rl.controller.live_policy import LivePolicy, guardrails_of
from slurm_rl.controller.slurm_snapshot import LiveQueue, observe, site_weights
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.registry import parse_policy, with_lane
from slurm_rl.slurm.model import HistoryJob, SlurmJob, SlurmState
from slurm_rl.slurm.scontrol import setting
from slurm_rl.slurm.site_limits import SiteLimits
from slurm_rl_sim.forward import DAY, Past, Scene, SiteRules, draw_starts

Key = tuple[int, int]  # job id, submit time

_PAST = 7 * DAY
_MOST_RECENT = 5000  # arrivals that are remembered
_MANY = 300  # waiting jobs beyond which futures run under EASY: sched/backfill's rule would take too long
_OTHERS = 2000  # waiting jobs that do not count, beyond which a sample of them does
_COPIES = 50  # further tasks of an array that count, of each and …
_ALL_COPIES = 1000  # … of all
_TIER = 50_000_000  # points of priority: a partition's tier goes before every factor


class RecentJobs:
    """Jobs that came within the last week, and how long they ran where that is known."""

    def __init__(self) -> None:
        self._jobs: dict[Key, SlurmJob] = {}
        self._run: dict[Key, float] = {}
        self._since = 0.0
        self._oldest = 0  # submit time of the oldest that is kept: who came before is not looked at again

    def see(self, jobs: Iterable[SlurmJob], now: float) -> None:
        """Remembers who waits or runs."""
        if not self._since:
            self._since = now
        for job in jobs:
            submitted = job.submit_time
            if submitted and submitted >= self._oldest and (job.pending or job.running):
                self._jobs.setdefault((job.job_id, submitted), job)
        self._forget(now)

    def learn(self, rows: Iterable[HistoryJob], since: float, now: float) -> None:
        """Takes over what accounting tells of the time from `since` on."""
        self._since = min(self._since or since, since)
        for row in rows:
            key = (row.job_id, row.submit_time or 0)
            if row.submit_time is None:
                continue
            if row.end_time and row.start_time:
                self._run[key] = float(row.elapsed)
            if key not in self._jobs and row.submit_time > now - _PAST:
                self._jobs[key] = _as_job(row)
        self._forget(now)

    def within(self, now: float) -> tuple[list[SlurmJob], list[float], int]:
        """Jobs of the past in the order of submission, their run times (-1: not known), and since when it is whole."""
        known = list(self._jobs.items())  # at once: another thread may ask
        found = sorted(((k[1], k, j) for k, j in known if k[1] < now), key=lambda x: x[:2])
        since = max(self._since, now - _PAST)
        if len(found) >= _MOST_RECENT:
            since = max(since, found[0][0])
        found = [f for f in found if f[0] >= since]
        jobs = [msgspec.structs.replace(j, state="PAST") for _, _, j in found]
        return jobs, [self._run.get(k, -1.0) for _, k, _ in found], int(since)

    def _forget(self, now: float) -> None:
        if len(self._jobs) > 1.2 * _MOST_RECENT or any(k[1] < now - 1.2 * _PAST for k in list(self._jobs)[:1]):
            keep = sorted((k for k in self._jobs if k[1] > now - _PAST), key=lambda k: k[1])[-_MOST_RECENT:]
            self._jobs = {k: self._jobs[k] for k in keep}
            self._oldest = keep[0][1] if len(keep) == _MOST_RECENT else 0
            self._run = {k: v for k, v in self._run.items() if k in self._jobs}


def _as_job(row: HistoryJob) -> SlurmJob:
    return SlurmJob(
        job_id=row.job_id,
        name=row.name,
        user=row.user,
        account=row.account,
        qos=row.qos,
        partitions=(row.partition,),
        state="PAST",
        submit_time=row.submit_time,
        time_limit=row.time_limit,
        nodes=row.nodes,
        cpus=row.cpus,
        mem_mb=row.mem_mb,
        gpus=row.gpus_requested or row.gpus_allocated,
    )


def site_of(state: SlurmState, policy: LivePolicy, mode: str, config: Config, waiting: int) -> SiteRules:
    """How this Slurm orders and backfills now: by its own priorities, and by the policy's where that is enforced."""
    rule = "none" if setting(state.config, "SchedulerType").endswith("builtin") else "slurm"
    settings: dict[str, float] = {}
    with suppress(InputError):  # a value that nobody knows: Slurm's defaults stand
        settings = settings_from(state.config).world
    if waiting > _MANY:
        rule, settings = "easy", {}
    site = SiteRules(
        parse_policy("multifactor"), rule, weights=site_weights(state.weights), settings=settings, usage=False
    )
    if mode != "enforce" or policy.score is not None:
        return site
    rails = guardrails_of(config)
    spec = replace(policy.spec, starve_age=rails.starve_age, starve_factor=rails.starve_factor)
    if rails.starve_drain is not None:
        spec = replace(spec, starve_drain=rails.starve_drain)
    if rails.lane_share:
        spec = with_lane(spec, rails.lane_share, rails.lane_age)
    return replace(site, policy=spec, influence=config.influence)


class LiveScene:
    """The tables of a queue with its recent past and of jobs that are asked about; makes Scenes of them."""

    def __init__(
        self,
        state: SlurmState,
        waiting: Sequence[SlurmJob],  # pending jobs that count, the first to run first
        recent: RecentJobs,
        run_times: KnownRunTimes,
        policy: LivePolicy,
        mode: str,
        config: Config,
        asked: Sequence[SlurmJob] = (),
        *,
        limits: SiteLimits | None = None,
        long: bool = False,  # as if more jobs waited than Slurm's own rule is run for
    ) -> None:
        now = int(state.taken)
        past, runs, since = recent.within(now)
        copies = _further_tasks(waiting)
        self.site = site_of(state, policy, mode, config, _MANY + 1 if long else len(waiting) + len(copies))
        besides = [*past, *(job for job, _ in copies), *asked]
        state = _shortened(state, waiting)
        self.queue = queue = observe(
            state, run_times, self.site.policy, None, config.leave_alone, besides, limits=limits
        )
        self._row = {id(job): i for i, job in enumerate(queue.jobs)}
        self._by_id = {job.job_id: i for i, job in enumerate(queue.jobs) if job.pending}
        self.waiting = [self._by_id[j.job_id] for j in waiting if j.job_id in self._by_id]
        tasks = [(self._row[id(j)], self._by_id.get(of)) for j, of in copies if id(j) in self._row]
        self._copies = [i for i, of in tasks if of is not None]
        self._adjust(tasks)
        at = np.array([self._row[id(j)] for j in past if id(j) in self._row], dtype=np.int64)
        known = np.array([r for j, r in zip(past, runs, strict=True) if id(j) in self._row])
        when = queue.snapshot.world["jobs"]["submit"][at] if len(at) else np.zeros(0, np.int64)
        self._past = Past(at, when, known, np.zeros(len(at)), since)
        self._residuals = run_times.residuals
        self._given = mode == "enforce" and policy.score is not None

    def row(self, job: SlurmJob) -> int | None:
        """The row of a job that is asked about; None: its partition has no nodes."""
        return self._row.get(id(job))

    def never(self, row: int) -> str:
        """Why a job can never run here; "" if it can."""
        assert self.queue.workload is not None  # noqa: S101 – `observe` always gives it
        return self.queue.workload.rejected.get(row, "") or self.queue.beyond.get(row, "")

    def scene(self, *also: int) -> Scene:
        """The present moment, with these rows waiting as well."""
        queue = self.queue
        assert queue.workload is not None  # noqa: S101 – `observe` always gives it
        world = queue.snapshot.world
        pending = np.array([*self.waiting, *self._copies, *also], dtype=np.int64)
        order = None
        if self._given:
            places = {row: place for place, row in enumerate(self.waiting)}
            order = np.array([places.get(int(row), len(places)) for row in pending])
        return Scene(
            queue.now,
            world,
            queue.workload,
            np.flatnonzero(world["live"]["held"] > 0),
            pending,
            np.log(np.maximum(queue.estimate, 1.0)),
            queue.spread,
            self.site,
            self._past,
            self._residuals,
            order,
        )

    def _adjust(self, tasks: Sequence[tuple[int, int | None]]) -> None:
        """Slurm's priorities as the futures see them: tasks like their array, newcomers like the usual job."""
        queue, jobs = self.queue, self.queue.snapshot.world["jobs"]
        pending: Array = queue.snapshot.pending
        usual = int(np.median(jobs["nice"][pending])) if len(pending) else 0
        jobs["nice"][np.setdiff1d(np.arange(len(jobs)), pending)] = usual
        for row, of in tasks:
            if of is not None:
                jobs["nice"][row] = jobs["nice"][of]
        tiers = {p.name: p.priority_tier for p in queue.state.partitions}
        lowest = min(tiers.values(), default=1)
        tier = np.array([tiers.get(j.partitions[0], lowest) - lowest for j in queue.jobs], dtype=np.int64)
        jobs["nice"] -= (np.minimum(tier, 30) * _TIER).astype(np.int32)


def _shortened(state: SlurmState, waiting: Sequence[SlurmJob]) -> SlurmState:
    """Of a long queue the jobs that count, and of the others evenly as many as tell what the usual job is like."""
    count = {job.job_id for job in waiting}
    others = [job for job in state.jobs if job.pending and job.job_id not in count]
    if len(others) <= _OTHERS:
        return state
    sample = {job.job_id for job in others[:: -(-len(others) // _OTHERS)]}
    jobs = (job for job in state.jobs if not job.pending or job.job_id in count or job.job_id in sample)
    return msgspec.structs.replace(state, jobs=tuple(jobs))


def _further_tasks(waiting: Sequence[SlurmJob]) -> list[tuple[SlurmJob, int]]:
    """Records of arrays stand for several tasks: the further ones, as far as they count, each with its record's id."""
    found: list[tuple[SlurmJob, int]] = []
    for job in waiting:
        count = min(job.array_task_count, job.array_max_running or job.array_task_count) - 1
        further = range(min(count, _COPIES, _ALL_COPIES - len(found)))
        found.extend((msgspec.structs.replace(job, state="TASK"), job.job_id) for _ in further)
    return found


def starts_in_order(queue: LiveQueue, order: Sequence[int], draws: int) -> dict[int, float]:
    """Median start of each job if the queue is tried in this order under EASY and nobody comes, as Unix times.

    For comparing two orders of one queue: both see the same run times.
    """
    if not len(order) or queue.workload is None:
        return {}
    rows = np.array(order, dtype=np.int64)
    world = queue.snapshot.world
    scene = Scene(
        queue.now,
        world,
        queue.workload,
        np.flatnonzero(world["live"]["held"] > 0),
        rows,
        np.log(np.maximum(queue.estimate, 1.0)),
        queue.spread,
        SiteRules(parse_policy("static-priority"), "easy", "first-fit", usage=False),
        order=np.arange(len(rows)),
    )
    waits = np.median(draw_starts(scene, rows, draws, np.random.default_rng(queue.now)), axis=0)
    return {int(j): queue.now + float(wait) for j, wait in zip(rows, waits, strict=True) if np.isfinite(wait)}
