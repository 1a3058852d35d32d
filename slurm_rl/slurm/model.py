"""Slurm's answers as plain data: jobs, nodes, partitions, weights, and one snapshot of them all."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from slurm_rl.domain.reservations import Reservation
from slurm_rl.slurm.release import Release

UNTYPED = ""  # the type of a GPU that was asked for without naming one


_BLOCKED = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "MAINT", "NOT_RESPONDING", "POWERING_DOWN", "RESERVED"})


class PriorityFactors(msgspec.Struct, frozen=True):
    """A pending job's weighted priority terms, as sprio shows them; their sum minus `nice` is the priority."""

    priority: int
    age: int
    assoc: int
    fairshare: int
    job_size: int
    partition: int
    qos: int
    site: int
    tres: int
    nice: int
    fairshare_normalized: float


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job record: a job, a task of an array, or an array's tasks that have not started yet."""

    job_id: int
    name: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    restarts: int = 0  # how often it was requeued, which gives it another submit time
    comment: str = ""
    partitions: tuple[str, ...] = ()
    state: str = "PENDING"
    reason: str = ""
    dependency: str = ""
    reservation: str = ""
    cron: bool = False

    # Arrays: a record of several waiting tasks has a count above one and no single task id.
    array_job_id: int = 0
    array_task_id: int | None = None
    array_tasks: str = ""
    array_task_count: int = 1
    array_max_running: int = 0

    # Heterogeneous jobs: components share the leader's id and start together.
    het_job_id: int = 0
    het_offset: int = 0

    submit_time: int | None = None
    eligible_time: int | None = None
    start_time: int | None = None  # of a pending job: when Slurm expects it to start
    end_time: int | None = None
    deadline: int | None = None  # by which it must have ended
    time_limit: int | None = None  # seconds; None is unlimited

    nodes: int = 1
    cpus: int = 1
    tasks: int = 1
    mem_mb: int = 0
    gpus: Mapping[str, int] = msgspec.field(default_factory=dict)  # total by type; UNTYPED if any type will do
    tres: Mapping[str, int] = msgspec.field(default_factory=dict)
    gres: str = ""  # of each node, where it asks for more than GPUs of one type: gpu:a100:1,shard:2
    not_understood: str = ""  # what of its request we cannot plan with
    features: str = ""
    prefer: str = ""
    required_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    exclusive: bool = False
    switches: int = 0  # leaf switches that it may span, 0: any number …
    switch_wait: int = 0  # … which it insists on for so many seconds
    segment: int = 0  # nodes that must lie in one block
    node_list: tuple[str, ...] = ()

    priority: int = 0
    nice: int = 0
    factors: PriorityFactors | None = None  # sprio shows eligible pending jobs only
    keys: Mapping[str, str] = msgspec.field(default_factory=dict)  # for estimates (domain/keys.py), where asked for

    @property
    def pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def running(self) -> bool:
        return self.state in ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING")

    @property
    def held(self) -> bool:
        """Held by its user or an administrator; Slurm says so by priority 0."""
        return self.pending and (self.priority == 0 or self.reason.startswith("JobHeld"))

    @property
    def gpu_count(self) -> int:
        return sum(self.gpus.values())

    @property
    def site_factor(self) -> int | None:
        """None when Slurm does not show it (held, dependent or running jobs)."""
        return None if self.factors is None else self.factors.site

    def eligible(self, now: float) -> bool:
        """Whether Slurm may start it at all: not held, not deferred, no open dependency."""
        return (
            self.state == "PENDING"
            and self.priority != 0
            and not self.reason.startswith("JobHeld")
            and "unfulfilled" not in self.dependency
            and (self.eligible_time is None or self.eligible_time <= now)  # None: Slurm has not looked at it yet
        )


class SlurmNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node; GPUs by type, in total and in use."""

    name: str
    state: str
    flags: tuple[str, ...] = ()
    cpus: int = 0
    cpus_allocated: int = 0
    mem_mb: int = 0
    mem_mb_allocated: int = 0
    gpus: Mapping[str, int] = msgspec.field(default_factory=dict)
    gpus_allocated: Mapping[str, int] = msgspec.field(default_factory=dict)
    gres: Mapping[str, int] = msgspec.field(default_factory=dict)  # by name and type: "gpu:a100", "shard:a100"
    gres_allocated: Mapping[str, int] = msgspec.field(default_factory=dict)
    shared: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)  # parts in use (slurm/gres.py) …
    shared_known: bool = False  # … False: only how many GPUs are shared is known
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether new jobs may start on it."""
        return self.state in ("IDLE", "MIXED", "ALLOCATED") and _BLOCKED.isdisjoint(self.flags)


class SlurmPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition."""

    name: str
    state: str
    nodes: tuple[str, ...] = ()
    default: bool = False
    max_time: int | None = None  # seconds; None is unlimited
    default_time: int | None = None
    priority_tier: int = 1
    priority_job_factor: int = 1
    has_default_memory: bool = False
    qos: str = ""  # of the partition itself


class PriorityWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The multifactor plugin's weights; `max_age` is where the age factor saturates, in seconds."""

    age: int = 0
    assoc: int = 0
    fairshare: int = 0
    job_size: int = 0
    partition: int = 0
    qos: int = 0
    tres: Mapping[str, float] = msgspec.field(default_factory=dict)
    max_age: int | None = None
    favor_small: bool = False
    flags: tuple[str, ...] = ()  # PriorityFlags

    @property
    def total(self) -> int:
        """The sum of all weights, by which our influence is bounded."""
        whole = self.age + self.assoc + self.fairshare + self.job_size + self.partition + self.qos
        return whole + round(sum(self.tres.values()))


class SlurmState(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot; its parts were read between `taken` and `taken + spread`, so a job may have changed between two."""

    taken: float
    spread: float
    release: Release
    cluster: str
    jobs: tuple[SlurmJob, ...]
    nodes: tuple[SlurmNode, ...]
    partitions: tuple[SlurmPartition, ...]
    weights: PriorityWeights
    fairshare: Mapping[tuple[str, str], float]  # (account, user) -> 0…1; empty without accounting
    config: Mapping[str, str]
    topology: Mapping[str, str] = msgspec.field(default_factory=dict)  # node -> its block or leaf switch
    reservations: tuple[Reservation, ...] = ()  # of whole nodes


class JobUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What to write to one pending job; None leaves a value alone, "" clears a feature expression."""

    job_id: int
    array_tasks: str = ""  # the record's tasks, where the id alone would mean the whole array
    site_factor: int | None = None
    features: str | None = None
    prefer: str | None = None
    start_at: int | None = None  # not before this second (Unix time), after which Slurm may start it; 0 lifts that

    @classmethod
    def of(
        cls,
        job: SlurmJob,
        *,
        site_factor: int | None = None,
        features: str | None = None,
        prefer: str | None = None,
        start_at: int | None = None,
    ) -> JobUpdate:
        """An update of exactly this record: an array's waiting tasks, and not its running or separate ones."""
        tasks = job.array_tasks if job.job_id == job.array_job_id else ""
        return cls(
            job_id=job.job_id,
            array_tasks=tasks,
            site_factor=site_factor,
            features=features,
            prefer=prefer,
            start_at=start_at,
        )


class UpdateStatus(StrEnum):
    """What became of an update."""

    APPLIED = "applied"  # slurmctld said yes, or the value was read back
    REFUSED = "refused"  # slurmctld said no
    UNKNOWN = "unknown"  # it was under way when slurmctld went silent
    NOT_SENT = "not sent"  # slurmctld was silent before its turn


class UpdateResult(msgspec.Struct, frozen=True):
    """The outcome of one update; `message` is Slurm's own when it refused."""

    job_id: int
    status: UpdateStatus
    message: str = ""

    @property
    def applied(self) -> bool:
        return self.status is UpdateStatus.APPLIED


class HistoryJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job from the accounting database."""

    job_id: int
    display_id: str
    name: str
    user: str
    account: str
    partition: str
    qos: str
    state: str
    submit_time: int | None
    eligible_time: int | None
    start_time: int | None
    end_time: int | None
    elapsed: int
    time_limit: int | None
    nodes: int
    cpus: int
    mem_mb: int
    gpus_requested: Mapping[str, int]
    gpus_allocated: Mapping[str, int]
    node_list: tuple[str, ...]
    priority: int
    exit_code: int
    keys: Mapping[str, str] = msgspec.field(default_factory=dict)  # as in SlurmJob


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How slurmctld is doing; the cycle times are in microseconds."""

    up: bool
    controller: str
    answer_seconds: float
    server_threads: int = 0
    agent_queue: int = 0
    dbd_agent_queue: int = 0
    jobs_pending: int = 0
    jobs_running: int = 0
    main_last_cycle_us: int = 0
    main_mean_cycle_us: int = 0
    backfill_last_cycle_us: int = 0
    backfill_mean_cycle_us: int = 0
    backfill_last_depth: int = 0
