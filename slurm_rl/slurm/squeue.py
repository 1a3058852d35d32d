"""Reads jobs from the text of squeue, in every release of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from sys import intern
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from slurm_rl.errors import SlurmError
from slurm_rl.slurm.command import UNIT, Answer, each_record, records
from slurm_rl.slurm.gres import asked_of_each_node
from slurm_rl.slurm.model import PriorityFactors, SlurmJob
from slurm_rl.slurm.quantities import (
    array_tasks,
    expand_hosts,
    first_number,
    gpus_in_gres,
    gpus_in_tres,
    named,
    present,
    seconds,
    task_numbers,
    timestamp,
    tres,
)
from slurm_rl.slurm.release import Traits
from slurm_rl.slurm.squeue_more import NO_DETAILS, STATES, Details, RequestDetails

NO_COMMENT = "(null)"  # squeue cannot tell it from a job that has none
JOB_FIELDS = (
    "JobID",
    "ArrayJobID",
    "ArrayTaskID",
    "HetJobID",
    "HetJobOffset",
    "Name",
    "UserName",
    "Account",
    "QOS",
    "RestartCnt",
    "Comment",
    "Partition",
    "State",
    "Reason",
    "Dependency",
    "Reservation",
    "SubmitTime",
    "EligibleTime",
    "StartTime",
    "EndTime",
    "TimeLimit",
    "NumNodes",
    "NumCPUs",
    "NumTasks",
    "tres-alloc",
    "tres-per-job",
    "tres-per-node",
    "tres-per-task",
    "Feature",
    "Prefer",
    "ReqNodes",
    "OverSubscribe",
    "NodeList",
    "PriorityLong",
    "Nice",
    "Deadline",
)
# What jobs seldom share; of everything else there are few kinds.
_OWN = (
    "ArrayJobID",
    "ArrayTaskID",
    "Name",
    "UserName",
    "Account",
    "Comment",
    "Dependency",
    "SubmitTime",
    "EligibleTime",
    "StartTime",
    "EndTime",
    "NodeList",
    "PriorityLong",
)
_ARRAY_FIELDS = ("ArrayJobID", "ArrayTaskID")


def job_fields(traits: Traits) -> tuple[str, ...]:
    """The fields we ask squeue for."""
    more = (("Exclusive",) if traits.exclusive_field else ()) + (("CronJob",) if traits.cron_field else ())
    return JOB_FIELDS + more


def command(traits: Traits, mark: str, *, plain: bool = False) -> tuple[str, ...]:
    """squeue with every record's own values: by itself it merges an array's separate pending records into one line.

    A suffix without a width prints the whole value, where the default cuts at 20 characters. `plain` as of
    `split_records`.
    """
    *others, last = job_fields(traits)
    wanted = ",".join([*(f"{field}:{UNIT if plain else mark}" for field in others), f"{last}:{mark}"])
    each = "--array-unique" if traits.array_unique else "--array"
    return ("squeue", "-h", "-a", each, "-t", STATES, "-O", wanted)


class Waiting(NamedTuple):
    """What of an array waits, and how many of its tasks may run at once (0: any number)."""

    tasks: frozenset[int]
    limit: int


def arrays_command(mark: str) -> tuple[str, ...]:
    """squeue for what a line per task leaves out: the arrays' `%limit`, and the last task of a list with a step."""
    return ("squeue", "-h", "-a", "-t", "PENDING", "-O", ",".join(f"{field}:{mark}" for field in _ARRAY_FIELDS))


def arrays(output: str, mark: str) -> dict[int, Waiting]:
    """What of each array waits, from `arrays_command`."""
    found: dict[int, Waiting] = {}
    for r in records(output, _ARRAY_FIELDS, mark):
        if not present(r["ArrayTaskID"]) or r["ArrayTaskID"].isdecimal():
            continue  # no array, or a task by itself
        try:
            array, (listed, limit) = int(r["ArrayJobID"]), task_numbers(r["ArrayTaskID"])
        except ValueError as error:
            raise SlurmError(f"squeue: array {r['ArrayJobID']!r} is unreadable: {error}") from None
        before = found.get(array, Waiting(frozenset(), 0))
        found[array] = Waiting(before.tasks | listed, before.limit or limit)
    return found


class KnownJobs:
    """The last look at a queue: how its records were printed, what they were read as, and what else that took."""

    def __init__(self) -> None:
        self.jobs: dict[str, SlurmJob] = {}  # by what is printed of a record
        self.printed: dict[int, str] = {}  # … which is found here by job id
        self.details: Details = {}
        self.cron: frozenset[int] = frozenset()


def jobs(
    output: str | Answer,
    mark: str,
    factors: Mapping[int, PriorityFactors],
    traits: Traits,
    *,
    waiting: Mapping[int, Waiting] = MappingProxyType({}),
    cron: frozenset[int] = frozenset(),
    details: Details | Callable[[frozenset[int]], Details] = MappingProxyType({}),
    known: KnownJobs | None = None,
    plain: bool = False,
) -> list[SlurmJob]:
    """Jobs from `squeue`, one per record, in the order of their first lines.

    `details` may be a function that is given the ids of waiting jobs. `known` is the caller's, empty at first: of a
    record that is printed as at the last look, and of which the other commands say the same, it gets the same object.
    """
    fields = job_fields(traits)
    known = KnownJobs() if known is None else known
    state, behind = fields.index("State"), len(fields) - fields.index("PriorityLong")
    each = each_record(output, fields, mark, plain=plain)
    lines, ids, before = _records(each, known.jobs, waiting, state)
    if callable(details):
        pending = [
            job_id
            for job_id, raw, job in zip(ids, lines, before, strict=True)
            if (job.state if job is not None else _field(raw, state)) == "PENDING"
        ]
        details = details(frozenset(pending))
    others = {i for i in details.keys() | known.details.keys() if details.get(i) != known.details.get(i)}
    others |= cron ^ known.cron
    found, now, printed, term = [], {}, {}, factors.get
    for job_id, raw, same in zip(ids, lines, before, strict=True):
        job, terms = same, term(job_id)
        if job is None and (last := known.printed.get(job_id)) is not None and _same_but_priority(raw, last, behind):
            # Every job's priority changes when Slurm calculates them anew: that alone is no reason to read it again.
            own = first_number(raw.rsplit("\0", behind)[1], 0)
            job = msgspec.structs.replace(known.jobs[last], priority=own, factors=terms)
        if job is None or (others and (job_id in others or job.array_job_id in others)):
            values = raw.split("\0")
            more = _details_of(job_id, values[1], details)
            job = _job(job_id, values, fields, terms, traits, more, cron=job_id in cron)
        elif job.factors is not terms:
            job = msgspec.structs.replace(job, factors=terms)
        found.append(job)
        now[raw] = job
        printed[job_id] = raw
    known.jobs, known.printed = now, printed
    known.details, known.cron = dict(details), cron
    return found


def _records(
    lines: Iterable[str], known: Mapping[str, SlurmJob], waiting: Mapping[int, Waiting], state: int
) -> tuple[list[str], list[int], list[SlurmJob | None]]:
    """What is printed of each record, its id, and what it was last read as, if it was printed so then.

    Of several lines of a record the first one counts, with the tasks of them all: of an array of a million tasks there
    are as many, which are not kept.
    """
    if not waiting:
        lines = list(lines)
        before = [known.get(raw) for raw in lines]
        ids = [job.job_id if job is not None else _job_id(raw) for raw, job in zip(lines, before, strict=True)]
        if len(set(ids)) == len(ids):
            return lines, ids, before
    rows: dict[str, tuple[str, str, str]] = {}
    tasks: dict[str, list[str]] = {}
    listed: dict[str, set[str]] = {}
    for raw in lines:
        job_id, array, task, rest = raw.split("\0", 3)
        rows.setdefault(job_id, (array, task, rest))
        if task != "N/A" and present(task):
            tasks.setdefault(job_id, []).append(task)
            listed.setdefault(array, set()).add(task)
    _add_waiting(tasks, listed, waiting, lambda job_id: _field(rows[job_id][2], state - 3) == "PENDING")
    merged = [
        "\0".join((job_id, array, ",".join(tasks.get(job_id, (task,))), rest))
        for job_id, (array, task, rest) in rows.items()
    ]
    return merged, [_job_id(raw) for raw in merged], [known.get(raw) for raw in merged]


def _job_id(raw: str) -> int:
    text = raw.partition("\0")[0]
    try:
        return int(text)
    except ValueError as error:
        raise SlurmError(f"squeue: job {text!r} is unreadable: {error}") from None


def _field(raw: str, number: int) -> str:
    return raw.split("\0", number + 1)[number]


def _same_but_priority(raw: str, last: str, behind: int) -> bool:
    head, _, *rest = raw.rsplit("\0", behind)
    before, _, *others = last.rsplit("\0", behind)
    return head == before and rest == others


def _add_waiting(
    tasks: dict[str, list[str]],
    listed: Mapping[str, set[str]],
    waiting: Mapping[int, Waiting],
    pending: Callable[[str], bool],
) -> None:
    """Adds to the tasks of each record what a line per task leaves out."""
    for array, found in waiting.items():
        own = str(array)  # an array's tasks that were never apart have the array's own id
        if own in tasks and pending(own):
            tasks[own] += [t for t in map(str, sorted(found.tasks)) if t not in listed[own]]
            tasks[own][-1] += f"%{found.limit}" if found.limit else ""


def _details_of(job_id: int, array: str, details: Details) -> RequestDetails:
    """What is asked by a job, or by its array: lines of an array's separate records are merged there."""
    return details.get(job_id) or details.get(first_number(array, 0)) or NO_DETAILS


@lru_cache(maxsize=16_384)
def _request(
    allocated: str, per_job: str, per_node: str, per_task: str, per_socket: str, nodes: int, tasks: int
) -> tuple[dict[str, int], dict[str, int], str, str]:
    """TRES, GPUs by type, other GRES, and what is not understood; alike jobs share them."""
    counts = tres(allocated)
    gpus = requested_gpus(counts, per_job, per_node, per_task, nodes, tasks)
    return counts, gpus, *asked_of_each_node(per_job, per_node, per_task, per_socket, nodes, tasks)


@lru_cache(maxsize=16_384)
def _kind(values: tuple[str, ...], fields: tuple[str, ...], traits: Traits, more: RequestDetails) -> SlurmJob:
    """What alike jobs share, from fields that are the same of many; `_OWN` are left out."""
    r = dict(zip(fields, values, strict=True))
    nodes, tasks = first_number(r["NumNodes"], 1), first_number(r["NumTasks"], 1)
    asked = (r["tres-per-job"], r["tres-per-node"], r["tres-per-task"], more.per_socket)
    counts, gpus, gres, problem = _request(r["tres-alloc"], *asked, nodes, tasks)
    return SlurmJob(
        job_id=0,
        qos=intern(named(r["QOS"])),
        restarts=first_number(r["RestartCnt"], 0),
        partitions=_listed(r["Partition"]),
        state=intern(r["State"]),
        reason=intern(present(r["Reason"])),
        reservation=named(r["Reservation"]),
        cron=traits.cron_field and r["CronJob"] == "Yes",
        het_job_id=first_number(r["HetJobID"], 0),
        het_offset=first_number(r["HetJobOffset"], 0),
        deadline=timestamp(r["Deadline"]),
        time_limit=seconds(r["TimeLimit"]),
        nodes=nodes,
        cpus=max(first_number(r["NumCPUs"], 1), more.cpus_per_gpu * sum(gpus.values())),
        tasks=tasks,
        mem_mb=counts.get("mem", 0),
        gpus=gpus,
        gres=gres,
        not_understood=problem,
        excluded_nodes=more.excluded,
        switches=more.switches,
        switch_wait=more.switch_wait,
        segment=more.segment,
        tres=counts,
        features=intern(named(r["Feature"])),
        prefer=intern(named(r["Prefer"])),
        required_nodes=expand_hosts(r["ReqNodes"]),
        exclusive=_exclusive(r, traits),
        nice=int(r["Nice"]),
    )


class _Fields(NamedTuple):
    """Where a record's own fields stand, and those that it shares with others."""

    own: Callable[[Sequence[str]], tuple[str, ...]]
    shared: Callable[[Sequence[str]], tuple[str, ...]]
    shared_names: tuple[str, ...]


@lru_cache(maxsize=8)
def _fields(names: tuple[str, ...]) -> _Fields:
    shared = tuple(name for name in names if name not in _OWN and name != "JobID")
    at = {name: i for i, name in enumerate(names)}
    return _Fields(itemgetter(*(at[n] for n in _OWN)), itemgetter(*(at[n] for n in shared)), shared)


def _job(
    job_id: int,
    values: Sequence[str],
    names: tuple[str, ...],
    factors: PriorityFactors | None,
    traits: Traits,
    more: RequestDetails,
    *,
    cron: bool,
) -> SlurmJob:
    """One job from the fields of its record."""
    fields = _fields(names)
    array, listed, name, user, account, comment, dependency, submit, eligible, start, end, node_list, priority = (
        fields.own(values)
    )
    try:
        kind = _kind(fields.shared(values), fields.shared_names, traits, more)
        told: dict[str, Any] = {"cron": True} if cron and not traits.cron_field else {}
        if listed != "N/A" and present(listed):
            waiting, count, limit = array_tasks(listed)
            told["array_job_id"] = int(array)
            told["array_task_id"] = int(waiting) if waiting.isdecimal() else None
            told |= {"array_tasks": waiting, "array_task_count": count, "array_max_running": limit}
        return msgspec.structs.replace(
            kind,
            job_id=job_id,
            name=intern(name),
            user=intern(user),
            account=intern(named(account)),
            comment="" if comment == NO_COMMENT else comment,
            dependency=named(dependency),
            submit_time=timestamp(submit),
            eligible_time=timestamp(eligible),
            start_time=timestamp(start),
            end_time=timestamp(end),
            node_list=expand_hosts(node_list),
            priority=first_number(priority, 0),
            factors=factors,
            **told,
        )
    except ValueError as error:
        raise SlurmError(f"squeue: job {values[0]!r} is unreadable: {error}") from None


@lru_cache(maxsize=4096)
def _listed(names: str) -> tuple[str, ...]:
    return tuple(map(intern, names.split(",")))


def _exclusive(r: Mapping[str, str], traits: Traits) -> bool:
    """Whether a job takes whole nodes for itself."""
    return r["Exclusive"] == "NODE" if traits.exclusive_field else r["OverSubscribe"] in ("NO", "EXCLUSIVE")


def requested_gpus(
    counts: dict[str, int], per_job: str, per_node: str, per_task: str, nodes: int, tasks: int
) -> dict[str, int]:
    """GPUs by type: from TRES, or, where the site does not track GPU types there, from the request itself."""
    tracked = gpus_in_tres(counts)
    if tracked and set(tracked) != {""}:
        return tracked
    asked: dict[str, int] = {}
    for text, times in ((per_job, 1), (per_node, nodes), (per_task, tasks)):
        asked = {kind: n * times for kind, n in gpus_in_gres(text).items()}
        if asked:
            break
    total, named = sum(tracked.values()), sum(asked.values())
    if total and named != total and len(asked) == 1:  # a request by task whose number Slurm chose itself
        return {next(iter(asked)): total}
    return asked or tracked
