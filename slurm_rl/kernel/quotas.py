"""Limits as rows that count: which of them a job falls under, how far each is used, whether the job may start.

Implements L1 to L5 of docs/backfill.md. A *quota* is one limit of one owner (GPUs of QOS normal, running jobs of ann in
account lab, licences matlab) with what is used of it; a *bound* says that a job counts so much towards a quota. Jobs
that fall under the same quotas with the same amounts share a list of bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_rl.domain.limits import Bounds, Limits
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import GIVE, Array, Record
from slurm_rl.kernel.jit import inlined, inner
from slurm_rl.kernel.reserved import lasts

MOST, USED = range(2)  # columns of `quotas`
QUOTA, AMOUNT, KIND = range(3)  # columns of `bounds`
# What a bound bounds: the number of running jobs, licences, amounts of TRES, or the number of jobs that wait or run.
# The last two only count, jobs that run or jobs that are submitted: a QOS has a limit of that kind, which goes before.
JOBS, LICENSES, AMOUNTS, SUBMITTED, COUNTS, ENTERED = range(1, 7)
RESERVED = 7  # no bound, but what else holds a job back: its reservation has not begun, or is over
PARTS = 1000  # amounts are in thousandths: shares of GPUs count, too

Row = tuple[int, int, int]  # quota, amount, kind


@dataclass(frozen=True, slots=True)
class Asker:
    """A job as limits see it; amounts by TRES, memory in MB."""

    user: str
    account: str
    qos: str
    partition: str
    tres: Mapping[str, float]
    licenses: Mapping[str, int] = field(default_factory=dict)


class QuotaBook:
    """Every quota that jobs of a site fall under, made as jobs are looked at."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.names: list[str] = []  # of each quota: owner and limit
        self.most: list[int] = []
        self._index: dict[str, int] = {}

    def rows(self, job: Asker) -> list[Row]:
        """The bounds of a job, those that are asked first in front."""
        found: list[Row] = []
        taken: set[str] = set()
        limits = self.limits
        for name, bounds in self._qos(job):
            found += self._of_qos(job, name, bounds, taken)
        found += self._of_associations(job, taken)
        for name, count in job.licenses.items():
            if limits.licenses is not None and name in limits.licenses:
                found.append(self._row("licence", name, limits.licenses[name], count, LICENSES))
        return sorted(found, key=lambda row: row[2])

    def why_never(self, job: Asker) -> str:
        """Why a job can never start, whatever else runs; "" if it can."""
        limits = self.limits
        partition = limits.partition.get(job.partition)
        nodes = job.tres.get("node", 0)
        if partition is not None and partition.max_nodes is not None and nodes > partition.max_nodes:
            return f"partition {job.partition}: MaxNodes is {partition.max_nodes}, it asks for {nodes:g}"
        for name in job.licenses:
            if limits.licenses is not None and name not in limits.licenses:
                return f"there is no licence {name!r}"
        settled: set[str] = set()
        owners = [(f"QOS {name}", b) for name, b in self._qos(job)]
        owners += [("association", b) for b in self._inherited(job)]
        for owner, bounds in owners:
            for tres, most in bounds.max_tres_job.items():
                asked = amount_of(job, tres)
                if tres not in settled and asked > most:
                    return f"{owner}: MaxTRESPerJob of {tres} is {most:g}, it asks for {asked:g}"
            settled |= set(bounds.max_tres_job)
        for quota, amount, kind in self.rows(job):
            if kind <= SUBMITTED and amount > self.most[quota]:
                return f"{self.names[quota]} is {self.most[quota] / PARTS:g}, it asks for {amount / PARTS:g}"
        return ""

    def longest(self, job: Asker) -> tuple[int, str] | None:
        """The longest time limit that a job may have, and whose limit that is; None: any."""
        found: list[tuple[int, str]] = []
        partition = self.limits.partition.get(job.partition)
        if partition is not None and partition.max_time is not None:
            found.append((partition.max_time, f"partition {job.partition}: MaxTime"))
        owners = [(f"QOS {name}", b) for name, b in self._qos(job)]
        owners += [("association", b) for b in self._inherited(job)]
        for owner, bounds in owners:
            if bounds.max_wall is not None:
                found.append((bounds.max_wall, f"{owner}: MaxWall"))
                break
        return min(found, default=None)

    def tables(self, lists: Sequence[list[Row]], of_job: Array) -> dict[str, Array]:
        """The tables of a World, from distinct lists of bounds and the list of each job."""
        flat = [row for rows in lists for row in rows]
        most = self.most or [0]
        return {
            "quotas": np.array([(limit, 0) for limit in most], dtype=np.int64),
            "bounds": np.array(flat or [(0, 0, 0)], dtype=np.int64).reshape(-1, 3),
            "bound_ptr": np.concatenate([[0], np.cumsum([len(rows) for rows in lists])]).astype(np.int64),
            "bound_of": np.ascontiguousarray(of_job, dtype=np.int64),
        }

    def _qos(self, job: Asker) -> list[tuple[str, Bounds]]:
        """The partition's QOS, then the job's; of each limit, the first that has it counts."""
        partition = self.limits.partition.get(job.partition)
        names = [partition.qos if partition is not None else "", job.qos or self.limits.default_qos]
        own = self.limits.qos.get(names[1])
        if own is not None and own.over_partition:
            names.reverse()
        return [(name, self.limits.qos[name]) for name in dict.fromkeys(names) if name in self.limits.qos]

    def _inherited(self, job: Asker) -> list[Bounds]:
        """A user's association, then those of accounts that it takes missing limits from."""
        above = (self.limits.account[a] for a in self.limits.above(job.account) if a in self.limits.account)
        return [self.limits.of_user(job.user, job.account), *above]

    def _of_qos(self, job: Asker, name: str, bounds: Bounds, taken: set[str]) -> Iterable[Row]:
        who = {"": "", "user": f" for {job.user or 'one user'}", "account": f" for account {job.account}"}
        new: set[str] = set()
        amounts = (("", "GrpTRES", bounds.grp_tres), ("user", "MaxTRESPU", bounds.max_tres_user))
        for scope, limit, counts in (*amounts, ("account", "MaxTRESPA", bounds.max_tres_account)):
            for tres, most in counts.items():
                what = f"{limit} of {tres}"
                new.add(what)
                if asked := amount_of(job, tres):
                    kind = _only_counts(AMOUNTS, what in taken)
                    yield self._row(f"QOS {name}{who[scope]}", what, most, asked, kind)
        numbers = (
            ("", "GrpJobs", bounds.grp_jobs, JOBS),
            ("user", "MaxJobsPU", bounds.max_jobs_user, JOBS),
            ("account", "MaxJobsPA", bounds.max_jobs_account, JOBS),
            ("", "GrpSubmitJobs", bounds.grp_submit, SUBMITTED),
            ("user", "MaxSubmitJobsPU", bounds.max_submit_user, SUBMITTED),
            ("account", "MaxSubmitJobsPA", bounds.max_submit_account, SUBMITTED),
        )
        for scope, limit, number, kind in numbers:
            if number is not None:
                new.add(limit)
                yield self._row(f"QOS {name}{who[scope]}", limit, number, 1, _only_counts(kind, limit in taken))
        taken |= new

    def _of_associations(self, job: Asker, taken: set[str]) -> Iterable[Row]:
        own = self.limits.of_user(job.user, job.account)
        me = f"user {job.user or '(none)'} in account {job.account or '(none)'}"
        owners = [(me, own)]
        owners += [
            (f"account {a}", self.limits.account[a]) for a in self.limits.above(job.account) if a in self.limits.account
        ]
        for owner, bounds in owners:
            for tres, most in bounds.grp_tres.items():
                what = f"GrpTRES of {tres}"
                if asked := amount_of(job, tres):
                    yield self._row(owner, what, most, asked, _only_counts(AMOUNTS, what in taken))
            for limit, number, kind in (
                ("GrpJobs", bounds.grp_jobs, JOBS),
                ("GrpSubmitJobs", bounds.grp_submit, SUBMITTED),
            ):
                if number is not None:
                    yield self._row(owner, limit, number, 1, _only_counts(kind, limit in taken))
        for limit, where, kind in (("MaxJobs", "max_jobs_user", JOBS), ("MaxSubmitJobs", "max_submit_user", SUBMITTED)):
            number = next((v for b in self._inherited(job) if (v := getattr(b, where)) is not None), None)
            if number is not None:
                settled = bool({f"{limit}PU", f"{limit}PA"} & taken)
                yield self._row(me, limit, number, 1, _only_counts(kind, settled))

    def _row(self, owner: str, limit: str, most: float, amount: float, kind: int) -> Row:
        name = f"{owner}: {limit}"
        if name not in self._index:
            self._index[name] = len(self.names)
            self.names.append(name)
            self.most.append(round(most * PARTS))
        return self._index[name], round(amount * PARTS), kind


def _only_counts(kind: int, settled: bool) -> int:
    """The kind of a bound, where another limit of that kind may have settled the matter."""
    return kind if not settled else ENTERED if kind == SUBMITTED else COUNTS


def amount_of(job: Asker, tres: str) -> float:
    """What a job counts towards a TRES."""
    if tres.startswith("license/"):
        return float(job.licenses.get(tres.removeprefix("license/"), 0))
    return job.tres.get(tres.lower(), 0.0)


def tables_for(world: t.World, who: Array, running: Array) -> dict[str, Array]:
    """The tables of another World, of the jobs `who` of this one, used up by `running` of them; {} without limits.

    Limits on the number of submitted jobs no longer count: whoever is there was let in.
    """
    if not len(world["quotas"]):
        return {}
    bounds, quotas, count = world["bounds"].copy(), world["quotas"].copy(), int(world["bound_ptr"][-1])
    bounds[np.isin(bounds[:, KIND], (SUBMITTED, ENTERED)), AMOUNT] = 0
    lists = len(world["bound_ptr"]) - 1
    runs = np.repeat(np.bincount(world["bound_of"][running], minlength=lists), np.diff(world["bound_ptr"]))
    quotas[:, USED] = 0
    np.add.at(quotas[:, USED], bounds[:count, QUOTA], runs * bounds[:count, AMOUNT])
    return {
        "quotas": quotas,
        "bounds": bounds,
        "bound_ptr": world["bound_ptr"].copy(),
        "bound_of": np.ascontiguousarray(world["bound_of"][who]),
    }


def linked_pools(world: t.World, pools: Array, there: Array) -> Array:
    """These pools, and those that share with them a limit which the jobs `there`, waiting and running, may reach."""
    if not len(world["quotas"]):
        return pools
    bounds, ptr = world["bounds"], world["bound_ptr"]
    pool = world["requests"]["pool"][world["jobs"]["request"][there]]
    pairs, times = np.unique(np.stack([pool, world["bound_of"][there]]), axis=1, return_counts=True)
    asked = np.zeros(len(world["quotas"]), dtype=np.int64)
    members: list[tuple[int, int]] = []  # a pool and a limit that its jobs count towards
    for (p, of), n in zip(pairs.T.tolist(), times.tolist(), strict=True):
        rows = bounds[ptr[of] : ptr[of + 1]]
        rows = rows[rows[:, KIND] <= AMOUNTS]
        np.add.at(asked, rows[:, QUOTA], n * rows[:, AMOUNT])
        members += [(p, q) for q in rows[:, QUOTA].tolist()]
    scarce = set(np.flatnonzero(asked > world["quotas"][:, MOST]).tolist())
    members = [(p, q) for p, q in dict.fromkeys(members) if q in scarce]
    found = set(pools.tolist())
    while True:
        shared = {q for p, q in members if p in found}
        more = found | {p for p, q in members if q in shared}
        if more == found:
            return np.array(sorted(found), dtype=np.int64)
        found = more


@inlined
def held_back(w: Record, j: int) -> int:
    """L1: the kind of the first limit that keeps a job from starting now, or RESERVED (V2); 0: none does."""
    if w.quotas_0 == 0 and w.kept_0 == 0:
        return 0
    return int(_over(w, j))


@inner
def _over(w: Record, j: int) -> int:
    if w.kept_0 > 0 and not lasts(w, j, w.clock):
        return RESERVED
    if w.quotas_0 == 0:
        return 0
    bounds, quotas = t.bounds(w), t.quotas(w)
    c = t.bound_of(w)[j]
    for at in range(t.bound_ptr(w)[c], t.bound_ptr(w)[c + 1]):
        kind = bounds[at, KIND]
        if kind > AMOUNTS:
            break  # these come last
        if quotas[bounds[at, QUOTA], USED] + bounds[at, AMOUNT] > quotas[bounds[at, QUOTA], MOST]:
            return int(kind)
    return 0


@inner
def count_run(w: Record, j: int, sign: int) -> None:
    """L2: counts a job that starts (GIVE: 1), or ends (TAKE: -1), towards its quotas."""
    _count(w, j, sign, False)


@inner
def count_submitted(w: Record, j: int, sign: int) -> None:
    """L4: counts a job that is submitted, or has ended, towards limits on jobs that wait or run."""
    _count(w, j, sign, True)


@inlined
def _count(w: Record, j: int, sign: int, submitted: bool) -> None:
    bounds, quotas = t.bounds(w), t.quotas(w)
    c = t.bound_of(w)[j]
    for at in range(t.bound_ptr(w)[c], t.bound_ptr(w)[c + 1]):
        if (bounds[at, KIND] in (SUBMITTED, ENTERED)) == submitted:
            quotas[bounds[at, QUOTA], USED] += sign * bounds[at, AMOUNT]


@inner
def admit(w: Record, j: int) -> bool:
    """L4: whether a job may be submitted; counts it if so."""
    bounds, quotas = t.bounds(w), t.quotas(w)
    c = t.bound_of(w)[j]
    for at in range(t.bound_ptr(w)[c], t.bound_ptr(w)[c + 1]):
        q = bounds[at, QUOTA]
        if bounds[at, KIND] == SUBMITTED and quotas[q, USED] + bounds[at, AMOUNT] > quotas[q, MOST]:
            return False
    count_submitted(w, j, GIVE)
    return True
