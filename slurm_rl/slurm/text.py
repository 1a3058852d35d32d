"""Reads what squeue, sprio, sshare, scontrol and sdiag print as text; the formats are the same in 22.05–26.05."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from slurm_rl.errors import SlurmError
from slurm_rl.slurm.command import key_values, records
from slurm_rl.slurm.model import Health, PriorityFactors, PriorityWeights, SlurmJob, SlurmNode, SlurmPartition
from slurm_rl.slurm.quantities import (
    array_tasks,
    expand_hosts,
    gpus_in_gres,
    gpus_in_tres,
    present,
    seconds,
    timestamp,
    tres,
)

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
FACTOR_FIELDS = ("%i", "%Y", "%A", "%B", "%F", "%J", "%P", "%Q", "%S", "%T", "%N", "%f")
_TRES_TERM = re.compile(r"=(-?[\d.]+)")


def squeue_format(mark: str) -> str:
    """`-O`'s argument; a suffix without a width prints the whole value, where the default cuts at 20 characters."""
    return ",".join(f"{field}:{mark}" for field in JOB_FIELDS)


def jobs(
    output: str, mark: str, factors: Mapping[int, PriorityFactors], cron: frozenset[int] = frozenset()
) -> list[SlurmJob]:
    """Jobs from `squeue -O`."""
    return [_job(r, factors, cron) for r in records(output, JOB_FIELDS, mark)]


def _job(r: Mapping[str, str], factors: Mapping[int, PriorityFactors], cron: frozenset[int]) -> SlurmJob:
    try:
        job_id = int(r["JobID"])
        nodes, tasks = _first_number(r["NumNodes"], 1), _first_number(r["NumTasks"], 1)
        counts = tres(r["tres-alloc"])
        is_array = present(r["ArrayTaskID"]) != ""
        waiting, count, limit = array_tasks(r["ArrayTaskID"]) if is_array else ("", 1, 0)
        single = is_array and waiting.isdecimal()
        return SlurmJob(
            job_id=job_id,
            name=r["Name"],
            user=r["UserName"],
            account=present(r["Account"]),
            qos=present(r["QOS"]),
            partitions=tuple(r["Partition"].split(",")),
            state=r["State"],
            reason=present(r["Reason"]),
            dependency=present(r["Dependency"]),
            reservation=present(r["Reservation"]),
            cron=job_id in cron,
            array_job_id=int(r["ArrayJobID"]) if is_array else 0,
            array_task_id=int(waiting) if single else None,
            array_tasks=waiting,
            array_task_count=count,
            array_max_running=limit,
            het_job_id=_first_number(r["HetJobID"], 0),
            het_offset=_first_number(r["HetJobOffset"], 0),
            submit_time=timestamp(r["SubmitTime"]),
            eligible_time=timestamp(r["EligibleTime"]),
            start_time=timestamp(r["StartTime"]),
            end_time=timestamp(r["EndTime"]),
            deadline=timestamp(r["Deadline"]),
            time_limit=seconds(r["TimeLimit"]),
            nodes=nodes,
            cpus=_first_number(r["NumCPUs"], 1),
            tasks=tasks,
            mem_mb=counts.get("mem", 0),
            gpus=requested_gpus(counts, r["tres-per-job"], r["tres-per-node"], r["tres-per-task"], nodes, tasks),
            tres=counts,
            features=present(r["Feature"]),
            prefer=present(r["Prefer"]),
            required_nodes=expand_hosts(r["ReqNodes"]),
            exclusive=r["OverSubscribe"] in ("NO", "EXCLUSIVE"),
            node_list=expand_hosts(r["NodeList"]),
            priority=_first_number(r["PriorityLong"], 0),
            nice=int(r["Nice"]),
            factors=factors.get(job_id),
        )
    except ValueError as error:
        raise SlurmError(f"squeue: job {r['JobID']!r} is unreadable: {error}") from None


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


def _first_number(text: str, absent: int) -> int:
    digits = text.partition("-")[0]  # NumNodes may be a range, 1-4
    return int(digits) if digits.isdecimal() else absent


def factor_format(mark: str) -> str:
    """`sprio -o`'s argument."""
    return "".join(field + mark for field in FACTOR_FIELDS)


def factors(output: str, mark: str) -> dict[int, PriorityFactors]:
    """Weighted priority terms by job id; of a job in several partitions, those of the best one."""
    found: dict[int, PriorityFactors] = {}
    for r in records(output, FACTOR_FIELDS, mark):
        try:
            job_id = int(r["%i"])
            one = PriorityFactors(
                priority=_integer(r["%Y"]),
                age=_integer(r["%A"]),
                assoc=_integer(r["%B"]),
                fairshare=_integer(r["%F"]),
                job_size=_integer(r["%J"]),
                partition=_integer(r["%P"]),
                qos=_integer(r["%Q"]),
                site=_integer(r["%S"]),
                tres=round(sum(map(float, _TRES_TERM.findall(r["%T"])))),
                nice=_integer(r["%N"]),
                fairshare_normalized=float(r["%f"]),
            )
        except ValueError as error:
            raise SlurmError(f"sprio: unreadable record {r['%i']!r}: {error}") from None
        if job_id not in found or found[job_id].priority < one.priority:
            found[job_id] = one
    return found


def _integer(text: str) -> int:
    return int(float(text)) if text.strip() else 0


def cron_jobs(output: str) -> frozenset[int]:
    """Ids of scrontab's jobs in `scontrol -o show job`, which alone tells them from others."""
    lines = (line for line in output.splitlines() if " CronJob=Yes" in line and line.startswith("JobId="))
    return frozenset(int(key_values(line)["JobId"]) for line in lines)


def nodes(output: str) -> list[SlurmNode]:
    """Nodes from `scontrol -o -d show node`."""
    found = []
    for line in output.splitlines():
        v = key_values(line)
        if "NodeName" not in v:
            continue
        state, *flags = v["State"].rstrip("*~#!%$@^-").split("+")
        if v["State"].endswith("*"):
            flags.append("NOT_RESPONDING")
        found.append(
            SlurmNode(
                name=v["NodeName"],
                state=state,
                flags=tuple(flags),
                cpus=int(v.get("CPUTot", 0)),
                cpus_allocated=int(v.get("CPUAlloc", 0)),
                mem_mb=int(v.get("RealMemory", 0)),
                mem_mb_allocated=int(v.get("AllocMem", 0)),
                gpus=gpus_in_gres(v.get("Gres", "")),
                gpus_allocated=used(gpus_in_gres(v.get("GresUsed", ""))),
                features=_words(v.get("ActiveFeatures", "")),
                partitions=_words(v.get("Partitions", "")),
            )
        )
    return found


def used(counts: dict[str, int]) -> dict[str, int]:
    """Without the zeros that some releases print for idle types."""
    return {kind: n for kind, n in counts.items() if n}


def _words(text: str) -> tuple[str, ...]:
    return tuple(present(text).split(",")) if present(text) else ()


def partitions(output: str) -> list[SlurmPartition]:
    """Partitions from `scontrol -o show partition`."""
    return [
        SlurmPartition(
            name=v["PartitionName"],
            state=v.get("State", ""),
            nodes=expand_hosts(v.get("Nodes", "")),
            default=v.get("Default") == "YES",
            max_time=seconds(v.get("MaxTime", "")),
            default_time=seconds(v.get("DefaultTime", "")),
            priority_tier=int(v.get("PriorityTier", 1)),
            priority_job_factor=int(v.get("PriorityJobFactor", 1)),
            has_default_memory=any(v.get(key, "").isdecimal() for key in ("DefMemPerCPU", "DefMemPerNode")),
        )
        for v in map(key_values, output.splitlines())
        if "PartitionName" in v
    ]


def config(output: str) -> dict[str, str]:
    """`scontrol show config` as key and value; absent values are ""."""
    pairs = (line.partition("=") for line in output.splitlines() if "=" in line)
    return {key.strip(): present(value.strip()) for key, _, value in pairs}


def setting(values: Mapping[str, str], name: str) -> str:
    """A setting by its name in any case, as releases differ in it (FairShare, Fairshare)."""
    return next((value for key, value in values.items() if key.lower() == name.lower()), "")


def weights(values: Mapping[str, str]) -> PriorityWeights:
    """The priority weights that are in effect."""

    def number(name: str) -> int:
        text = setting(values, f"PriorityWeight{name}")
        return int(text) if text.isdecimal() else 0

    # Slurm goes on showing these two, but ignores them without the accounting database.
    with_database = setting(values, "AccountingStorageType") == "accounting_storage/slurmdbd"
    terms = (item.partition("=") for item in setting(values, "PriorityWeightTRES").split(",") if "=" in item)
    return PriorityWeights(
        age=number("Age") if with_database else 0,
        assoc=number("Assoc"),
        fairshare=number("FairShare") if with_database else 0,
        job_size=number("JobSize"),
        partition=number("Partition"),
        qos=number("QOS"),
        tres={key: float(value) for key, _, value in terms},
        max_age=seconds(setting(values, "PriorityMaxAge")),
        favor_small=setting(values, "PriorityFavorSmall").lower() == "yes",
    )


def fairshare(output: str) -> dict[tuple[str, str], float]:
    """(account, user) -> fairshare factor, from `sshare -P`."""
    rows = (line.strip().split("|") for line in output.splitlines())
    return {(row[0], row[1]): float(row[2]) for row in rows if len(row) == 3 and row[1] and row[2]}


_HEALTH = {
    "server_threads": "Server thread count",
    "agent_queue": "Agent queue size",
    "dbd_agent_queue": "DBD Agent queue size",
    "jobs_pending": "Jobs pending",
    "jobs_running": "Jobs running",
}


def health(sdiag: Iterable[str], controller: str, answer_seconds: float) -> Health:
    """Health from sdiag's lines; the same labels appear for the main scheduler and for backfill, in that order."""
    section, values = "", dict[str, int]()
    for line in sdiag:
        label, _, number = line.strip().partition(":")
        if label.startswith("Main schedule"):
            section = "main "
        elif label.startswith("Backfilling"):
            section = "backfill "
        elif number.strip().isdecimal():
            values.setdefault(label if label in _HEALTH.values() else section + label, int(number))
    return Health(
        up=True,
        controller=controller,
        answer_seconds=answer_seconds,
        main_last_cycle_us=values.get("main Last cycle", 0),
        main_mean_cycle_us=values.get("main Mean cycle", 0),
        backfill_last_cycle_us=values.get("backfill Last cycle", 0),
        backfill_mean_cycle_us=values.get("backfill Mean cycle", 0),
        backfill_last_depth=values.get("backfill Last depth cycle", 0),
        **{field: values.get(label, 0) for field, label in _HEALTH.items()},
    )
