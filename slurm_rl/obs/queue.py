"""The last tick's view of the queue: what `explain`, the dashboard and the service show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class JobView:
    """A pending job as the last tick saw and ranked it; `rank` is -1 for a job that is left alone."""

    job_id: int
    submit_time: int
    user: str
    account: str
    name: str
    partition: str
    gpus: int
    nodes: int
    time_limit: int
    rank: int
    of: int
    score: float
    why: str
    promoted: bool
    wait: int
    estimate: float  # seconds
    estimate_range: tuple[float, float]
    site_factor: int | None  # as Slurm has it
    wanted: int  # as decided
    slurm_factors: Mapping[str, int] = field(default_factory=dict)
    expected_start: float | None = None  # Unix seconds
    expected_range: tuple[float, float] | None = None
    slurm_start: int | None = None  # what Slurm itself expects


@dataclass(frozen=True, slots=True)
class QueueView:
    """All pending jobs at one tick, the first to run first, those left alone last."""

    time: float
    tick: int
    cluster: str
    mode: str
    policy: str
    model: str
    bound: int
    private: bool  # Slurm's PrivateData hides other users' jobs
    jobs: tuple[JobView, ...]
    by_id: Mapping[int, JobView]
