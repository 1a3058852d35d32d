"""How each kind of layer carries a feature axis: the rules by which a traced graph is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from slurm_rl.grow import operations
from slurm_rl.grow.layers import Attention
from slurm_rl.grow.spaces import Attribute, Slot, Space, Value


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that is not followed: a tensor whose axes are unknown, or a number."""

    tensor: bool


OPAQUE, SCALAR = Opaque(True), Opaque(False)


@dataclass(frozen=True, slots=True)
class Attr:
    """A tensor of the model that its forward uses directly, such as a position embedding."""

    name: str
    tensor: Tensor | None


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish,
    nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Identity, nn.Dropout,
    nn.AlphaDropout,
)  # fmt: skip
_BY_CHANNEL = (
    nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.Upsample, nn.ZeroPad1d, nn.ZeroPad2d, nn.ReflectionPad2d,
)  # fmt: skip
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Reader:
    """Reads a graph node by node, and collects the spaces."""

    def __init__(self, modules: dict[str, nn.Module], out: dict[str, Value], heads: dict[str, Space]) -> None:
        self.modules, self.out, self.heads = modules, out, heads
        self.spaces: list[Space] = []
        self._taken: dict[str, Value | Opaque] = {}  # what each layer reads

    def opaque(self) -> Opaque:
        return OPAQUE

    def new(self, size: int, maker: str | None = None) -> Space:
        space = Space(size, [maker] if maker else [])
        self.spaces.append(space)
        return space

    def fix(self, values: Any, why: str) -> Any:
        """Nothing in `values` may change its width, because of `why`."""
        for value in walk(values):
            if isinstance(value, Value) and why not in value.space.root().fixed:
                value.space.root().fixed.append(why)
        tensors = any(isinstance(v, Value | Attr) or v == OPAQUE for v in walk(values))
        return OPAQUE if tensors else SCALAR

    # Modules

    def module(self, name: str, args: Any, kwargs: Any) -> Any:
        """The value of a call of a module."""
        module, kind = self.modules[name], type(self.modules[name])
        x = args[0] if args else next(iter(kwargs.values()), SCALAR)
        if kind is nn.Sequential:
            for child in module._modules:
                x = self.module(f"{name}.{child}", (x,), {})
            return x
        if kind in (nn.MultiheadAttention, Attention):
            names = ("query", "key", "value")
            given = [args[i] if i < len(args) else kwargs.get(n, OPAQUE) for i, n in enumerate(names)]
            return self._attention(name, module, given)
        if kind is nn.TransformerEncoderLayer:
            return self._encoder_layer(name, module, x)
        if kind is nn.TransformerEncoder:
            for i in range(len(module.layers)):  # type: ignore[arg-type]
                x = self.module(f"{name}.layers.{i}", (x,), {})
            return x if module.norm is None else self.module(f"{name}.norm", (x,), {})
        for kinds, rule in self._rules():
            if kind in kinds and _plain(module):
                return rule(name, module, x)
        return self.fix((args, kwargs), f"it goes through {name!r} ({kind.__name__}), which cannot be followed")

    def _rules(self) -> tuple[tuple[tuple[type, ...], Callable[[str, Any, Any], Any]], ...]:
        return (
            ((nn.Linear, NonDynamicallyQuantizableLinear), self._linear),
            (_CONVS, self._conv),
            (_BATCH_NORMS, self._batch_norm),
            (_INSTANCE_NORMS, self._instance_norm),
            ((nn.LayerNorm, nn.RMSNorm), self._layer_norm),
            ((nn.GroupNorm,), self._group_norm),
            ((nn.Embedding, nn.EmbeddingBag), self._embedding),
            (_ELEMENTWISE, lambda _name, _module, x: x),
            (_BY_CHANNEL, self._by_channel),
            ((nn.Flatten,), lambda name, m, x: operations.flatten(self, name, x, m.start_dim, m.end_dim)),
            ((nn.PReLU,), self._prelu),
        )

    def _reads(self, name: str, x: Any) -> Value | None:
        """What a layer reads; a layer that is called several times reads one space."""
        before = self._taken.get(name)
        now = x if isinstance(x, Value) else OPAQUE
        if before is not None and type(before) is not type(now):
            self.fix((before, now), f"{name!r} is called with it and with something of another kind")
            return None
        if isinstance(before, Value) and isinstance(now, Value):
            before.space.merge(now.space, repr(name))
            if (before.flat, before.axis == "channel") != (now.flat, now.axis == "channel"):
                self.fix(now, f"{name!r} is called with tensors of different axes")
        self._taken[name] = now
        return now if isinstance(now, Value) else None

    def _uses(self, name: str, x: Value, total: int, tensor: str, axis: int, attribute: str) -> None:
        """A layer's weights along what it reads."""
        size = x.space.size
        ratio, rest = divmod(total, size)
        if rest or (ratio > 1 and not x.flat):
            self.fix(x, f"{name!r} reads {total} features of {size}")
            return
        outer, inner = (ratio, 1) if x.flat == "outer" else (1, ratio)
        self._add(x.space, Slot(tensor, axis, "use", outer, inner), Attribute(name, attribute, ratio))

    def _add(self, space: Space, slot: Slot | None, attribute: Attribute | None = None) -> None:
        root = space.root()
        if slot is not None and slot not in root.slots:
            root.slots.append(slot)
        if attribute is not None and attribute not in root.attributes:
            root.attributes.append(attribute)

    def _made(self, name: str, size: int, value: Callable[[Space], Value]) -> tuple[Value, bool]:
        if name in self.out:
            return self.out[name], False
        self.out[name] = value(self.new(size, name))
        return self.out[name], True

    def _linear(self, name: str, m: nn.Linear, x: Any) -> Any:
        if isinstance(x, Value) and x.axis == "channel":
            return x if m.in_features == m.out_features else self.fix(x, f"{name!r} acts across its positions")
        read = self._reads(name, x)
        if read is not None:
            self._uses(name, read, m.in_features, f"{name}.weight", 1, "in_features")
        axis = read.axis if read is not None else "last"
        out, new = self._made(name, m.out_features, lambda s: Value(s, axis))
        if new:
            self._make(name, m, out.space, Attribute(name, "out_features"))
        return replace(out, axis=axis)

    def _make(self, name: str, m: nn.Module, space: Space, attribute: Attribute) -> None:
        self._add(space, Slot(f"{name}.weight", 0, "make"), attribute)
        if m.bias is not None:
            self._add(space, Slot(f"{name}.bias", 0, "make"))

    def _conv(self, name: str, m: Any, x: Any) -> Any:
        dims = m.weight.dim()
        if isinstance(x, Value) and (x.axis != "channel" or x.flat):
            self.fix(x, f"{name!r} slides along it")
            x = OPAQUE
        if m.groups == m.in_channels == m.out_channels > 1 and isinstance(x, Value):
            read = self._reads(name, x)
            if read is not None and read.space.size == m.in_channels:
                self._make(name, m, read.space, Attribute(name, "out_channels"))
                self._add(read.space, None, Attribute(name, "in_channels"))
                self._add(read.space, None, Attribute(name, "groups"))
                return read
        read = self._reads(name, x)
        out, new = self._made(name, m.out_channels, lambda s: Value(s, "channel", dims=dims))
        if m.groups != 1:
            self.fix((x, out), f"{name!r} is a grouped convolution")
        elif read is not None:
            self._uses(name, read, m.in_channels, f"{name}.weight", 1, "in_channels")
        if new:
            self._make(name, m, out.space, Attribute(name, "out_channels"))
        return out

    def _norm(self, name: str, m: Any, x: Value, total: int, attribute: str, as_tuple: bool = False) -> bool:
        """A norm's tensors along what it reads; False if they do not fit."""
        ratio, rest = divmod(total, x.space.size)
        if rest or (ratio > 1 and not x.flat):
            self.fix(x, f"{name!r} reads {total} features of {x.space.size}")
            return False
        outer, inner = (ratio, 1) if x.flat == "outer" else (1, ratio)
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            if getattr(m, leaf, None) is not None:
                self._add(x.space, Slot(f"{name}.{leaf}", 0, "make", outer, inner))
        self._add(x.space, None, Attribute(name, attribute, ratio, as_tuple))
        return True

    def _batch_norm(self, name: str, m: Any, x: Any) -> Any:
        read = self._reads(name, x)
        if read is None:
            return OPAQUE
        self._norm(name, m, read, m.num_features, "num_features")
        return replace(read, axis="both") if read.axis == "last" else read

    def _instance_norm(self, name: str, m: Any, x: Any) -> Any:
        read = self._reads(name, x)
        if read is None:
            return OPAQUE
        if read.axis != "channel":
            return self.fix(x, f"{name!r} normalises along it")
        self._norm(name, m, read, m.num_features, "num_features")
        return read

    def _layer_norm(self, name: str, m: Any, x: Any) -> Any:
        read = self._reads(name, x)
        if read is None:
            return OPAQUE
        if read.axis == "channel" or len(m.normalized_shape) != 1:
            return self.fix(x, f"{name!r} normalises over several axes")
        if self._norm(name, m, read, m.normalized_shape[0], "normalized_shape", as_tuple=True):
            read.space.root().whole.append(name)
        return read

    def _group_norm(self, name: str, m: nn.GroupNorm, x: Any) -> Any:
        read = self._reads(name, x)
        if read is None:
            return OPAQUE
        if read.axis == "last" or read.flat:
            return self.fix(x, f"{name!r} normalises along other axes")
        if self._norm(name, m, read, m.num_channels, "num_channels"):
            read.space.root().whole.append(name)
        return read

    def _prelu(self, name: str, m: nn.PReLU, x: Any) -> Any:
        if m.num_parameters == 1 or not isinstance(x, Value):
            return x
        read = self._reads(name, x)
        if read is None or read.axis == "last" or read.flat:
            return self.fix(x, f"{name!r} has a slope for each of its features")
        self._norm(name, m, read, m.num_parameters, "num_parameters")
        return read

    def _embedding(self, name: str, m: Any, x: Any) -> Any:
        bag = isinstance(m, nn.EmbeddingBag)
        out, new = self._made(name, m.embedding_dim, lambda s: Value(s, "both" if bag else "last"))
        if new:
            self._add(out.space, Slot(f"{name}.weight", 1, "make"), Attribute(name, "embedding_dim"))
            if m.max_norm is not None:
                self.fix(out, f"{name!r} bounds the norm of its rows")
        return out

    def _by_channel(self, name: str, m: nn.Module, x: Any) -> Any:
        if isinstance(x, Value) and (x.axis != "channel" or x.flat):
            return self.fix(x, f"{name!r} works along it")
        return x

    # Attention

    def _attention(self, name: str, m: Any, given: list[Any]) -> Any:
        fused = isinstance(m, nn.MultiheadAttention)
        heads = self.heads.get(name)
        first = heads is None
        if heads is None:
            heads = self.heads[name] = self.new(m.num_heads, name)
        out, _ = self._made(name, m.embed_dim, lambda s: Value(s, "last"))
        if fused and (not m._qkv_same_embed_dim or m.bias_k is not None or m.add_zero_attn):
            why = f"{name!r} has its own widths for keys and values, or further keys"
            return self.fix((given, out, Value(heads, "last")), why), SCALAR
        if first:
            for leaf in ("in_proj_weight", "in_proj_bias"):
                if getattr(m, leaf) is not None:
                    self._add(heads, Slot(f"{name}.{leaf}", 0, "make", outer=3, inner=m.head_dim))
            self._add(heads, Slot(f"{name}.out_proj.weight", 1, "use", inner=m.head_dim))
            self._add(heads, None, Attribute(name, "num_heads"))
            self._add(heads, None, Attribute(f"{name}.out_proj", "in_features", m.head_dim))
            self._add(out.space, Slot(f"{name}.out_proj.weight", 0, "make"), Attribute(name, "embed_dim"))
            self._add(out.space, None, Attribute(f"{name}.out_proj", "out_features"))
            if m.out_proj.bias is not None:
                self._add(out.space, Slot(f"{name}.out_proj.bias", 0, "make"))
        out.space.root().makers[:] = [n for n in out.space.root().makers if n != name]  # its name stands for the heads
        for x in given:
            if not isinstance(x, Value) or x.axis == "channel" or x.flat:
                self.fix((given, out), f"{name!r} reads something that is not followed")
                break
            # The stream that is read and the one that is written have one size, which the layer keeps.
            x.space.merge(out.space, repr(name))
        stream = out.space.root()
        if not stream.fixed:
            self._add(stream, Slot(f"{name}.in_proj_weight", 1, "use"))
            if fused:
                for leaf in ("kdim", "vdim"):
                    self._add(stream, None, Attribute(name, leaf))
                # Within nn.MultiheadAttention heads are as wide together as the stream.
                stream.whole.append(name)
                if heads not in stream.coupled:
                    stream.coupled.append(heads)
        return replace(out, axis="last"), SCALAR

    def _encoder_layer(self, name: str, m: Any, x: Any) -> Any:
        if not isinstance(x, Value):
            x = Value(self.new(m.linear1.in_features), "last")
            self.fix(x, f"{name!r} reads something that is not followed")

        def step(child: str, value: Any) -> Any:
            return self.module(f"{name}.{child}", (value,), {})

        def attend(value: Any) -> Any:
            return self._attention(f"{name}.self_attn", m.self_attn, [value] * 3)[0]

        def feed(value: Any) -> Any:
            return step("linear2", step("linear1", value))

        for sublayer, norm in ((attend, "norm1"), (feed, "norm2")):
            if m.norm_first:
                x = operations.combine(self, norm, [x, sublayer(step(norm, x))])
            else:
                x = step(norm, operations.combine(self, norm, [x, sublayer(x)]))
        return x

    # Functions and methods

    def function(self, target: Any, where: str, args: Any, kwargs: Any) -> Any:
        return operations.function(self, target, where, args, kwargs)

    def method(self, name: str, where: str, args: Any, kwargs: Any) -> Any:
        return operations.method(self, name, where, args, kwargs)

    def followed(self, x: Any) -> Any:
        """A tensor of the model becomes a value whose last axis is a space of its own."""
        if not isinstance(x, Attr) or x.tensor is None or x.tensor.dim() == 0:
            return x
        space = self.new(x.tensor.shape[-1])
        self._add(space, Slot(x.name, x.tensor.dim() - 1, "make"))
        return Value(space, "last")

    def alongside(self, x: Value, other: Attr, where: str) -> None:
        """A tensor of the model is added to a value, or multiplied with it."""
        tensor = other.tensor
        if tensor is None or tensor.numel() == 1:
            return
        axis = tensor.dim() - 1
        if x.axis == "channel":
            axis = tensor.dim() - (x.dims - 1)
        if x.flat or axis < 0 or tensor.shape[axis] not in (1, x.space.size):
            self.fix(x, f"{where} combines it with {other.name}")
        elif tensor.shape[axis] == x.space.size > 1:
            self._add(x.space, Slot(other.name, axis, "make"))


def _plain(module: nn.Module) -> bool:
    """Weights are the layer's own parameters, not made from others (weight norm, parametrizations)."""
    weight = getattr(module, "weight", None)
    return weight is None or "weight" in module._parameters


def walk(values: Any) -> Iterator[Any]:
    """All leaves of nested arguments."""
    if isinstance(values, tuple | list):
        for value in values:
            yield from walk(value)
    elif isinstance(values, dict):
        yield from walk(list(values.values()))
    elif isinstance(values, slice):
        yield from walk([values.start, values.stop, values.step])
    else:
        yield values
