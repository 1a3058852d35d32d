"""Formulas from outside, compiled: a function over named figures becomes a kernel that a catalogue's row can name."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numba
from numba.core.errors import NumbaError

from slurm_rl.errors import InputError, unknown_name

_njit: Any = numba.njit  # its published types leave options out
_made: dict[str, Any] = {}  # kernels from outside, by the name in their rows


def __getattr__(name: str) -> Any:
    """A kernel from outside, as `find_kernel` asks for it."""
    if name in _made:
        return _made[name]
    raise AttributeError(name)


def keep(name: str, kernel: Any) -> str:
    """Keeps a kernel; what a row says to find it again."""
    _made[name] = kernel
    return f"{__name__}:{name}"


def figures_of(function: Callable[..., Any], words: Mapping[str, Any], what: str) -> tuple[str, ...]:
    """The figures that a formula asks for: its parameters without a default."""
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InputError(f"{what}: *{name} has no meaning in a formula", remedy="name its figures one by one")
        if parameter.default is parameter.empty:
            if name not in words:
                raise unknown_name(f"figure in {what}", name, words)
            names.append(name)
    return tuple(names)


def digest_of(function: Any) -> str:
    """sha256 of the file that a function or an object's class stands in; "" where there is none, as in a notebook."""
    try:
        file = inspect.getsourcefile(function if inspect.isroutine(function) else type(function))
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""


def compiled(function: Callable[..., Any], figures: int, what: str) -> Any:
    """The formula as machine code, compiled at once, so that an error names the line of its definition."""
    formula = _njit(error_model="numpy", nogil=True)(function)
    try:
        constants = [p.default for p in inspect.signature(function).parameters.values() if p.default is not p.empty]
        omitted: Any = numba.types.Omitted  # untyped, as most of numba is
        formula.compile(((numba.float64,) * figures) + tuple(map(omitted, constants)))
        result = next(iter(formula.overloads.values())).signature.return_type
    except NumbaError as error:
        raise InputError(
            f"{what} cannot be compiled: {_first_line(str(error))}",
            remedy="a formula may use numbers, math and numpy's functions of numbers; any Python goes with "
            "@slurm_rl.policy",
        ) from None
    if not isinstance(result, numba.types.Number | numba.types.Boolean):
        raise InputError(f"{what} must give a number, it gives {result}")
    return formula


def _first_line(text: str) -> str:
    """What numba complains about, without its advice on reporting bugs."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Failed in", "During:", "File ", "- "))]
    return (told or lines or ["no reason given"])[0]


def written(source: str, name: str, **known: Any) -> Any:
    """A kernel from source that was put together from our own snippets; too short-lived to be kept on disk."""
    scope: dict[str, Any] = dict(known)
    exec(compile(source, f"<{name}>", "exec"), scope)  # noqa: S102  # our own snippets around a compiled formula
    return _njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)(scope["kernel"])
