"""Reservations of nodes, as a site gives them in a file (docs/limits.md) or Slurm tells them.

The names are scontrol's. A reservations file is TOML or JSON; one clear error names what is wrong in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_rl.domain.durations import seconds_of
from slurm_rl.domain.tablefile import read_table
from slurm_rl.errors import InputError, unknown_name

# What changes nothing here: how Slurm chose the nodes, or whether running jobs forbid the reservation.
_WITHOUT_EFFECT = ("IGNORE_JOBS", "SPEC_NODES", "STATIC", "STATIC_ALLOC", "NO_HOLD_JOBS_AFTER_END")
_EFFECTS = ("MAINT", "OVERLAP", "FLEX")
_KEYS = ("StartTime", "EndTime", "Duration", "Nodes", "Users", "Accounts", "Flags")
EVERY_NODE = "ALL"


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes that only jobs of the reservation may use, from `start` on, and not at `end` any more."""

    name: str
    start: int
    end: int
    nodes: tuple[str, ...]  # names, or numbers in the cluster file
    users: tuple[str, ...] = ()  # `-ann`: everybody but ann
    accounts: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    every_node: bool = False

    def admits(self, user: str, account: str) -> bool:
        """Whether a job of that user and account may ask for it."""
        return _listed(user, self.users) and _listed(account, self.accounts)


def _listed(name: str, names: tuple[str, ...]) -> bool:
    if not names:
        return True
    denied = [n[1:] for n in names if n.startswith("-")]
    return name not in denied if denied else name in names


def read_reservations(path: Path, nodes: int) -> tuple[Reservation, ...]:
    """The reservations file at `path`, for a cluster of `nodes` nodes."""
    return read_table(path, "docs/limits.md has an example", lambda found: reservations_from(found, nodes))


def reservations_from(value: Any, nodes: int) -> tuple[Reservation, ...]:
    """Reservations from what a file says, in its order."""
    if not isinstance(value, dict) or not isinstance(value.get("reservation", {}), dict):
        raise InputError("must be tables [reservation.NAME]")
    for section in value:
        if section != "reservation":
            raise unknown_name("section", section, ("reservation",))
    return tuple(_reservation(str(name), row, nodes) for name, row in value.get("reservation", {}).items())


def _reservation(name: str, row: Any, nodes: int) -> Reservation:
    where = f"reservation.{name}"
    if not isinstance(row, dict):
        raise InputError(f"must be a table, e.g. [{where}], got {row!r}", field=where)
    spelled = {key.lower(): key for key in _KEYS}
    said: dict[str, Any] = {}
    for key, value in row.items():
        if key.lower() not in spelled:
            error = unknown_name("key", key, _KEYS)
            raise InputError(error.message, field=where, remedy=error.remedy)
        said[spelled[key.lower()]] = value
    start = _second(said, "StartTime", where)
    if ("EndTime" in said) == ("Duration" in said):
        raise InputError("must have either EndTime or Duration", field=where)
    end = _second(said, "EndTime", where) if "EndTime" in said else start + _duration(said["Duration"], where)
    if end <= start:
        raise InputError(f"ends at {end}, which is not behind its start at {start}", field=where)
    chosen, every = _nodes(said.get("Nodes"), nodes, where)
    return Reservation(
        name,
        start,
        end,
        chosen,
        tuple(_names(said, "Users", where)),
        tuple(_names(said, "Accounts", where)),
        _flags(said, where),
        every,
    )


def _second(said: Mapping[str, Any], key: str, where: str) -> int:
    value = said.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"must be a whole second of the trace's clock, got {value!r}", field=f"{where}.{key}")
    return value


def _duration(value: Any, where: str) -> int:
    try:
        return seconds_of(str(value))
    except ValueError:
        problem = f"must be a time as Slurm writes it, e.g. '2:00:00', got {value!r}"
        raise InputError(problem, field=f"{where}.Duration") from None


def _nodes(value: Any, count: int, where: str) -> tuple[tuple[str, ...], bool]:
    """`0-3,7`, numbers in the order of the cluster file, or ALL."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if text.upper() == EVERY_NODE:
        return tuple(map(str, range(count))), True
    found: dict[int, None] = {}
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            problem = f"must be numbers of nodes, as in the cluster file, or ALL, got {value!r}"
            raise InputError(problem, field=f"{where}.Nodes", remedy="e.g. Nodes = '0-3,7'")
        found |= dict.fromkeys(range(int(first), int(last or first) + 1))
    beyond = [n for n in found if n >= count]
    if beyond:
        raise InputError(f"there is no node {beyond[0]}: the cluster has {count}", field=f"{where}.Nodes")
    if not found:
        raise InputError(f"names no node: {value!r}", field=f"{where}.Nodes")
    return tuple(map(str, found)), len(found) == count


def _names(said: Mapping[str, Any], key: str, where: str) -> Iterable[str]:
    value = said.get(key, "")
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise InputError(f"must be names, 'ann,bob', got {value!r}", field=f"{where}.{key}")
    names = [n.strip() for n in names if n.strip()]
    if len({n.startswith("-") for n in names}) > 1:
        raise InputError("must admit some or refuse some, not both", field=f"{where}.{key}")
    return names


def _flags(said: Mapping[str, Any], where: str) -> frozenset[str]:
    flags = [flag.upper() for flag in _names(said, "Flags", where)]
    for flag in flags:
        if flag not in (*_EFFECTS, *_WITHOUT_EFFECT):
            known = ", ".join((*_EFFECTS, *_WITHOUT_EFFECT))
            raise InputError(f"{flag} is not modelled", field=f"{where}.Flags", remedy=f"these are: {known}")
    return frozenset(flags)
