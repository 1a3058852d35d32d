"""A Slurm in memory: a queue with priorities as sprio shows them, which counts what is written to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

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

NOW = 1_700_000_000.0


def a_job(
    job_id: int,
    *,
    limit: int = 3600,
    gpus: int = 1,
    waited: int = 100,
    partition: str = "batch",
    own: int = 500,
    site: int = 0,
    **more: object,
) -> SlurmJob:
    """An eligible pending job; `own` is Slurm's own priority of it."""
    factors = PriorityFactors(max(own + site, 1), 0, 0, 0, 0, own, 0, site, 0, 0, 0.0)
    fields: dict[str, object] = {
        "job_id": job_id,
        "name": f"job{job_id}",
        "user": "ann",
        "account": "lab",
        "partitions": (partition,),
        "submit_time": int(NOW) - waited,
        "time_limit": limit,
        "gpus": {"": gpus} if gpus else {},
        "cpus": 4,
        "mem_mb": 1024,
        "priority": factors.priority,
        "factors": factors,
    }
    return SlurmJob(**(fields | more))  # type: ignore[arg-type]


def a_running_job(job_id: int, node: str = "n1", *, gpus: int = 8, limit: int = 7200, began: int = 600) -> SlurmJob:
    return SlurmJob(
        job_id=job_id,
        user="bob",
        account="lab",
        partitions=("batch",),
        state="RUNNING",
        submit_time=int(NOW) - began - 10,
        start_time=int(NOW) - began,
        end_time=int(NOW) - began + limit,
        time_limit=limit,
        gpus={"": gpus},
        cpus=8,
        mem_mb=1024,
        node_list=(node,),
    )


class FakeSlurm:
    """A SlurmClient; `on_update` may raise, as a dying slurmctld would make the real one raise."""

    def __init__(self, *jobs: SlurmJob, nodes: int = 2, weights: int = 3000, **config: str) -> None:
        self.jobs = {j.job_id: j for j in jobs}
        self.now = NOW
        self.written: list[JobUpdate] = []
        self.snapshots = 0
        self.health_now = Health(up=True, controller="fake", answer_seconds=0.0)
        self.on_update: Callable[[Sequence[JobUpdate]], None] = lambda updates: None
        self.config = {"SchedulerParameters": "bf_continue"} | config
        self.weights = PriorityWeights(partition=weights)
        self.past: list[HistoryJob] = []
        self.limits = ""
        self.licenses_said: tuple[str, dict[int, dict[str, int]]] = ("", {})
        self.partitions = (SlurmPartition(name="batch", state="UP", default=True, default_time=3600),)
        held = {name: j for j in jobs for name in j.node_list}
        self.nodes = tuple(
            SlurmNode(
                name=f"n{i}",
                state="IDLE",
                cpus=64,
                mem_mb=512_000,
                gpus={"a100": 8},
                partitions=("batch",),
                gpus_allocated={"a100": held[f"n{i}"].gpu_count} if f"n{i}" in held else {},
                cpus_allocated=held[f"n{i}"].cpus if f"n{i}" in held else 0,
            )
            for i in range(1, nodes + 1)
        )

    def snapshot(self) -> SlurmState:
        self.snapshots += 1
        return SlurmState(
            taken=self.now,
            spread=0.0,
            release=Release(22, 5),
            cluster="fake",
            jobs=tuple(self.jobs.values()),
            nodes=self.nodes,
            partitions=self.partitions,
            weights=self.weights,
            fairshare={},
            config=self.config,
        )

    def update(self, updates: Sequence[JobUpdate]) -> list[UpdateResult]:
        self.on_update(updates)
        for u in updates:
            assert u.site_factor is not None
            self.set_site(u.job_id, u.site_factor)
        self.written += updates
        return [UpdateResult(u.job_id, UpdateStatus.APPLIED) for u in updates]

    def set_site(self, job_id: int, site: int) -> None:
        job = self.jobs[job_id]
        assert job.factors is not None
        own = job.factors.partition
        factors = msgspec.structs.replace(job.factors, site=site, priority=max(own + site, 1))
        self.jobs[job_id] = msgspec.structs.replace(job, factors=factors, priority=factors.priority)

    def site_factors(self, jobs: Sequence[int] = ()) -> dict[int, int]:
        return {j.job_id: j.factors.site for j in self.jobs.values() if j.factors}

    def history(self, start: float, end: float) -> list[HistoryJob]:
        return self.past

    def licenses(self) -> tuple[str, dict[int, dict[str, int]]]:
        return self.licenses_said

    def assoc_mgr(self) -> str:
        return self.limits

    def health(self) -> Health:
        return self.health_now

    def order(self) -> list[int]:
        """Pending jobs as Slurm would try them: by priority, then age, then id."""
        waiting = [j for j in self.jobs.values() if j.pending and not j.held]
        return [j.job_id for j in sorted(waiting, key=lambda j: (-j.priority, j.job_id))]
