"""Calls by an address in the World's record: a kernel is compiled once, alone, and only if it is used.

Numba puts a copy of every kernel that a kernel calls into it, and optimises the copy again. For the large ones, which
many others call, this took half a minute; a call by address takes a nanosecond. A *slot* is a place for an address.
Several kernels may fit one slot: which of them a World has is decided when it is linked, not when kernels are compiled.
"""

from __future__ import annotations

import dis
import inspect
from functools import cache
from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

from slurm_rl.kernel import tables
from slurm_rl.kernel.tables import MAY_BE_EMPTY, TABLES, WORLD, World

INT, FLOAT, BOOL, NOTHING = types.int64, types.float64, types.boolean, types.none
LIST = types.Array(types.int64, 1, "C")

_signatures: dict[str, Any] = {}  # by slot
_kernels: dict[str, Any] = {}  # by slot, where only one kernel fits
_member: Any = cgutils.get_record_member
_if_unlikely: Any = cgutils.if_unlikely


class NotLinkable(Exception):
    """A kernel was to be linked into a World that lacks what the kernel reads."""


def slot(name: str, result: Any, *arguments: Any) -> Any:
    """What kernels call to reach the kernel in a slot; its arguments after the World have these types.

    `link` must have put an address into the slot before.
    """
    record: Any = from_dtype(WORLD)
    signature = result(record, *arguments)
    _signatures[name] = signature

    def typing(typing_context: Any, *given: Any) -> Any:
        def code(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            convention = context.call_conv
            function_type = convention.get_function_type(result, signature.args)
            address = builder.load(
                _member(builder, values[0], record.offset(f"{name}_at"), context.get_value_type(types.intp))
            )
            function = builder.inttoptr(address, function_type.as_pointer())
            status, value = convention.call_function(builder, function, result, signature.args, values)
            with _if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return value

        return signature, code

    parameters = [f"a{i}" for i in range(1 + len(signature.args))]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    typing.__signature__ = inspect.Signature([inspect.Parameter(p, kind) for p in parameters])  # type: ignore[attr-defined]
    typing.__name__ = name
    return intrinsic(typing)


def by_address(name: str, kernel: Any, result: Any, *arguments: Any) -> Any:
    """A slot that only `kernel` fits: what other kernels call instead of it."""
    _kernels[name] = kernel
    return slot(name, result, *arguments)


def link(world: World, name: str, kernel: Any = None) -> None:
    """Puts a kernel's address into a slot of a World's record, compiled on first use and kept on disk.

    Without `kernel`, the one that the slot was made for.
    """
    world.record[f"{name}_at"] = address_of(world, name, _kernels[name] if kernel is None else kernel)


def address_of(world: World, name: str, kernel: Any) -> int:
    """The address of a kernel for a slot; refused if the World lacks a table that the kernel reads."""
    _check(world, kernel)
    return compiled_at(name, kernel)


@cache
def compiled_at(name: str, kernel: Any) -> int:
    """Where a kernel's code for a slot lies: it stays there, and asking numba takes longer than making a World."""
    arguments = _signatures[name].args
    kernel.compile(arguments)
    compiled = kernel.overloads[arguments]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def _check(world: World, kernel: Any) -> None:
    """A kernel reads past the end of an empty table; a World without jobs has nobody to read of."""
    if len(world["jobs"]) == 0:
        return
    for table in sorted(tables_of(kernel) - MAY_BE_EMPTY):
        if world[table].shape[0] == 0:
            raise NotLinkable(f"kernel {kernel.py_func.__name__} reads the table {table}, which is empty in this World")


@cache
def tables_of(kernel: Any) -> frozenset[str]:
    """The tables that a kernel reads, itself or through kernels that become part of it; not those behind slots."""
    found: set[str] = set()
    seen: set[Any] = set()
    left = [kernel]
    while left:
        function = left.pop().py_func
        if function in seen:
            continue
        seen.add(function)
        of_tables = False
        for instruction in dis.get_instructions(function):
            if of_tables and instruction.argval in TABLES:
                found.add(instruction.argval)
            value = function.__globals__.get(instruction.argval) if instruction.opname == "LOAD_GLOBAL" else None
            of_tables = value is tables
            if isinstance(value, Dispatcher):
                left.append(value)
    return frozenset(found)
