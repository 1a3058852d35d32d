"""Vector arithmetic on single-precision arrays that LLVM would not find by itself in a kernel's loops."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_LANES = 8
_SINGLE, _LANE, _INDEX = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_SINGLE, _LANES)
_CONTRACT = ("contract",)  # a multiplication and an addition may become one instruction


class _Code:
    """Writes instructions for one call whose arguments are pairs of an array and the place in it to begin at."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.builder = builder
        self.pointers = []
        for k in range(0, len(arguments), 2):
            array = context.make_array(signature.args[k])(context, builder, arguments[k])
            self.pointers.append(builder.gep(array.data, [arguments[k + 1]]))

    def place(self, pointer: int, k: int) -> Any:
        return self.builder.gep(self.pointers[pointer], [ir.Constant(_INDEX, k)])

    def vector_place(self, pointer: int, k: int) -> Any:
        return self.builder.bitcast(self.place(pointer, k), _VECTOR.as_pointer())

    def load(self, pointer: int, k: int) -> Any:
        return self.builder.load(self.vector_place(pointer, k), align=4)

    def store(self, value: Any, pointer: int, k: int) -> None:
        self.builder.store(value, self.vector_place(pointer, k), align=4)

    def splat(self, pointer: int, k: int) -> Any:
        value = self.builder.load(self.place(pointer, k))
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        one = self.builder.insert_element(nothing, value, ir.Constant(_LANE, 0))
        return self.builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(_LANE, _LANES), [0] * _LANES))

    def add_product(self, total: Any, a: Any, b: Any) -> Any:
        return self.builder.fadd(total, self.builder.fmul(a, b, flags=_CONTRACT), flags=_CONTRACT)


def add_product(inputs: int, outputs: int) -> Any:
    """An operation for kernels: out[out_at + o] += sum over f of x[x_at + f] * weight[weight_at + f * outputs + o]."""

    def typing(typing_context: Any, x: Any, x_at: Any, weight: Any, weight_at: Any, out: Any, out_at: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            c = _Code(context, builder, signature, arguments)
            columns = range(0, outputs, _LANES)
            totals = [c.load(2, k) for k in columns]
            for f in range(inputs):
                value = c.splat(0, f)
                totals = [
                    c.add_product(total, value, c.load(1, f * outputs + k))
                    for total, k in zip(totals, columns, strict=True)
                ]
            for total, k in zip(totals, columns, strict=True):
                c.store(total, 2, k)
            return context.get_dummy_value()

        return types.void(x, types.intp, weight, types.intp, out, types.intp), code

    return intrinsic(typing)


def dot(length: int) -> Any:
    """An operation for kernels: the sum over k of a[a_at + k] * b[b_at + k]."""

    def typing(typing_context: Any, a: Any, a_at: Any, b: Any, b_at: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            c = _Code(context, builder, signature, arguments)
            total = ir.Constant(_VECTOR, [0.0] * _LANES)
            for k in range(0, length, _LANES):
                total = c.add_product(total, c.load(0, k), c.load(1, k))
            lanes = [builder.extract_element(total, ir.Constant(_LANE, k)) for k in range(_LANES)]
            while len(lanes) > 1:
                lanes = [builder.fadd(x, y) for x, y in zip(lanes[::2], lanes[1::2], strict=True)]
            return lanes[0]

        return types.float32(a, types.intp, b, types.intp), code

    return intrinsic(typing)
