"""A Slurm in memory that keeps what the real one keeps, and shows what the real one shows.

Its rules were read off a real slurmctld; test_model_of_slurm.py runs the same steps on both and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_rl.slurm.model import (
    Health,
    HistoryJob,
    JobUpdate,
    PriorityFactors,
    PriorityWeights,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
    SlurmState,
    UpdateResult,
    UpdateStatus,
)
from slurm_rl.slurm.release import Release

OWN = 1000  # every job's priority but for its factor
REQUEUE_DELAY = 120
MIN_JOB_AGE = 300


@dataclass
class Record:
    """One job record as slurmctld has it."""

    job_id: int
    submitted: int
    user: str = "root"
    limit: int = 600
    state: str = "PENDING"
    held: bool = False
    begin: int = 0
    after: int = 0  # the job it depends on
    site: int = 0
    hand: int = 0  # a priority that was set by hand
    restarts: int = 0
    array: int = 0
    tasks: tuple[int, ...] = ()
    het: int = 0
    reservation: str = ""
    comment: str = ""
    features: str = ""
    ended: float = 0.0


class ModelSlurm:
    """A SlurmClient, and what users, operators, nodes and the scheduler do."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now
        self.records: dict[int, Record] = {}
        self.next_id = 1
        self.before_write: Callable[[JobUpdate], None] = lambda update: None

    # What people do.

    def submit(self, *, held: bool = False, begin: int = 0, after: int = 0, tasks: int = 0, **more: object) -> int:
        job_id = self.next_id
        self.next_id += 1
        r = Record(job_id, int(self.now), held=held, begin=int(self.now) + begin if begin else 0, after=after)
        if tasks:
            r.array, r.tasks = job_id, tuple(range(1, tasks + 1))
        for name, value in more.items():
            setattr(r, name, value)
        self.records[job_id] = r
        return job_id

    def submit_het(self) -> int:
        first = self.submit()
        second = self.submit()
        self.records[first].het = self.records[second].het = first
        return first

    def hold(self, job_id: int) -> None:
        r = self.records[job_id]
        if r.state == "PENDING":
            r.held, r.hand = True, 0

    def release(self, job_id: int) -> None:
        r = self.records[job_id]
        r.held, r.hand = False, 0
        if r.state == "SPECIAL_EXIT":
            r.state = "PENDING"

    def start_after(self, job_id: int, seconds: int) -> None:
        r = self.records[job_id]
        if r.state == "PENDING":
            r.begin = int(self.now) + seconds if seconds else 0

    def depend(self, job_id: int, on: int) -> None:
        r = self.records[job_id]
        if r.state == "PENDING" and on != job_id:
            r.after = on

    def priority(self, job_id: int, value: int) -> None:
        r = self.records[job_id]
        if r.state == "PENDING" and not r.held:
            r.hand = value

    def operator(self, job_id: int, site: int) -> None:
        self.records[job_id].site = site

    # What happens.

    def start(self, job_id: int) -> int:
        """Starts a job, or the first task of an array, which then has a record of its own."""
        r = self.records[job_id]
        if r.state != "PENDING" or not self._eligible(r):
            return 0
        if len(r.tasks) > 1:
            task, *rest = r.tasks
            r.tasks = tuple(rest)
            split = Record(**{**vars(r), "job_id": self.next_id, "tasks": (task,)})
            self.next_id += 1
            self.records[split.job_id] = split
            r = split
        r.state = "RUNNING"
        return r.job_id

    def finish(self, job_id: int) -> None:
        r = self.records[job_id]
        r.state, r.ended = "COMPLETED", self.now

    def requeue(self, job_id: int, *, hold: bool = False, special: bool = False) -> None:
        """A running job, or one that has ended of late, waits again: with another submit time, and its factor."""
        r = self.records[job_id]
        if r.state == "PENDING" or r.state == "SPECIAL_EXIT":
            return
        r.state, r.submitted, r.restarts = "PENDING", int(self.now), r.restarts + 1
        r.begin = r.begin if r.begin > self.now else int(self.now) + REQUEUE_DELAY
        r.ended, r.held, r.hand = 0.0, hold or special, 0
        if special:
            r.state = "SPECIAL_EXIT"

    def suspend(self, job_id: int) -> None:
        r = self.records[job_id]
        r.state = {"RUNNING": "SUSPENDED", "SUSPENDED": "RUNNING"}.get(r.state, r.state)

    def node_down(self) -> None:
        for r in list(self.records.values()):
            if r.state in ("RUNNING", "SUSPENDED"):
                self.requeue(r.job_id)

    def forget_ended(self) -> None:
        self.records = {i: r for i, r in self.records.items() if not r.ended or self.now - r.ended < MIN_JOB_AGE}

    def alive(self) -> list[Record]:
        return [r for r in self.records.values() if not r.ended]

    def _eligible(self, r: Record) -> bool:
        other = self.records.get(r.after)
        return not r.held and r.begin <= self.now and (other is None or bool(other.ended))

    # What it shows, and what can be written.

    def snapshot(self) -> SlurmState:
        return SlurmState(
            taken=self.now,
            spread=0.0,
            release=Release(22, 5),
            cluster="model",
            jobs=tuple(self._shown(r) for r in self.alive()),
            nodes=tuple(
                SlurmNode(
                    name=name, state="IDLE", cpus=8, mem_mb=9, gpus={kind: 2}, features=(kind,), partitions=("batch",)
                )
                for name, kind in (("n1", "a100"), ("n2", "t4"))
            ),
            partitions=(SlurmPartition(name="batch", state="UP", default=True, default_time=3600),),
            weights=PriorityWeights(partition=1500),
            fairshare={},
            config={"MinJobAge": f"{MIN_JOB_AGE} sec", "SchedulerParameters": "bf_continue"},
        )

    def _shown(self, r: Record) -> SlurmJob:
        priority = 0 if r.held or r.state in ("SUSPENDED", "SPECIAL_EXIT") else r.hand or max(OWN + r.site, 1)
        factors = None
        if r.state == "PENDING" and self._eligible(r):
            own = (0, 0, 0, 0, OWN, 0, r.site) if not r.hand else (0,) * 7
            factors = PriorityFactors(priority, *own, 0, 0, 0.0)
        other = self.records.get(r.after)
        return SlurmJob(
            job_id=r.job_id,
            name="j",
            user=r.user,
            account="root",
            partitions=("batch",),
            state=r.state,
            reason="JobHeldUser" if r.held else "",
            dependency=f"afterany:{r.after}(unfulfilled)" if other is not None and not other.ended else "",
            reservation=r.reservation,
            comment=r.comment,
            features=r.features,
            restarts=r.restarts,
            array_job_id=r.array,
            array_tasks=",".join(map(str, r.tasks)),
            array_task_id=r.tasks[0] if len(r.tasks) == 1 else None,
            array_task_count=max(len(r.tasks), 1),
            het_job_id=r.het,
            submit_time=r.submitted,
            eligible_time=max(r.begin, r.submitted) if r.begin else r.submitted,
            start_time=r.submitted if r.state == "RUNNING" else None,
            time_limit=r.limit,
            gpus={"": 1},
            node_list=("n1",) if r.state in ("RUNNING", "SUSPENDED") else (),
            priority=priority,
            factors=factors,
        )

    def update(self, updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        results = []
        for u in updates:
            self.before_write(u)
            r = self.records.get(u.job_id)
            if r is None or r.ended:
                results.append(UpdateResult(u.job_id, UpdateStatus.REFUSED, "Job has already finished"))
                continue
            if u.site_factor is None and r.state != "PENDING":
                results.append(UpdateResult(u.job_id, UpdateStatus.REFUSED, "Job is no longer pending execution"))
                continue
            if u.site_factor is not None:
                assert OWN + u.site_factor >= 1, "the least priority of all would be as good as a hold"
                r.site = u.site_factor
            if u.features is not None:
                r.features = u.features
            if u.start_at is not None:
                r.begin = u.start_at
            results.append(UpdateResult(u.job_id, UpdateStatus.APPLIED))
        return results

    def site_factors(self, jobs: Sequence[int] = ()) -> dict[int, int]:
        return {j.job_id: j.factors.site for j in self.snapshot().jobs if j.factors}

    def history(self, start: float, end: float) -> list[HistoryJob]:
        return []

    def health(self) -> Health:
        return Health(up=True, controller="model", answer_seconds=0.0)
