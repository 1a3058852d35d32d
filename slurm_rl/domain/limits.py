"""Limits of QOS, accounts, users and partitions, and licences, as a site gives them in a file (docs/limits.md).

The names are sacctmgr's. A limits file is TOML or JSON; one clear error names what is wrong in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_rl.domain.durations import seconds_of
from slurm_rl.domain.tablefile import read_table
from slurm_rl.domain.tres import tres_counts
from slurm_rl.errors import InputError, unknown_name

Counts = Mapping[str, float]
_NOT_MODELLED = ("GrpTRESMins", "GrpTRESRunMins", "GrpWall", "MaxTRESMins", "MaxTRESPerNode", "MinTRESPerJob")


def _none() -> dict[str, float]:
    return {}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one QOS or association allows; empty or None: no limit."""

    grp_tres: Counts = field(default_factory=_none)  # all its running jobs together
    max_tres_user: Counts = field(default_factory=_none)  # those of one user …
    max_tres_account: Counts = field(default_factory=_none)  # … of one account …
    max_tres_job: Counts = field(default_factory=_none)  # … one job
    grp_jobs: int | None = None
    max_jobs_user: int | None = None
    max_jobs_account: int | None = None
    grp_submit: int | None = None  # jobs that wait or run
    max_submit_user: int | None = None
    max_submit_account: int | None = None
    max_wall: int | None = None  # seconds
    priority: float = 0.0  # of a QOS
    parent: str = ""  # of an account
    over_partition: bool = False  # of a QOS: its limits go before those of the partition's QOS


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """What a partition allows a job, and its own QOS."""

    max_nodes: int | None = None
    max_time: int | None = None  # seconds
    qos: str = ""
    tier: int | None = None  # PriorityTier
    factor: float | None = None  # PriorityJobFactor


@dataclass(frozen=True, slots=True)
class Limits:
    """All that holds jobs back, by name; the user `*` stands for each user who is not named."""

    qos: Mapping[str, Bounds] = field(default_factory=dict)
    account: Mapping[str, Bounds] = field(default_factory=dict)
    user: Mapping[str, Bounds] = field(default_factory=dict)
    partition: Mapping[str, PartitionBounds] = field(default_factory=dict)
    licenses: Mapping[str, int] | None = None  # None: nobody counts them
    default_qos: str = ""  # of jobs that name none
    # Live, one user's association may differ from account to account: it goes before `user`.
    association: Mapping[tuple[str, str], Bounds] = field(default_factory=dict)

    def of_user(self, user: str, account: str) -> Bounds:
        """The limits of a user's association in an account."""
        own = self.association.get((user, account))
        if own is None:
            own = self.user.get(user) or self.user.get("*")
        return own or _FREE

    def above(self, account: str) -> tuple[str, ...]:
        """An account and those above it."""
        found: list[str] = []
        while account and account not in found:
            found.append(account)
            account = self.account[account].parent if account in self.account else ""
        return tuple(found)


_FREE = Bounds()
# sacctmgr's names (as it prints them, and in full) -> field and how its value is read.
_QOS = {
    "GrpTRES": "grp_tres",
    "GrpJobs": "grp_jobs",
    "GrpSubmit": "grp_submit",
    "GrpSubmitJobs": "grp_submit",
    "MaxTRESPU": "max_tres_user",
    "MaxTRESPerUser": "max_tres_user",
    "MaxTRESPA": "max_tres_account",
    "MaxTRESPerAccount": "max_tres_account",
    "MaxTRES": "max_tres_job",
    "MaxTRESPJ": "max_tres_job",
    "MaxTRESPerJob": "max_tres_job",
    "MaxJobsPU": "max_jobs_user",
    "MaxJobsPerUser": "max_jobs_user",
    "MaxJobsPA": "max_jobs_account",
    "MaxJobsPerAccount": "max_jobs_account",
    "MaxSubmitPU": "max_submit_user",
    "MaxSubmitJobsPU": "max_submit_user",
    "MaxSubmitJobsPerUser": "max_submit_user",
    "MaxSubmitPA": "max_submit_account",
    "MaxSubmitJobsPA": "max_submit_account",
    "MaxSubmitJobsPerAccount": "max_submit_account",
    "MaxWall": "max_wall",
    "MaxWallDurationPerJob": "max_wall",
    "Priority": "priority",
    "Flags": "over_partition",
}
_ASSOCIATION = {
    "GrpTRES": "grp_tres",
    "GrpJobs": "grp_jobs",
    "GrpSubmit": "grp_submit",
    "GrpSubmitJobs": "grp_submit",
    "MaxTRES": "max_tres_job",
    "MaxTRESPJ": "max_tres_job",
    "MaxTRESPerJob": "max_tres_job",
    "MaxJobs": "max_jobs_user",
    "MaxSubmit": "max_submit_user",
    "MaxSubmitJobs": "max_submit_user",
    "MaxWall": "max_wall",
    "MaxWallDurationPerJob": "max_wall",
}
_ACCOUNT = _ASSOCIATION | {"Parent": "parent"}
_PARTITION = {
    "MaxNodes": "max_nodes",
    "MaxTime": "max_time",
    "QOS": "qos",
    "PriorityTier": "tier",
    "PriorityJobFactor": "factor",
}
_SECTIONS = {"qos": _QOS, "account": _ACCOUNT, "user": _ASSOCIATION, "partition": _PARTITION}
_TRES = ("cpu", "mem", "node")
_REMEDY = "docs/limits.md has an example"


def read_limits(path: Path) -> Limits:
    """The limits file at `path`, TOML or JSON."""
    return read_table(path, _REMEDY, limits_from)


def limits_from(value: Any) -> Limits:
    """Limits from what a file says."""
    if not isinstance(value, dict):
        raise InputError(f"must be a table of {', '.join(_SECTIONS)}, licenses, got {type(value).__name__}")
    known = (*_SECTIONS, "licenses", "default_qos")
    for name in value:
        if name not in known:
            raise unknown_name("section", name, known)
    default = value.get("default_qos", "")
    if not isinstance(default, str):
        raise InputError(f"must be the name of a QOS, got {default!r}", field="default_qos")
    parts = {name: _section(name, value.get(name, {})) for name in _SECTIONS}
    for account, bounds in parts["account"].items():
        _check_parent(account, bounds.parent, parts["account"])
    for name, bounds in parts["partition"].items():
        if bounds.qos and bounds.qos not in parts["qos"]:
            raise InputError(f"no such QOS: {bounds.qos!r}", field=f"partition.{name}.QOS")
    return Limits(
        parts["qos"],
        parts["account"],
        parts["user"],
        parts["partition"],
        licenses=_licenses(value.get("licenses")),
        default_qos=default,
    )


def _check_parent(account: str, parent: str, accounts: Mapping[str, Bounds]) -> None:
    seen = {account}
    while parent:
        if parent in seen:
            raise InputError(f"goes in a circle at {parent!r}", field=f"account.{account}.Parent")
        seen.add(parent)
        parent = accounts[parent].parent if parent in accounts else ""


def _licenses(value: Any) -> dict[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InputError(f"must be NAME = COUNT, got {value!r}", field="licenses")
    return {str(name): _whole(count, f"licenses.{name}") for name, count in value.items()}


def _section(section: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"must be a table, e.g. [{section}.NAME]", field=section)
    make = PartitionBounds if section == "partition" else Bounds
    found: dict[str, Any] = {}
    for name, row in value.items():
        where = f"{section}.{name}"
        if not isinstance(row, dict):
            raise InputError(f"must be a table of limits, e.g. [{where}], got {row!r}", field=where)
        found[name] = make(**_row(row, _SECTIONS[section], where))
    return found


def _row(row: Mapping[str, Any], known: Mapping[str, str], where: str) -> dict[str, Any]:
    spelled = {name.lower(): name for name in known}
    values: dict[str, Any] = {}
    for name, value in row.items():
        if name.lower() in (n.lower() for n in _NOT_MODELLED):
            raise InputError("not modelled", field=f"{where}.{name}", remedy="leave it out; docs/limits.md says why")
        if name.lower() not in spelled:
            error = unknown_name("limit", name, known)
            raise InputError(error.message, field=where, remedy=error.remedy)
        to = known[spelled[name.lower()]]
        if to in values:
            raise InputError("said twice, under two names", field=f"{where}.{name}")
        values[to] = _value(to, value, f"{where}.{name}")
    return values


def _value(to: str, value: Any, where: str) -> Any:
    if "tres" in to:
        return _tres(value, where)
    if to in ("max_wall", "max_time"):
        return _time(value, where)
    if to in ("parent", "qos"):
        if not isinstance(value, str):
            raise InputError(f"must be a name, got {value!r}", field=where)
        return value
    if to == "over_partition":
        return _flags(value, where)
    if to in ("priority", "factor"):
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise InputError(f"must be a number ≥ 0, got {value!r}", field=where)
        return float(value)
    return _whole(value, where)


def _flags(value: Any, where: str) -> bool:
    words = {w.strip().lower() for w in value.split(",")} if isinstance(value, str) else {None}
    if not words <= {"", "overpartqos", "denyonlimit"}:
        raise InputError(f"only OverPartQOS and DenyOnLimit are known, got {value!r}", field=where)
    return "overpartqos" in words


def _tres(value: Any, where: str) -> dict[str, float]:
    """`cpu=64,mem=1T,node=4,gres/gpu=8,gres/gpu:a100=4,license/matlab=2`, or a table of the same."""
    if isinstance(value, dict):
        value = ",".join(f"{name}={count}" for name, count in value.items())
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"must be like 'cpu=64,gres/gpu=8', got {value!r}", field=where)
    items = [item.strip() for item in value.split(",") if item.strip()]
    found: dict[str, float] = {}
    for item in items:
        name = item.partition("=")[0].strip()
        if name not in _TRES and not name.startswith(("gres/", "license/")):
            raise InputError(
                f"{name!r} is not counted", field=where, remedy="cpu, mem, node, gres/NAME[:TYPE] and license/NAME are"
            )
        counts = tres_counts(item.replace(" ", ""))
        if name not in counts:
            raise InputError(f"must be NAME=COUNT, got {item!r}", field=where)
        found[name] = counts[name]
    return found


def _time(value: Any, where: str) -> int | None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"must be a time as Slurm writes it, e.g. '2-00:00:00', got {value!r}", field=where)
    if str(value).upper() in ("UNLIMITED", "INFINITE"):
        return None
    try:
        seconds = seconds_of(str(value))
    except ValueError:
        seconds = 0
    if seconds <= 0:
        raise InputError(f"must be a time as Slurm writes it, e.g. '2-00:00:00', got {value!r}", field=where)
    return seconds


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"must be a whole number ≥ 0, got {value!r}", field=where)
    return value
