"""A tick's report on the queue."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from slurm_rl.controller.explain.start_forecast import StartForecast
from slurm_rl.controller.live_policy import LivePolicy
from slurm_rl.controller.slurm_snapshot import LiveQueue
from slurm_rl.domain.snapshot import Plan, PlannedDeferral
from slurm_rl.kernel.arrays import Array
from slurm_rl.obs.queue import ALL, JobView, QueueFilter
from slurm_rl.slurm.model import SlurmJob
from slurm_rl.slurm.reasons import in_words
from slurm_rl.slurm.scontrol import setting

_SORTED_BY: Mapping[str, Callable[[SlurmJob], Any]] = {
    "job": lambda job: job.job_id,
    "user": lambda job: job.user,
    "name": lambda job: job.name,
    "partition": lambda job: job.partitions,
    "gpus": lambda job: job.gpu_count,
    "wait": lambda job: -(job.submit_time or 0),
}
_FACTORS = ("age", "assoc", "fairshare", "job_size", "partition", "qos", "tres", "nice", "site", "priority")


class _Columns(NamedTuple):
    """Of each job in order, what those behind it are told of it."""

    queue: Array
    user: Array
    account: Array
    gpus: Array  # of all its tasks
    estimate: Array


@dataclass(frozen=True)
class QueueReport:
    """What one tick saw and decided; the tick only keeps it, and requests make rows from it."""

    queue: LiveQueue
    plan: Plan
    wanted: Array
    bound: int
    tick: int
    mode: str
    live_policy: LivePolicy
    forecast: Mapping[int, StartForecast] = field(default_factory=dict)  # by job id
    deferrals: Mapping[str, float | None] = field(default_factory=dict)

    def prepared(self) -> QueueReport:
        """Itself, with what all askers share: else the first of them would wait for it."""
        _ = self._ids, self._ranks, self._starts, self._deferrals
        return self

    def with_forecast(
        self, forecast: Mapping[int, StartForecast], deferrals: Mapping[str, float | None]
    ) -> QueueReport:
        """The same queue with other forecasts; what does not depend on them is not made again."""
        told = replace(self, forecast=forecast, deferrals=deferrals)
        shared = "_ids _ranks _deferrals _texts _of_users _records _work _in_partitions _columns".split()
        vars(told).update({name: value for name, value in vars(self).items() if name in shared})
        return told.prepared()

    @property
    def time(self) -> float:
        return self.queue.state.taken

    @property
    def cluster(self) -> str:
        return self.queue.state.cluster

    @property
    def policy(self) -> str:
        return self.live_policy.name

    @property
    def model(self) -> str:
        return self.live_policy.model

    @property
    def max_times(self) -> Mapping[str, int | None]:
        return {p.name: p.max_time for p in self.queue.state.partitions}

    @property
    def private(self) -> bool:
        return "jobs" in setting(self.queue.state.config, "PrivateData").lower()

    def page(
        self, offset: int, limit: int, user: str | None = None, wanted: QueueFilter = ALL
    ) -> tuple[int, list[JobView]]:
        rows: Sequence[int] = range(len(self._ids)) if wanted.sort == "rank" else self._sorted_by(wanted.sort)
        for chosen, places in ((user, self._of_users), (wanted.partition or None, self._in_partitions)):
            if chosen is not None:
                rows = _within(rows, places.get(chosen, []))
        if match := wanted.match.lower():
            texts = self._texts
            rows = [p for p in rows if match in texts[p]]
        if wanted.descending:
            rows = rows[::-1]
        return len(rows), [self._row(p) for p in rows[offset : offset + limit]]

    @cached_property
    def _records(self) -> list[SlurmJob]:
        return [*(self.queue.jobs[j] for j in self.plan.order), *self.queue.alone]

    @cached_property
    def _texts(self) -> list[str]:
        """What a search looks at, for each position; a line break lets no match reach from one field to the next."""
        return [f"{job.user}\n{job.name}\n{job.job_id}".lower() for job in self._records]

    @cached_property
    def _of_users(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for position, job in enumerate(self._records):
            found[job.user].append(position)
        return found

    @cached_property
    def _in_partitions(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for position, job in enumerate(self._records):
            for name in job.partitions:
                found[name].append(position)
        return found

    @cached_property
    def _orders(self) -> dict[str, list[int]]:
        return {}

    def _sorted_by(self, name: str) -> list[int]:
        """Positions by what a row shows, made once a tick: of equals, the first to run first."""
        if name not in self._orders:
            keys = self._sort_keys(name)
            self._orders[name] = sorted(range(len(keys)), key=keys.__getitem__)
        return self._orders[name]

    def _sort_keys(self, name: str) -> list[Any]:
        if name in ("estimate", "start"):
            alone = [math.inf] * len(self.queue.alone)
            if name == "start":
                return [*self._starts[:, 0].tolist(), *alone]
            return [*(float(self.queue.estimate[j]) for j in self.plan.order), *alone]
        return [_SORTED_BY[name](job) for job in self._records]

    def job(self, job_id: int) -> JobView | None:
        position = self._ids.get(job_id)
        return None if position is None else self._row(position)

    def find(self, job_id: int, task: int | None = None, offset: int | None = None) -> JobView | None:
        if offset is None and task is None:
            return self.job(job_id)
        for position, job in enumerate(self._records):
            if offset is not None:
                found = job.het_job_id == job_id and job.het_offset == offset
            else:
                found = job.array_job_id == job_id and task is not None and has_task(job, task)
            if found:
                return self._row(position)
        return None

    def ahead(self, job_id: int) -> dict[str, Any]:
        """Who goes before a job in its queue, by kind and not by name: counts, GPUs, and hours of work."""
        position = self._ids.get(job_id, len(self.plan.order))
        if position >= len(self.plan.order):
            return {}
        job = self._record(position)
        columns = self._columns
        places = np.flatnonzero(columns.queue[:position] == columns.queue[position])
        mine = columns.user[places] == columns.user[position]
        own = int(mine.sum())
        in_account = columns.account[places] == columns.account[position]
        account = int((in_account & ~mine).sum()) if job.account else 0
        gpus = columns.gpus[places]
        work = float((gpus * columns.estimate[places]).sum()) / 3600
        return {
            "jobs": len(places),
            "yours": own,
            "same_account": account,
            "others": len(places) - own - account,
            "promoted": int(self.plan.promoted[places].sum()),
            "gpus": int(gpus.sum()),
            "gpu_hours": round(work, 1),
        }

    @cached_property
    def _columns(self) -> _Columns:
        order = np.array(self.plan.order, dtype=np.int64)
        jobs = self.queue.snapshot.world["jobs"]
        return _Columns(
            self.queue.line[order],
            jobs["user"][order],
            jobs["account"][order],
            self.queue.gpus[order],
            self.queue.estimate[order],
        )

    def record(self, job_id: int) -> SlurmJob | None:
        """Slurm's own record of a pending job."""
        position = self._ids.get(job_id)
        return None if position is None else self._record(position)

    @cached_property
    def _ids(self) -> dict[int, int]:
        """Position of each job: those in order first."""
        ordered = self.queue.ids[np.array(self.plan.order, dtype=np.int64)].tolist()
        found = {job_id: position for position, job_id in enumerate(ordered)}
        return found | {job.job_id: len(found) + i for i, job in enumerate(self.queue.alone)}

    @cached_property
    def _ranks(self) -> Array:
        """Each ordered job's place among those it competes with, and how many these are."""
        _, line = np.unique(self.queue.line[np.array(self.plan.order, dtype=np.int64)], return_inverse=True)
        sizes = np.bincount(line) if len(line) else np.zeros(0, dtype=np.int64)
        together = np.argsort(line, kind="stable")
        place = np.empty(len(line), dtype=np.int64)
        place[together] = np.arange(len(line)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.stack([place, sizes[line]], axis=1)

    @cached_property
    def _starts(self) -> Array:
        """Starts as forecast, or, where the simulation says nothing (yet), by the work that lies before each job."""
        starts = self._work.copy()
        for job_id, told in self.forecast.items():
            position = self._ids.get(job_id, len(starts))
            if position < len(starts):
                starts[position] = np.maximum((told.median, told.low, told.high), self.queue.now)
        return starts

    @cached_property
    def _work(self) -> Array:
        return _by_work(self.queue, self.plan)

    @cached_property
    def _deferrals(self) -> dict[int, PlannedDeferral]:
        return {d.job: d for d in self.plan.deferrals}

    @cached_property
    def _rulers(self) -> dict[str, dict[str, Any]]:
        """By partition."""
        told = [(ruler.pool.split(","), asdict(ruler)) for ruler in self.plan.rulers]
        return {partition: ruler for partitions, ruler in told for partition in partitions}

    def _record(self, position: int) -> SlurmJob:
        return self._records[position]

    def _row(self, position: int) -> JobView:
        queue, job = self.queue, self._record(position)
        common: dict[str, Any] = {
            "job_id": job.job_id,
            "submit_time": job.submit_time or 0,
            "user": job.user,
            "account": job.account,
            "name": job.name,
            "partition": job.partitions[0] if job.partitions else "",
            "gpus": job.gpu_count,
            "nodes": job.nodes,
            "cpus": job.cpus,
            "wait": max(0, queue.now - (job.submit_time or queue.now)),
            "site_factor": job.site_factor,
            "slurm_factors": {name: getattr(job.factors, name) for name in _FACTORS} if job.factors else {},
            "slurm_start": job.start_time,
            "reason": job.reason,
            "reason_in_words": in_words(job.reason).meaning,
        }
        if position >= len(self.plan.order):
            return JobView(**common, time_limit=job.time_limit or 0, why=queue.left_alone[job.job_id])
        j, reason = self.plan.order[position], self.plan.reasons[position]
        rank, of = map(int, self._ranks[position])
        estimate, spread = float(queue.estimate[j]), float(queue.spread[j])
        limit = int(queue.snapshot.world["jobs"]["limit"][j])
        expected, low, high = (float(t) for t in self._starts[position])
        why, deferral = str(replace(reason, rank=rank, of=of)), self._deferrals.get(j)
        if deferral is not None:
            by = time.strftime("%H:%M:%S", time.localtime(deferral.until))
            why += f"; deferred, until {by} at most: {queue.gpu_types[deferral.awaits]} is expected"
        return JobView(
            **common,
            time_limit=limit,
            rank=rank,
            of=of,
            score=reason.score if math.isfinite(reason.score) else 0.0,
            why=why,
            deferred_until=deferral.until if deferral is not None else None,
            promoted=reason.promoted,
            estimate=estimate,
            estimate_range=(estimate * math.exp(-spread), min(estimate * math.exp(spread), float(limit))),
            wanted=int(self.wanted[j]),
            expected_start=expected,
            expected_range=(low, high),
            expected_made=told.made if (told := self.forecast.get(job.job_id)) is not None else None,
            ruled_by=self._rulers.get(common["partition"], {}) if not reason.fallback else {},
        )


def _by_work(queue: LiveQueue, plan: Plan) -> Array:
    """When each job of the plan's order may start, and the range: now if it fits, else when the work before is done.

    The work is that of running jobs and of those before it, on the whole pool. The lower end takes every estimate at
    one deviation less, the upper end every job at its limit.
    """
    world = queue.snapshot.world
    jobs, requests, pools, live = world["jobs"], world["requests"], world["pools"], world["live"]
    volume = requests["volume"][jobs["request"]]
    pool_of = requests["pool"][jobs["request"]]
    limit = jobs["limit"].astype(np.float64)
    best = np.minimum(queue.estimate * np.exp(-queue.spread), limit)
    runs = np.stack([np.minimum(queue.estimate, limit), best, limit])
    now = float(queue.now)
    order = np.array(plan.order, dtype=np.int64)
    found = np.full((len(order), 3), now)
    running = np.flatnonzero(live["held"] > 0)
    remaining = np.maximum(runs[:, running] - (now - live["start"][running]), 0.0) * volume[running]
    for pool in np.unique(pool_of[order]).tolist() if len(order) else []:
        busy = remaining[:, pool_of[running] == pool].sum(axis=1)
        mine = np.flatnonzero(pool_of[order] == pool)
        work = (runs[:, order[mine]] * volume[order[mine]]).T
        before = np.cumsum(work, axis=0) - work
        found[mine] += (busy + before) / max(float(pools["volume"][pool]), 1e-9)
    found[np.isin(order, [s.job for s in plan.starts])] = now
    found[:, 1] = np.minimum(found[:, 0], found[:, 1])
    found[:, 2] = np.maximum(found[:, 0], found[:, 2])
    return found


def _within(rows: Sequence[int], chosen: list[int]) -> Sequence[int]:
    """Those of the rows that are chosen, in the rows' order; `chosen` ascends."""
    if isinstance(rows, range):
        return chosen
    wanted = set(chosen)
    return [p for p in rows if p in wanted]


def has_task(job: SlurmJob, task: int) -> bool:
    """Whether a record is this task of its array, or one of several that still wait together ("1,4-9:2%3")."""
    if job.array_task_id is not None:
        return job.array_task_id == task
    for part in job.array_tasks.partition("%")[0].strip("[]").split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        if first.isdecimal() and task in range(int(first), int(last or first) + 1, int(step or 1)):
            return True
    return False
