"""Python policies: by decorator, from a module or a file, from an installed package, or an ONNX file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_rl.errors import InputError
from slurm_rl.kernel.formula import digest_of
from slurm_rl.kernel.imports import MARK, attribute, entry_names, is_file, load_entry, module_of
from slurm_rl.policy.catalogue import BY_USER, POLICIES, SOURCES
from slurm_rl.policy.queue import Queue

Scores = Callable[[Queue], Any]
GROUP = "slurm_rl.policies"
SECONDS = 1.0  # that a policy may take for a queue


@dataclass(frozen=True, slots=True)
class Outside:
    """A policy that is Python: scores of the jobs of a queue, higher first."""

    name: str
    call: Scores
    source: int = BY_USER  # of the estimates that it sees
    seconds: float = SECONDS
    digest: str = ""  # of the file it comes from


_registered: dict[str, Outside] = {}


def policy(
    name: str, *, estimate: str = "user", seconds: float = SECONDS, digest: str = ""
) -> Callable[[Scores], Scores]:
    """Makes a function of a Queue a policy by that name; it stays a function.

    It returns one score a job, higher first. What it raises, scores that are not finite, of another length or all the
    same, and answers that take longer than `seconds` leave Slurm's own order in their place, and are counted.
    """
    if not isinstance(name, str):
        raise InputError("a policy needs a name", remedy='write @slurm_rl.policy("mine")')
    if estimate not in SOURCES:
        raise InputError(f"must be {', '.join(SOURCES)}, got {estimate!r}", field="estimate")

    def register(function: Scores) -> Scores:
        if name in POLICIES or not name or set(name) & set("@+, \t\n"):
            raise InputError(f"a policy cannot be called {name!r}", remedy="ours have that name, or it is no name")
        _registered[name] = Outside(name, function, SOURCES[estimate], seconds, digest or digest_of(function))
        with suppress(AttributeError):
            setattr(function, MARK, name)
        return function

    return register


def names() -> tuple[str, ...]:
    """The policies from outside that can be asked for by name."""
    return tuple(dict.fromkeys([*_registered, *entry_names(GROUP)]))


def find(text: str) -> Outside | str | None:
    """What a name from outside stands for: a policy, the name of a formula's row, or nothing that is known.

    `onnx:FILE`; `module:name` and `FILE.py[:name]`, which are imported; a registered name; one of an installed package.
    """
    kind, colon, rest = text.partition(":")
    if colon and kind == "onnx":
        from slurm_rl.policy.onnx import load_onnx

        path = Path(rest)
        return Outside(text, load_onnx(path), digest=hashlib.sha256(path.read_bytes()).hexdigest())
    if text in _registered:
        return _registered[text]
    if is_file(text) and not rest:
        return _only(text)
    if colon and kind != "rl":
        return _usable(attribute(module_of(text), rest, text), text)
    offered = load_entry(GROUP, text)
    return None if offered is None else _usable(offered, text)


def _only(text: str) -> Outside | str:
    """The one policy that a file registers."""
    module = module_of(text)
    marked = {getattr(v, MARK) for v in vars(module).values() if isinstance(getattr(v, MARK, None), str)}
    made = [n for n in marked if n in _registered or n in POLICIES]
    if len(made) != 1:
        found = f"{len(made)} policies" if made else "no policy"
        raise InputError(f"defines {found}", file=text, remedy=f"write {text}:NAME")
    return _registered.get(made[0], made[0])


def _usable(given: Any, text: str) -> Outside | str:
    """What was imported, as a policy; what is not decorated goes by the name it was asked for."""
    name = getattr(given, MARK, None)
    if isinstance(given, Outside):
        return given
    if isinstance(name, str):
        return _registered.get(name, name)
    if hasattr(given, "observation_space") and hasattr(given, "policy"):
        from slurm_rl.policy.agents import from_sb3

        return Outside(text, from_sb3(given), digest=digest_of(given))
    if callable(given):
        return Outside(text, given, digest=digest_of(given))
    raise InputError(f"{text} is a {type(given).__name__}, not a policy", remedy="a function of a slurm_rl.Queue")
