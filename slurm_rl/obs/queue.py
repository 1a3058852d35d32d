"""The last tick's view of the queue, for `explain`, the dashboard and the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


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
    wait: int
    why: str
    site_factor: int | None  # as Slurm has it
    wanted: int = 0  # as decided
    rank: int = -1
    of: int = 0
    score: float = 0.0
    promoted: bool = False
    estimate: float = 0.0  # seconds
    estimate_range: tuple[float, float] = (0.0, 0.0)
    slurm_factors: Mapping[str, int] = field(default_factory=dict)
    expected_start: float | None = None  # Unix seconds
    expected_range: tuple[float, float] | None = None  # should hold four starts of five
    expected_made: float | None = None  # when that was simulated; None: guessed by the work before it
    slurm_start: int | None = None  # what Slurm itself expects
    deferred_until: int | None = None  # deferred although it fits
    reason: str = ""  # Slurm's own, as squeue shows it …
    reason_in_words: str = ""  # … and in a sentence
    cpus: int = 1
    ruled_by: Mapping[str, object] = field(default_factory=dict)  # by a policy that chooses: which one ruled, and why


SORTS = ("rank", "job", "user", "name", "partition", "gpus", "wait", "estimate", "start")


@dataclass(frozen=True, slots=True)
class QueueFilter:
    """Which jobs of a queue, and in which order: `match` is looked for in their user, name and id."""

    match: str = ""
    partition: str = ""
    sort: str = "rank"
    descending: bool = False


ALL = QueueFilter()


class QueueView(Protocol):
    """All pending jobs at one tick, the first to run first, those left alone last; rows are made when asked for."""

    @property
    def time(self) -> float: ...
    @property
    def tick(self) -> int: ...
    @property
    def cluster(self) -> str: ...
    @property
    def mode(self) -> str: ...
    @property
    def policy(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def bound(self) -> int: ...
    @property
    def deferrals(self) -> Mapping[str, float | None]:
        """How many jobs are deferred now, how often that was done, and what it came to."""
        ...

    @property
    def max_times(self) -> Mapping[str, int | None]:
        """Partitions and the longest limit in each, in seconds; None: any."""
        ...

    @property
    def private(self) -> bool:
        """Slurm's PrivateData hides other users' jobs."""
        ...

    def page(
        self, offset: int, limit: int, user: str | None = None, wanted: QueueFilter = ALL
    ) -> tuple[int, list[JobView]]:
        """How many jobs there are (of one user, and as wanted), and some of them."""
        ...

    def job(self, job_id: int) -> JobView | None: ...

    def find(self, job_id: int, task: int | None = None, offset: int | None = None) -> JobView | None:
        """A job by what squeue calls it: an array's task, a part of a heterogeneous job, or the job itself."""
        ...
