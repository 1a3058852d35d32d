"""How functions and methods of tensors carry a feature axis."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from slurm_rl.grow.spaces import Value

if TYPE_CHECKING:
    from slurm_rl.grow.rules import Reader

_ELEMENTWISE = {
    F.relu, F.relu6, F.gelu, F.silu, F.tanh, F.sigmoid, F.leaky_relu, F.elu, F.selu, F.celu, F.mish, F.hardswish,
    F.hardtanh, F.hardsigmoid, F.softplus, F.softsign, F.logsigmoid, F.dropout, F.alpha_dropout, torch.relu, torch.tanh,
    torch.sigmoid, torch.neg, torch.abs, torch.exp, torch.clamp, torch.square, torch.clone, operator.neg, operator.pow,
    torch.pow, torch.sin, torch.cos, torch.erf,
}  # fmt: skip
_COMBINING = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.iadd, operator.isub, operator.imul,
    operator.itruediv, torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum,
}  # fmt: skip
_BY_CHANNEL = {
    F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool1d,
    F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.interpolate,
    F.dropout1d, F.dropout2d, F.dropout3d,
}  # fmt: skip
_ELEMENTWISE_METHODS = set(
    "relu relu_ tanh sigmoid neg abs exp clamp square pow contiguous clone detach float half bfloat16 double to type "
    "requires_grad_ cpu cuda".split()
)
_COMBINING_METHODS = set("add sub mul div add_ sub_ mul_ div_".split())
_REDUCING = {torch.mean: "mean", torch.sum: "sum", torch.amax: "amax", torch.amin: "amin"}
_SCALARS = {"shape", "device", "dtype", "ndim", "is_cuda"}
_METHODS_AS_FUNCTIONS = {
    torch.flatten: "flatten",
    torch.transpose: "transpose",
    torch.permute: "permute",
    torch.unsqueeze: "unsqueeze",
    torch.squeeze: "squeeze",
    torch.reshape: "reshape",
}


def function(reader: Reader, target: Any, where: str, args: Any, kwargs: Any) -> Any:
    """The value of a call of a function."""
    if target is getattr:
        return _attribute(reader, args)
    if target is operator.getitem:
        return _item(reader, where, args[0], args[1])
    if target in _ELEMENTWISE:
        return _through(reader, where, args, kwargs)
    if target in _COMBINING:
        return combine(reader, where, list(args[:2]))
    if target in _BY_CHANNEL:
        x = args[0] if args else kwargs.get("input")
        return x if isinstance(x, Value) and x.axis == "channel" and not x.flat else _unknown(reader, where, args)
    if target is torch.cat or target is torch.concat:
        return _cat(reader, where, args[0], kwargs.get("dim", args[1] if len(args) > 1 else 0))
    if target in _REDUCING:
        return _reduce(reader, where, args, kwargs)
    if target in _METHODS_AS_FUNCTIONS:
        return method(reader, _METHODS_AS_FUNCTIONS[target], where, args, kwargs)
    return _unknown(reader, where, (args, kwargs))


def method(reader: Reader, name: str, where: str, args: Any, kwargs: Any) -> Any:
    """The value of a call of a method."""
    x, rest = args[0], args[1:]
    if name in ("size", "dim", "numel", "item", "type_as"):
        return x if name == "type_as" else _scalar()
    if name in _ELEMENTWISE_METHODS:
        return _through(reader, where, args, kwargs)
    if name in _COMBINING_METHODS:
        return combine(reader, where, [x, rest[0]])
    if name in ("expand", "expand_as", "repeat"):
        return reader.followed(x) if name == "expand" else _unknown(reader, where, args)
    if name in ("mean", "sum", "amax", "amin"):
        return _reduce(reader, where, args, kwargs)
    x = reader.followed(x)
    if not isinstance(x, Value):
        return _unknown(reader, where, (x, args, kwargs))
    if name == "flatten":
        start = kwargs.get("start_dim", rest[0] if rest else 0)
        return flatten(reader, where, x, start, kwargs.get("end_dim", rest[1] if len(rest) > 1 else -1))
    if name in ("view", "reshape"):
        shape = rest[0] if rest and isinstance(rest[0], tuple | list) else rest
        if len(shape) == 2 and shape[1] == -1 and not isinstance(shape[0], Value):
            return flatten(reader, where, x, 1, -1)
        return reader.fix((x, args), f"{where} gives it a fixed shape")
    if name == "transpose":
        return _transpose(reader, where, x, rest)
    if name == "permute":
        return _permute(reader, where, x, rest[0] if isinstance(rest[0], tuple | list) else rest)
    if name == "unsqueeze":
        return _unsqueeze(reader, where, x, kwargs.get("dim", rest[0] if rest else None))
    if name == "squeeze" and x.axis == "channel" and (dim := kwargs.get("dim", rest[0] if rest else None)) is not None:
        return _fewer(x, 1) if dim != 0 else reader.fix(x, f"{where} removes an axis")
    return _unknown(reader, where, (x, args, kwargs))


def combine(reader: Reader, where: str, operands: list[Any]) -> Any:
    """Sums and products: what meets element by element shares a space."""
    from slurm_rl.grow.rules import OPAQUE, SCALAR, Attr

    values = [v for v in operands if isinstance(v, Value)]
    if not values:
        tensors = [v for v in operands if isinstance(v, Attr) or v == OPAQUE]
        return tensors[0] if len(tensors) == 1 and isinstance(tensors[0], Attr) else OPAQUE if tensors else SCALAR
    if any(v == OPAQUE for v in operands):
        return reader.fix(values, f"{where} combines it with the model's input or something that is not followed")
    first = values[0]
    for other in operands:
        if isinstance(other, Attr):
            reader.alongside(first, other, where)
    if len(values) == 1:
        return first
    second = values[1]
    kinds = {first.axis, second.axis} - {"both"}
    if len(kinds) > 1 or first.flat != second.flat:
        return reader.fix(values, f"{where} combines it along different axes")
    first.space.merge(second.space, where)
    return first if first.axis != "both" else second


def flatten(reader: Reader, where: str, x: Any, start: int, end: int) -> Any:
    """Folds axes into the features, or beside them."""
    if not isinstance(x, Value) or x.flat or x.axis == "both":
        return x if isinstance(x, Value) and start == 1 and end == -1 else _unknown(reader, where, x)
    if start == 1 and end in (-1, x.dims - 1):
        return Value(x.space, "both", "inner" if x.axis == "channel" else "outer", 2)
    if start == 2 and end in (-1, x.dims - 1) and x.axis == "channel":
        return replace(x, dims=3)
    return reader.fix(x, f"{where} folds it into other axes")


def _scalar() -> Any:
    from slurm_rl.grow.rules import SCALAR

    return SCALAR


def _unknown(reader: Reader, where: str, values: Any) -> Any:
    return reader.fix(values, f"it goes through {where}, which cannot be followed")


def _through(reader: Reader, where: str, args: Any, kwargs: Any) -> Any:
    x = args[0] if args else kwargs.get("input")
    others = [v for v in args[1:] if isinstance(v, Value)]
    return _unknown(reader, where, (x, others)) if others else x


def _attribute(reader: Reader, args: Any) -> Any:
    return _scalar() if args[1] in _SCALARS else _unknown(reader, f"its attribute {args[1]!r}", args[0])


def _item(reader: Reader, where: str, x: Any, index: Any) -> Any:
    from slurm_rl.grow.rules import Attr, Opaque

    if isinstance(x, tuple | list):
        return x[index] if isinstance(index, int) else _unknown(reader, where, x)
    if isinstance(x, Opaque):
        return x
    steps = index if isinstance(index, tuple) else (index,)
    if isinstance(x, Attr):
        x = reader.followed(x) if len(steps) < (x.tensor.dim() if x.tensor is not None else 0) else x
    if not isinstance(x, Value) or x.flat or any(s is Ellipsis for s in steps):
        return _unknown(reader, where, (x, index))
    whole = slice(None, None, None)
    if x.axis == "last" and len(steps) <= 2 and all(isinstance(s, int | slice) for s in steps):
        return x
    if x.axis == "both" and steps[:2] == (whole, whole) and all(s is None for s in steps[2:]):
        return replace(x, axis="channel", dims=len(steps)) if len(steps) > 2 else x
    if x.axis == "channel" and len(steps) > 1 and steps[1] == whole and all(isinstance(s, int | slice) for s in steps):
        return (
            _fewer(x, sum(isinstance(s, int) for s in steps[2:]))
            if isinstance(steps[0], slice)
            else (reader.fix(x, f"{where} removes an axis before it"))
        )
    return reader.fix((x, index), f"{where} takes a part of it")


def _fewer(x: Value, removed: int) -> Value:
    dims = x.dims - removed
    return replace(x, dims=dims, axis="both" if dims == 2 else x.axis)


def _reduce(reader: Reader, where: str, args: Any, kwargs: Any) -> Any:
    x = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keep = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    if not isinstance(x, Value):
        return _unknown(reader, where, (args, kwargs))
    dims = dim if isinstance(dim, tuple | list) else (dim,)
    if x.flat or x.axis == "both" or not all(isinstance(d, int) for d in dims):
        return reader.fix(x, f"{where} sums over it")
    if x.axis == "channel":
        dims = tuple(d % x.dims for d in dims)
        if any(d < 2 for d in dims):
            return reader.fix(x, f"{where} sums over it")
        return x if keep else _fewer(x, len(dims))
    if any(d == -1 or d > 1 for d in dims):
        return reader.fix(x, f"{where} sums over it")
    return x


def _cat(reader: Reader, where: str, tensors: Any, dim: Any) -> Any:
    values = [reader.followed(t) for t in tensors] if isinstance(tensors, tuple | list) else []
    known = [v for v in values if isinstance(v, Value)]
    beside = {"last": (0, 1, -2), "channel": (0, 2, 3, -1, -2), "both": (0,)}
    if not known or len(known) != len(values) or any(v.flat or dim not in beside[v.axis] for v in known):
        return reader.fix((values, tensors), f"{where} joins it with other features")
    for other in known[1:]:
        known[0].space.merge(other.space, where)
    return known[0]


def _transpose(reader: Reader, where: str, x: Value, dims: Any) -> Any:
    pair = {d for d in dims if isinstance(d, int)}
    if x.flat or len(pair) != 2:
        return reader.fix(x, f"{where} moves it")
    if pair in ({1, 2}, {-1, -2}, {1, -1}, {2, -2}):
        if x.axis == "channel" and x.dims == 3:
            return replace(x, axis="last")
        if x.axis == "last":
            return replace(x, axis="channel", dims=3)
    if x.axis == "last" and pair == {0, 1}:
        return x
    return reader.fix(x, f"{where} moves it")


def _permute(reader: Reader, where: str, x: Value, order: Any) -> Any:
    if not x.flat and all(isinstance(d, int) and d >= 0 for d in order) and len(order) > 2:
        place = list(order).index(1 if x.axis == "channel" else len(order) - 1)
        if place == len(order) - 1:
            return replace(x, axis="last", dims=len(order))
        if place == 1:
            return replace(x, axis="channel", dims=len(order))
    return reader.fix(x, f"{where} moves it")


def _unsqueeze(reader: Reader, where: str, x: Value, dim: Any) -> Any:
    if not x.flat and isinstance(dim, int):
        if x.axis == "both" and dim in (2, -1):
            return replace(x, axis="channel", dims=3)
        if x.axis == "channel" and (dim == -1 or dim >= 2):
            return replace(x, dims=x.dims + 1)
        if x.axis in ("last", "both") and dim in (0, 1, -2):
            return replace(x, axis="last", dims=0)
    return reader.fix(x, f"{where} moves it")
