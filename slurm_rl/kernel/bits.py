"""Counting in 64-bit words, one instruction each."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _count_bits(typing_context: Any, word: Any) -> Any:
    """How many bits of a word are set."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), code


def _lowest_bit(typing_context: Any, word: Any) -> Any:
    """The number of a word's lowest bit that is set; the word is not 0."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), code


count_bits: Any = intrinsic(_count_bits)
lowest_bit: Any = intrinsic(_lowest_bit)
