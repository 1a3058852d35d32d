"""Slurm's job records as rows of numbers: a record that has not changed since the last look is not read again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from slurm_rl.controller.live_gres import not_understood
from slurm_rl.controller.ours import by_hand
from slurm_rl.domain.cluster import KnownNodes
from slurm_rl.domain.constraint import parse_constraint
from slurm_rl.domain.optout import LeaveAlone
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import LEVELS, Array
from slurm_rl.slurm.model import PriorityFactors, SlurmJob, SlurmNode, SlurmState
from slurm_rl.slurm.reasons import keeps_back

FOREVER = 365 * 86_400  # what an unlimited job counts as
_ROUNDING = 5  # points by which the sum of sprio's rounded terms may be off
_ROOM = 10_000  # names beyond four for each job, with which numbering starts anew

ROW = np.dtype(
    [
        *((name, np.int64) for name in ("job_id", "submit", "eligible", "limit", "base", "site", "size", "tasks")),
        *((name, np.float64) for name in ("gpus", "cpus", "mem_gb", "nice", "share", "volume")),
        *((name, np.int32) for name in ("nodes", "tier", "why", "user", "account", "name", "qos")),
        *((name, np.int32) for name in ("gpu_type", "partition", "first", "gres", "features", "wish")),
        *((name, np.bool_) for name in ("pending", "holds", "never", "listed", "kept", "exclusive")),
        ("group", np.int32, (LEVELS,)),
    ]
)
_NUMBERED = ("why", "user", "account", "name", "qos", "gpu_type", "partition", "first", "gres", "constraint")


@dataclass(frozen=True)
class Surroundings:
    """What a job's row depends on besides the job."""

    partitions: Mapping[str, tuple[int, int, int | None]]  # tier, job factor, most seconds
    known: frozenset[str]  # partitions with nodes
    types: frozenset[str]  # of GPUs
    features: frozenset[str]
    leave_alone: LeaveAlone

    @classmethod
    def of(cls, state: SlurmState, known: Iterable[str], leave_alone: LeaveAlone) -> Surroundings:
        partitions = {p.name: (p.priority_tier, p.priority_job_factor, p.max_time) for p in state.partitions}
        types = frozenset(t for kinds in {id(n.gpus): n.gpus for n in state.nodes}.values() for t in kinds if t)
        features = frozenset(f for names in {n.features for n in state.nodes} for f in names)
        return cls(partitions, frozenset(known), types, features, leave_alone)


class Names:
    """Texts by number, as they come."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}
        self.texts: list[str] = []

    def __call__(self, text: str) -> int:
        """A text's number; -1 for none."""
        if not text:
            return -1
        found = self.number.get(text)
        if found is None:
            found = self.number[text] = len(self.texts)
            self.texts.append(text)
        return found

    def used(self, *columns: Array) -> tuple[list[Array], tuple[str, ...]]:
        """The columns numbered anew, as their texts come, and the texts that are left."""
        every = np.concatenate(columns) if len(columns) > 1 else columns[0]
        first = np.full(len(self.texts) + 1, len(every), dtype=np.int64)  # the last one is that of -1
        first[every[::-1]] = np.arange(len(every))[::-1]
        first[-1] = len(every)
        order = np.argsort(first[:-1], kind="stable")
        order = order[first[order] < len(every)]
        dense = np.full(len(first), -1, dtype=np.int32)
        dense[order] = np.arange(len(order))
        return [dense[column] for column in columns], tuple(self.texts[i] for i in order.tolist())


class JobRows:
    """Rows of the last look, found again by the identity of their records."""

    def __init__(self) -> None:
        self._around: Surroundings | None = None
        self._estimator: object = None
        self._named: object = None
        self._nodes: KnownNodes[SlurmNode] = {}
        self._forget()

    def _forget(self) -> None:
        self._at: dict[int, int] = {}
        self._jobs: Sequence[SlurmJob] = ()  # keeps the records alive, and with them their identity
        self._rows = np.zeros(0, dtype=ROW)
        self.names = {name: Names() for name in _NUMBERED}

    def nodes_like(self, named: object) -> KnownNodes[SlurmNode]:
        """The nodes of the last look, as long as jobs name the same features and switches are where they were."""
        if named != self._named:
            self._named, self._nodes = named, {}
        return self._nodes

    def read(self, jobs: Sequence[SlurmJob], around: Surroundings, estimator: object = None) -> Array:
        """A row for each job, in the order given; another estimator numbers its groups in its own way."""
        crowded = max(len(n.texts) for n in self.names.values()) > 4 * len(jobs) + _ROOM
        if around != self._around or estimator is not self._estimator or crowded:
            self._forget()
            self._around, self._estimator = around, estimator
        ids = [id(job) for job in jobs]
        found = np.fromiter((self._at.get(i, -1) for i in ids), dtype=np.int64, count=len(ids))
        at = found.copy()
        fresh = self._reprioritised(jobs, at, np.flatnonzero(at < 0).tolist())
        rows = self._rows[at] if len(self._rows) else np.zeros(len(jobs), dtype=ROW)
        self._renew(rows, jobs, np.flatnonzero(at != found), around)
        if fresh:
            rows[fresh] = np.array([self._row(jobs[i], around) for i in fresh], dtype=ROW)
        self._at, self._jobs, self._rows = dict(zip(ids, range(len(ids)), strict=True)), jobs, rows
        return rows.copy()

    def _reprioritised(self, jobs: Sequence[SlurmJob], at: Array, unknown: list[int]) -> list[int]:
        """Finds the rows of records that differ from the last look by their priority alone; the rest of `unknown`."""
        if not unknown or not len(self._rows):
            return unknown
        known = self._rows["job_id"]
        same = np.flatnonzero(np.isin(known, [jobs[i].job_id for i in unknown]))
        ids = dict(zip(known[same].tolist(), same.tolist(), strict=True))
        rest = []
        for i in unknown:
            job, row = jobs[i], ids.get(jobs[i].job_id, -1)
            before = self._jobs[row] if row >= 0 else None
            if before is not None and before == replace(job, priority=before.priority, factors=before.factors):
                at[i] = row
            else:
                rest.append(i)
        return rest

    def _renew(self, rows: Array, jobs: Sequence[SlurmJob], changed: Array, around: Surroundings) -> None:
        """Writes what follows from the priorities of records that are otherwise as they were."""
        if not len(changed):
            return
        terms = [jobs[i].factors for i in changed.tolist()]
        rows["base"][changed] = [own_priority(f) if f else 0 for f in terms]
        rows["site"][changed] = [f.site if f else 0 for f in terms]
        rows["size"][changed] = [f.job_size if f else -1 for f in terms]
        rows["share"][changed] = [f.fairshare_normalized if f else np.nan for f in terms]
        number = self.names["why"]
        rows["why"][changed] = [number(_why(jobs[i], around)) for i in changed.tolist()]

    def keep_groups(self, rows: Array) -> None:
        """Takes over the groups that were found for rows of the last `read`, in its order."""
        self._rows["group"], self._rows["volume"] = rows["group"], rows["volume"]

    def _row(self, job: SlurmJob, around: Surroundings) -> tuple[object, ...]:
        n, f = self.names, job.factors
        several = job.partitions
        if len(several) > 1:  # of several partitions, Slurm tries the one of the highest tier first
            ahead = {p: (-tier, -factor) for p, (tier, factor, _) in around.partitions.items()}
            several = tuple(sorted(several, key=lambda p: ahead.get(p, (0, 0))))
        nowhere = (1, 1, None)
        most = around.partitions.get(several[0], nowhere)[2] if several else None
        pending, gpus = job.pending, job.gpu_count
        never = never_ours(job, around.leave_alone) if pending else ""
        listed = pending and bool(job.excluded_nodes or job.required_nodes)
        return (
            job.job_id,
            job.submit_time or 0,
            job.eligible_time or 0,
            job.time_limit or most or FOREVER,
            own_priority(f) if f else 0,
            f.site if f else 0,
            f.job_size if f else -1,
            max(job.array_task_count, 1),
            gpus,
            job.cpus,
            job.mem_mb / 1024,
            -job.nice,
            f.fairshare_normalized if f else np.nan,
            -1.0,
            max(job.nodes, len(set(job.required_nodes)) if pending else 0, 1),
            max((around.partitions.get(p, nowhere)[0] for p in several), default=1),
            n["why"](_why(job, around)),
            n["user"](job.user or "?"),
            n["account"](job.account or "?"),
            n["name"](job.name),
            n["qos"](job.qos),
            n["gpu_type"](_gpu_type(job, around.types)),
            n["partition"](",".join(several)),
            n["first"](job.partitions[0] if job.partitions else ""),
            n["gres"](job.gres),
            n["constraint"](job.features) if pending else -1,
            n["constraint"](_wish(job)),
            pending,
            job.running and bool(job.node_list) and not around.known.isdisjoint(job.partitions),
            bool(never),
            listed,
            pending and keeps_back(job.reason),
            job.exclusive,
            (-1,) * LEVELS,
        )


def _why(job: SlurmJob, around: Surroundings) -> str:
    """Why a job is never ordered, at any time; "" if it is ordered, or does not wait."""
    if not job.pending:
        return ""
    alone = never_ours(job, around.leave_alone) or why_left_alone(job, np.inf, around.known)
    return alone or not_understood(job, around.features)


def never_ours(job: SlurmJob, leave_alone: LeaveAlone) -> str:
    """Why a job must not have a factor of ours, in any state; "" if it may."""
    if job.cron:
        return "a cron job: Slurm refuses its updates"
    if job.reservation:
        return "in a reservation"
    if job.het_job_id:
        return "part of a heterogeneous job"
    return leave_alone.why(",".join(job.partitions), job.qos, job.account, job.user, job.comment)


def why_left_alone(job: SlurmJob, now: float, partitions: frozenset[str] | set[str]) -> str:
    """Why a pending job is not ours to order now; "" if it is."""
    if job.held:
        return "held"
    if by_hand(job):
        return "its priority was set by hand (scontrol update Priority=…)"
    if not job.eligible(now):
        return "not eligible yet"
    if job.factors is None:
        return "Slurm shows no priority factors of it"
    if job.submit_time is None:
        return "Slurm shows no submit time of it"
    if partitions.isdisjoint(job.partitions):
        return "its partition has no nodes"
    return ""


def own_priority(factors: PriorityFactors) -> int:
    """Slurm's priority of a job as it would be without our factor, to the last point.

    Slurm adds fractions and cuts off their sum, while sprio rounds each term: their sum may be some points off.
    """
    f = factors
    terms = f.age + f.assoc + f.fairshare + f.job_size + f.partition + f.qos + f.tres - f.nice
    exact = f.priority - f.site
    return exact if abs(exact - terms) <= _ROUNDING else terms  # no priority is below 1, whatever its terms


def _wish(job: SlurmJob) -> str:
    """What a waiting job would rather have; "" if that is nothing, or is not understood."""
    try:
        return job.prefer if job.pending and parse_constraint(job.prefer) else ""
    except InputError:
        return ""


def _gpu_type(job: SlurmJob, types: frozenset[str]) -> str:
    """The GPU types that will do, "A|B"; a constraint counts where it names nothing but types."""
    named = [t for t, count in job.gpus.items() if t and count]
    if not named and job.features and job.gpu_count:
        words = job.features.strip("()").split("|")
        named = words if all(w in types for w in words) else []
    return "|".join(named)
