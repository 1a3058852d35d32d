"""Reads the text of scontrol (nodes, partitions, configuration), sshare and sdiag."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from slurm_rl.domain.pairs import pairs_in
from slurm_rl.domain.reservations import Reservation
from slurm_rl.domain.tres import tres_counts, tres_weights
from slurm_rl.errors import SlurmError
from slurm_rl.slurm.command import key_values
from slurm_rl.slurm.gres import node_counts, reports_parts, shared_parts
from slurm_rl.slurm.model import Health, PriorityWeights, SlurmNode, SlurmPartition
from slurm_rl.slurm.quantities import expand_hosts, gpus_in_gres, present, seconds

# What scontrol prints anew at each look, and nobody here reads.
_RESTLESS = re.compile(r" (?:CPULoad|FreeMem|LastBusyTime|CurrentWatts|AveWatts)=\S*")


def cron_jobs(output: str) -> frozenset[int]:
    """Ids of scrontab's jobs in `scontrol -o show job`, which alone tells them from others."""
    lines = (line for line in output.splitlines() if " CronJob=Yes" in line and line.startswith("JobId="))
    return frozenset(int(key_values(line)["JobId"]) for line in lines)


def nodes(output: str, known: dict[str, SlurmNode] | None = None) -> list[SlurmNode]:
    """Nodes from `scontrol -o -d show node`; `known` as of `squeue.jobs`."""
    before, now = {} if known is None else known, {}
    for line in output.splitlines():
        if line.startswith("NodeName="):
            lasting = _RESTLESS.sub("", line)
            now[lasting] = before.get(lasting) or _node(key_values(line))
    if known is not None:
        known.clear()
        known.update(now)
    return list(now.values())


def _node(v: Mapping[str, str]) -> SlurmNode:
    state, *flags = v["State"].rstrip("*~#!%$@^-").split("+")
    if v["State"].endswith("*"):
        flags.append("NOT_RESPONDING")
    return SlurmNode(
        name=v["NodeName"],
        state=state,
        flags=tuple(flags),
        cpus=int(v.get("CPUTot", 0)),
        cpus_allocated=int(v.get("CPUAlloc", 0)),
        mem_mb=int(v.get("RealMemory", 0)),
        mem_mb_allocated=int(v.get("AllocMem", 0)),
        gpus=gpus_in_gres(v.get("Gres", "")),
        gpus_allocated=used(gpus_in_gres(v.get("GresUsed", ""))),
        gres=node_counts(v.get("Gres", "")),
        gres_allocated=node_counts(v.get("GresUsed", "")),
        shared=shared_parts(v.get("GresUsed", "")),
        shared_known=reports_parts(v.get("GresUsed", "")),
        features=_words(v.get("ActiveFeatures", "")),
        partitions=_words(v.get("Partitions", "")),
    )


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
            qos="" if v.get("QoS", "N/A") == "N/A" else v["QoS"],
        )
        for v in map(key_values, output.splitlines())
        if "PartitionName" in v
    ]


def reservations(output: str, cpus: Mapping[str, int]) -> tuple[Reservation, ...]:
    """Reservations of whole nodes from `scontrol -o show reservation`; those of some cores or of licences are left out.

    `cpus` of each node tell whole nodes from parts of them.
    """
    found = []
    for line in output.splitlines():
        v = key_values(line)
        start, end = v.get("StartTime", ""), v.get("EndTime", "")
        nodes = expand_hosts(v.get("Nodes", ""))
        if not v.get("ReservationName") or not nodes or not (start + end).isdecimal():
            continue
        if tres_counts(v.get("TRES", "")).get("cpu", 0) < sum(cpus.get(name, 0) for name in nodes):
            continue
        found.append(
            Reservation(
                v["ReservationName"],
                int(start),
                int(end),
                nodes,
                _words(v.get("Users", "")),
                _words(v.get("Accounts", "")),
                frozenset(_words(v.get("Flags", ""))),
            )
        )
    return tuple(found)


def config(output: str) -> dict[str, str]:
    """`scontrol show config` as key and value; absent values are ""."""
    return {key: present(value) for key, value in pairs_in(output.splitlines())}


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
    return PriorityWeights(
        age=number("Age") if with_database else 0,
        assoc=number("Assoc"),
        fairshare=number("FairShare") if with_database else 0,
        job_size=number("JobSize"),
        partition=number("Partition"),
        qos=number("QOS"),
        tres=tres_weights(setting(values, "PriorityWeightTRES")),
        max_age=seconds(setting(values, "PriorityMaxAge")),
        favor_small=setting(values, "PriorityFavorSmall").lower() == "yes",
        flags=tuple(f.strip().upper() for f in setting(values, "PriorityFlags").split(",") if f.strip()),
    )


def fairshare(output: str) -> dict[tuple[str, str], float]:
    """(account, user) -> fairshare factor, from `sshare -P`."""
    rows = (line.strip().split("|") for line in output.splitlines())
    try:
        return {(row[0], row[1]): float(row[2]) for row in rows if len(row) == 3 and row[1] and row[2]}
    except ValueError as error:
        raise SlurmError(f"sshare: unreadable fairshare: {error}") from None


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
