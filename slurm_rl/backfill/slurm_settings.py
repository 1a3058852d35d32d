"""A site's Slurm for the rule `slurm`: settings from a slurm.conf, from `scontrol show config`, or one by one.

Defaults are those of Slurm 22.05. Times are in seconds, whatever unit slurm.conf has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slurm_rl.backfill.conf_partitions import partition_lines
from slurm_rl.domain.durations import seconds_of
from slurm_rl.domain.limits import PartitionBounds
from slurm_rl.domain.tres import tres_weights
from slurm_rl.errors import InputError, unknown_name

FOREVER = 365 * 86400  # UNLIMITED, in seconds
LIMIT_CHECK = 30  # slurmctld looks for jobs over their limit so often (PERIODIC_TIMEOUT; not to be configured)


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """What sched/backfill, select/cons_tres and the main scheduler are told; docs/backfill.md says what each does."""

    # SchedulerParameters
    bf_interval: int = 30
    bf_resolution: int = 60
    bf_window: int = 86400
    bf_window_linear: int = 0  # 0: batches of ends double in width
    bf_max_job_test: int = 500
    bf_max_job_start: int = 0  # 0: no limit, here and below
    bf_max_job_user: int = 0
    bf_max_job_part: int = 0
    bf_continue: bool = False  # a cycle takes no time here, so that nothing can interrupt it: told, not used
    default_queue_depth: int = 100
    sched_interval: int = 60
    # A pass takes no time here, and a job that comes first is tried at submission, as Slurm does: told, not used.
    sched_min_interval: int = 0  # microseconds in slurm.conf
    batch_sched_delay: int = 3
    # SelectTypeParameters
    least_loaded: bool = False  # CR_LLN
    pack_nodes: bool = False  # CR_Pack_Nodes: how tasks lie on a job's nodes, not which nodes: told, not used
    # How jobs end
    kill_wait: int = 30
    over_time_limit: int = 0  # minutes in slurm.conf
    resv_over_run: int = 0  # minutes in slurm.conf
    limit_check: int = 0  # 0: a job ends at its limit; a real slurmctld looks every 30 s
    start_overhead: int = 0  # not Slurm's: seconds by which each run is longer than asked
    clean_up: int = 0  # not Slurm's: seconds from a job's end until its nodes are free
    # priority/multifactor
    priority_type: str = "priority/multifactor"
    priority_max_age: int = 7 * 86400
    priority_decay_half_life: int = 7 * 86400
    priority_calc_period: int = 300
    priority_favor_small: bool = False
    priority_flags: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)  # age, fairshare, job_size, partition, qos, tres
    tres_weights: Mapping[str, float] = field(default_factory=dict)  # PriorityWeightTRES
    has_weights: bool = False  # whether the site said any
    partitions: Mapping[str, PartitionBounds] = field(default_factory=dict)  # PriorityTier, PriorityJobFactor

    @property
    def scheduler_parameters(self) -> str:
        """As `SchedulerParameters=` of a slurm.conf, defaults left out."""
        said = []
        for name, (where, read) in _PARAMETERS.items():
            value = getattr(self, where)
            if value == getattr(_DEFAULTS, where):
                continue
            if isinstance(value, bool):
                said.append(name)
            else:
                said.append(f"{name}={value // 60 if read is _minutes else value * 10**6 if read is _micro else value}")
        return ",".join(said)

    @property
    def world(self) -> dict[str, float]:
        """What a World of the rule `slurm` is told."""
        return {
            "interval": self.bf_interval,
            "bf_resolution": self.bf_resolution,
            "bf_window": self.bf_window,
            "bf_window_linear": self.bf_window_linear,
            "bf_depth": self.bf_max_job_test,
            "bf_starts": self.bf_max_job_start,
            "bf_user": self.bf_max_job_user,
            "bf_part": self.bf_max_job_part,
            "main_depth": self.default_queue_depth,
            "main_interval": self.sched_interval,
            "limit_check": self.limit_check,
            "over_limit": self.over_time_limit,
            "over_reservation": self.resv_over_run,
            "start_overhead": self.start_overhead,
            "clean_up": self.clean_up,
            "least_loaded": self.least_loaded,
        }

    @property
    def own_weights(self) -> dict[str, float] | None:
        """The site's PriorityWeight*; those that it leaves out are 0, as in Slurm. None if it names none."""
        names = ("age", "fairshare", "job_size", "partition", "qos", "tres")
        return {name: float(self.weights.get(name, 0.0)) for name in names} if self.has_weights else None

    @property
    def priority(self) -> dict[str, float]:
        """What a World is told of priority/multifactor."""
        return {
            "max_age": float(self.priority_max_age),
            "half_life": float(self.priority_decay_half_life),
            "calc_period": float(self.priority_calc_period),
        }


_DEFAULTS = SlurmSettings()
SITE = replace(_DEFAULTS, limit_check=LIMIT_CHECK)  # a real slurmctld, before its slurm.conf is read


def _count(text: str) -> int:
    return int(text)


def _minutes(text: str) -> int:
    return FOREVER if text.upper() in ("UNLIMITED", "INFINITE") else 60 * int(text.split(maxsplit=1)[0])


def _micro(text: str) -> int:
    return int(text) // 10**6


def _flag(text: str) -> bool:
    return text.lower() not in ("0", "no", "false")


def _duration(text: str) -> int:
    return FOREVER if text.strip().upper() in ("UNLIMITED", "INFINITE") else seconds_of(text)


def _seconds(text: str) -> int:
    return int(text.split(maxsplit=1)[0])


Read = Callable[[str], Any]
# Name in slurm.conf -> field and how it is read.
_PARAMETERS: dict[str, tuple[str, Read]] = {
    "bf_interval": ("bf_interval", _count),
    "bf_resolution": ("bf_resolution", _count),
    "bf_window": ("bf_window", _minutes),
    "bf_window_linear": ("bf_window_linear", _count),
    "bf_max_job_test": ("bf_max_job_test", _count),
    "bf_max_job_start": ("bf_max_job_start", _count),
    "bf_max_job_user": ("bf_max_job_user", _count),
    "bf_max_job_part": ("bf_max_job_part", _count),
    "bf_continue": ("bf_continue", _flag),
    "default_queue_depth": ("default_queue_depth", _count),
    "sched_interval": ("sched_interval", _count),
    "sched_min_interval": ("sched_min_interval", _micro),
    "batch_sched_delay": ("batch_sched_delay", _count),
}
_KEYS: dict[str, tuple[str, Read]] = {
    "KillWait": ("kill_wait", _seconds),
    "OverTimeLimit": ("over_time_limit", _minutes),
    "ResvOverRun": ("resv_over_run", _minutes),
    "PriorityType": ("priority_type", str),
    "PriorityMaxAge": ("priority_max_age", _duration),
    "PriorityDecayHalfLife": ("priority_decay_half_life", _duration),
    "PriorityCalcPeriod": ("priority_calc_period", _duration),
    "PriorityFavorSmall": ("priority_favor_small", _flag),
}
_OWN: dict[str, tuple[str, Read]] = {name: (name, _count) for name in ("start_overhead", "clean_up", "limit_check")}
_WEIGHTS = {
    "PriorityWeightAge": "age",
    "PriorityWeightFairshare": "fairshare",
    "PriorityWeightJobSize": "job_size",
    "PriorityWeightPartition": "partition",
    "PriorityWeightQOS": "qos",
}
_LEAST = {"bf_interval": 1, "bf_resolution": 1, "bf_window": 60, "bf_max_job_test": 1}
_NONE = ("", "(null)", "N/A", "NONE")


def read_slurm_conf(path: Path) -> SlurmSettings:
    """The settings of a slurm.conf, or of what `scontrol show config` printed."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", file=str(path)) from None
    values = config_values(text)
    if not values:
        raise InputError("has no line `Name=Value`", file=str(path), remedy="give a slurm.conf")
    try:
        return replace(site_settings(values), partitions=partition_lines(text))
    except InputError as error:
        raise InputError(error.message, file=str(path), field=error.field, remedy=error.remedy) from None


def site_settings(values: Mapping[str, str]) -> SlurmSettings:
    """The settings of a live site, from what `scontrol show config` says."""
    return settings_from(values, SITE)


def config_values(text: str) -> dict[str, str]:
    """`Name=Value` lines of a slurm.conf, and `Name = Value` of scontrol; lines of nodes and partitions left out."""
    values = {}
    for line in text.replace("\\\n", " ").splitlines():
        name, equals, value = line.split("#", 1)[0].strip().partition("=")
        name = name.strip()
        if equals and " " not in name and name.lower() not in ("nodename", "partitionname", "nodeset", "downnodes"):
            values[name] = value.strip()
    return values


def settings_from(values: Mapping[str, str], base: SlurmSettings = _DEFAULTS) -> SlurmSettings:
    """Settings by slurm.conf's names, in any case; names that mean nothing to a replay are passed over."""
    lower = {name.lower(): value for name, value in values.items()}
    changes: dict[str, Any] = {}
    for part in lower.get("schedulerparameters", "").split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() in _PARAMETERS:
            _set(changes, name.lower(), value or "1", _PARAMETERS[name.lower()])
    for name, row in _KEYS.items():
        if (text := lower.get(name.lower(), "")) not in _NONE:
            _set(changes, name, text, row)
    select = {p.strip().upper() for p in lower.get("selecttypeparameters", "").split(",")}
    changes |= {"least_loaded": True} if "CR_LLN" in select else {}
    changes |= {"pack_nodes": True} if "CR_PACK_NODES" in select else {}
    if (flags := lower.get("priorityflags", "")) not in _NONE:
        changes["priority_flags"] = tuple(f.strip().upper() for f in flags.split(",") if f.strip())
    weights = {key: _number(name, lower[name.lower()]) for name, key in _WEIGHTS.items() if name.lower() in lower}
    if (tres := lower.get("priorityweighttres", "")) not in _NONE:
        changes["tres_weights"] = tres_weights(tres)
        weights["tres"] = sum(changes["tres_weights"].values())
    if weights:
        changes |= {"weights": dict(base.weights) | weights, "has_weights": True}
    return replace(base, **changes)


def with_options(base: SlurmSettings, options: Iterable[str]) -> SlurmSettings:
    """Settings one by one, `NAME=VALUE` with slurm.conf's names: `bf_interval=5`, `KillWait=2`, `start_overhead=1`."""
    known = [*_PARAMETERS, *_KEYS, *_WEIGHTS, "PriorityWeightTRES", "PriorityFlags", "SelectTypeParameters", *_OWN]
    spelled = {name.lower(): name for name in known}
    for option in options:
        name, equals, value = (part.strip() for part in option.partition("="))
        if name.lower() not in spelled:
            raise unknown_name("Slurm option", name, known)
        if not equals:
            raise InputError(f"must be NAME=VALUE, got {option!r}", field="--slurm-option")
        if spelled[name.lower()] in _OWN:
            changes: dict[str, Any] = {}
            _set(changes, name.lower(), value, _OWN[name.lower()])
            base = replace(base, **changes)
        elif name.lower() in _PARAMETERS:
            base = settings_from({"SchedulerParameters": f"{name}={value}"}, base)
        else:
            base = settings_from({name: value}, base)
    return base


def _set(changes: dict[str, Any], name: str, text: str, row: tuple[str, Read]) -> None:
    where, read = row
    try:
        value = read(text.strip())
    except (ValueError, IndexError):
        raise InputError(f"not a value of it: {text!r}", field=name) from None
    if isinstance(value, int) and not isinstance(value, bool) and value < _LEAST.get(where, 0):
        raise InputError(f"must be at least {_LEAST.get(where, 0)}, got {text}", field=name)
    changes[where] = value


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"must be a number, got {text!r}", field=name) from None
