"""The processor's cycle counter, readable inside compiled code: measures a scheduling pass at no cost."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _cycles(typing_context: Any) -> Any:
    """Cycles since some fixed moment; 0 where the processor does not tell."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = builder.module.declare_intrinsic("llvm.readcyclecounter", fnty=ir.FunctionType(ir.IntType(64), []))
        return builder.call(counter, [])

    return types.int64(), code


cycles: Any = intrinsic(_cycles)  # to Python it has no argument: numba supplies the context
