"""Reads the file of a sweep: one trace, the lists to combine, and the settings of all runs."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_rl.backfill.catalogue import RULES
from slurm_rl.bench.suite import Settings, Unit
from slurm_rl.errors import InputError, SlurmRlError, unknown_name
from slurm_rl.place.outside import find_placement
from slurm_rl.policy.registry import STARVATION
from slurm_rl_sim.replay import parse_contenders

# The axes, in the order of the table's columns, with what one value of each is called there.
AXES = {"policies": "policy", "backfills": "backfill", "placements": "placement", "influences": "influence",
        "seeds": "seed", "windows": "window"}  # fmt: skip
WHOLE = ":"  # the window that is all of the trace
_DEFAULTS: dict[str, list[Any]] = {
    "backfills": ["easy"], "placements": [""], "influences": [1.0], "seeds": [0], "windows": [WHOLE]
}  # fmt: skip
_PATHS = ("trace", "cluster", "slurm_conf")
_KEYS = (*AXES, *_PATHS, "format", "starvation", "preempt", "weights", "slurm_options")


def read_sweep(file: Path, trace: Path | None = None, cluster: Path | None = None) -> Settings:
    """The settings of a sweep as plain JSON, checked; `trace` and `cluster` stand in for the file's own.

    Paths in the file are relative to it. What a run would refuse (a name, a number) is refused here, by its key.
    """
    given = _values(file)
    for key in given:
        if key not in _KEYS:
            raise _in_file(file, unknown_name("key", key, _KEYS))
    found: Settings = {key: _listed(file, key, given) for key in AXES}
    for key, path in (("trace", trace), ("cluster", cluster), ("slurm_conf", None)):
        found[key] = str(path.resolve()) if path is not None else _path(file, key, given)
    if found["trace"] is None:
        raise InputError("names no trace", file=str(file), remedy='add trace = "FILE", or give TRACE')
    found["format"] = _one(file, "format", given, str, None)
    found["starvation"] = _one(file, "starvation", given, str, "cap")
    found["preempt"] = _one(file, "preempt", given, bool, False)
    found["weights"] = _one(file, "weights", given, dict, None)
    found["slurm_options"] = [str(o) for o in _one(file, "slurm_options", given, list, [])]
    _check(file, found)
    return found


def _values(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", file=str(file)) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=str(file), remedy="it must be TOML") from None


def _listed(file: Path, key: str, given: Mapping[str, Any]) -> list[Any]:
    """An axis; a single value is a list of one."""
    if key not in given:
        if key not in _DEFAULTS:
            raise InputError("names no policies", file=str(file), remedy='add policies = ["fcfs", …]')
        return _DEFAULTS[key]
    values = given[key] if isinstance(given[key], list) else [given[key]]
    kind: tuple[type, ...] = {"influences": (int, float), "seeds": (int,)}.get(key, (str,))
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            wanted = {"influences": "numbers", "seeds": "whole numbers"}.get(key, "strings")
            raise InputError(f"must be {wanted}, got {value!r}", file=str(file), field=key)
    if not values:
        raise InputError("must name at least one", file=str(file), field=key)
    if key == "influences":
        values = [float(v) for v in values]
    return list(dict.fromkeys(values))


def _one(file: Path, key: str, given: Mapping[str, Any], kind: type, default: Any) -> Any:
    if key not in given:
        return default
    if not isinstance(given[key], kind):
        wanted = {str: "a string", bool: "true or false", dict: "a table", list: "a list"}[kind]
        raise InputError(f"must be {wanted}, got {given[key]!r}", file=str(file), field=key)
    return given[key]


def _path(file: Path, key: str, given: Mapping[str, Any]) -> str | None:
    text = _one(file, key, given, str, None)
    return None if text is None else str((file.parent / text).resolve())


def _check(file: Path, found: Settings) -> None:
    """Refuses names and numbers that no run could use, whichever combination meets them first."""
    for key, check in (("policies", _policy), ("backfills", lambda v: RULES[v]), ("placements", _placement),
                       ("influences", _influence), ("windows", _window)):  # fmt: skip
        for value in found[key]:
            _checked(file, key, check, value)
    if found["starvation"] not in STARVATION:
        raise _in_file(file, unknown_name("starvation", found["starvation"], STARVATION))
    if found["weights"] is not None:
        _checked(file, "weights", _weights, found["weights"])
    if (found["slurm_conf"] or found["slurm_options"]) and not any(RULES[b].defaults for b in found["backfills"]):
        raise InputError("is of no use without it", file=str(file), field="slurm_conf",
                         remedy='add "slurm" to backfills')  # fmt: skip


def _checked(file: Path, key: str, check: Callable[[Any], object], value: Any) -> None:
    try:
        check(value)
    except InputError as error:
        raise InputError(error.message, file=str(file), field=key, remedy=error.remedy) from None
    except SlurmRlError as error:
        raise InputError(str(error), file=str(file), field=key) from None


def _in_file(file: Path, error: InputError) -> InputError:
    return InputError(error.message, file=str(file), remedy=error.remedy)


def _policy(name: str) -> object:
    if name == "auto":
        raise InputError("a sweep cannot take the policy auto", remedy="replay TRACE --policy auto runs it")
    return parse_contenders([name], "easy")


def _placement(name: str) -> object:
    return find_placement(name) if name else None


def _influence(value: float) -> object:
    if not 0.0 <= value <= 1.0:
        raise InputError(f"must be within 0 and 1, got {value:g}")
    return value


def _window(text: str) -> object:
    low, colon, high = text.partition(":")
    try:
        if not colon or not 0 <= float(low or 0) < float(high or "inf"):
            raise ValueError
    except ValueError:
        raise InputError(f"must be A:B with 0 ≤ A < B, got {text!r}", remedy="e.g. 0.6:1, or : for all") from None
    return text


def _weights(table: Mapping[str, Any]) -> object:
    from slurm_rl.policy.heuristics import DEFAULT_WEIGHTS

    for name, value in table.items():
        if name not in DEFAULT_WEIGHTS:
            raise unknown_name("weight", name, DEFAULT_WEIGHTS)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise InputError(f"{name} must be a number, got {value!r}")
    return table


def combinations(settings: Settings) -> list[Unit]:
    """One unit a run; those of one seed and window follow each other, since they share what is prepared.

    `NAME+BACKFILL` runs under its own rule alone, and an empty placement is the one that belongs to the rule.
    """
    units: dict[str, Unit] = {}
    outer = itertools.product(settings["seeds"], settings["windows"])
    for seed, window in outer:
        for policy, rule, place, influence in _runs(settings):
            what = dict(zip(AXES.values(), (policy, rule, place, influence, seed, window), strict=True))
            name = "/".join(str(value) for value in what.values())
            units.setdefault(name, Unit(name, what))
    return list(units.values())


def _runs(settings: Settings) -> Sequence[tuple[str, str, str, float]]:
    found = []
    for text, common in itertools.product(settings["policies"], settings["backfills"]):
        own = parse_contenders([text], common)[0].backfill
        name = text.removesuffix(f"+{own}")
        for place, influence in itertools.product(settings["placements"], settings["influences"]):
            found.append((name, own, place or RULES[own].placement, influence))
    return found
