"""Kernels that others call by an address in the World's record: each compiled once, alone, and only if it is used.

Numba puts a copy of every kernel that a kernel calls into it, and optimises the copy again. For the large ones, which
many others call, this took half a minute; a call by address takes a nanosecond.
"""

from __future__ import annotations

import inspect
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

from slurm_rl.domain.tables import WORLD, World

INT, FLOAT, BOOL, NOTHING = types.int64, types.float64, types.boolean, types.none
LIST = types.Array(types.int64, 1, "C")

_kernels: dict[str, tuple[Any, tuple[Any, ...]]] = {}  # by name: what to compile, and for which arguments
_member: Any = cgutils.get_record_member
_if_unlikely: Any = cgutils.if_unlikely


def by_address(name: str, kernel: Any, result: Any, *arguments: Any) -> Any:
    """What other kernels call instead of `kernel`; its arguments after the World have these types.

    `link` must have put the address into the World before.
    """
    record: Any = from_dtype(WORLD)
    signature = result(record, *arguments)
    _kernels[name] = kernel, signature.args

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


def link(world: World, *names: str) -> None:
    """Puts the addresses of these kernels into a World's record, compiled on first use and kept on disk."""
    for name in names:
        kernel, arguments = _kernels[name]
        kernel.compile(arguments)
        compiled = kernel.overloads[arguments]
        world.record[f"{name}_at"] = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
