"""A live site's limits and licences, from `scontrol show assoc_mgr`, `scontrol show licenses` and its partitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_rl.domain.limits import Bounds, Limits, PartitionBounds
from slurm_rl.domain.tres import tres_counts
from slurm_rl.slurm.assoc_limits import parse
from slurm_rl.slurm.model import SlurmPartition

_USED = re.compile(r"\([\d.]*\)")  # what is used of a limit, behind it
_ID = re.compile(r"\(\d+\)$")
_NUMBER = re.compile(r"\b(Total|Used|Free|Reserved)=(\d+)")


@dataclass(frozen=True, slots=True)
class SiteLimits:
    """Limits in force, and the licences that jobs hold or ask for, by job id."""

    limits: Limits
    licenses: Mapping[int, Mapping[str, int]] = field(default_factory=dict)


def site_limits(assoc_mgr: str, licenses: str, partitions: Iterable[SlurmPartition]) -> Limits:
    """The limits that slurmctld goes by; what it prints otherwise than we know is no limit here."""
    qos: dict[str, Bounds] = {}
    accounts: dict[str, Bounds] = {}
    users: dict[tuple[str, str], Bounds] = {}
    for record in parse(assoc_mgr):
        f = record.fields
        if record.kind == "qos":
            # Slurm prints what one user or account may have only beside those who have jobs; it is the same for all.
            user, account = (next(iter(group.values()), f) for group in (record.users, record.accounts))
            qos[_ID.sub("", f.get("QOS", ""))] = Bounds(
                grp_tres=_tres(f, "GrpTRES"),
                max_tres_user=_tres(user, "MaxTRESPU"),
                max_tres_account=_tres(account, "MaxTRESPA"),
                max_tres_job=_tres(f, "MaxTRESPJ"),
                grp_jobs=_whole(f, "GrpJobs"),
                max_jobs_user=_whole(user, "MaxJobsPU"),
                max_jobs_account=_whole(account, "MaxJobsPA"),
            )
            continue
        bounds = Bounds(
            grp_tres=_tres(f, "GrpTRES"),
            max_tres_job=_tres(f, "MaxTRESPJ"),
            grp_jobs=_whole(f, "GrpJobs"),
            max_jobs_user=_whole(f, "MaxJobs"),
            parent=_ID.sub("", f.get("ParentAccount", "")),
        )
        owner, person = f.get("Account", ""), _ID.sub("", f.get("UserName", ""))
        # Of associations for one partition alone nothing is known here.
        if not f.get("Partition"):
            if person:
                users[person, owner] = bounds
            else:
                accounts[owner] = bounds
    parts = {p.name: PartitionBounds(qos=p.qos) for p in partitions if p.qos}
    return Limits(qos, accounts, {}, parts, licenses=_licenses(licenses), association=users)


def _tres(fields: Mapping[str, str], name: str) -> dict[str, float]:
    """`cpu=64(62),mem=N(4000),gres/gpu=40(40)`: what is allowed of each; N: no limit."""
    return tres_counts(_USED.sub("", fields.get(name, "")))


def _whole(fields: Mapping[str, str], name: str) -> int | None:
    text = _USED.sub("", fields.get(name, ""))
    return int(text) if text.isdecimal() else None


def _licenses(text: str) -> dict[str, int] | None:
    """What jobs may hold of each licence together; None if Slurm counts none."""
    found: dict[str, int] = {}
    for part in text.split("LicenseName=")[1:]:
        said = {name: int(count) for name, count in _NUMBER.findall(part)}
        if {"Used", "Free"} <= said.keys():
            # What others than Slurm's jobs hold is no longer free.
            found[part.split(maxsplit=1)[0]] = max(said["Used"] + said["Free"] - said.get("Reserved", 0), 0)
    return found or None


def enforced(config_value: str) -> bool:
    """Whether AccountingStorageEnforce makes slurmctld hold jobs back by limits."""
    return not {"limits", "safe", "all"}.isdisjoint(w.strip().lower() for w in config_value.split(","))
