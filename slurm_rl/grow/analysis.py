"""Reads a model's graph: which layers share a width, and where a layer may be put in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from slurm_rl.errors import unknown_name
from slurm_rl.grow import rules
from slurm_rl.grow.errors import CannotGrow
from slurm_rl.grow.layers import Attention
from slurm_rl.grow.rules import OPAQUE, SCALAR, Attr, Opaque
from slurm_rl.grow.spaces import Space, Value


class _Tracer(fx.Tracer):
    """Stops at PyTorch's own layers, and at ours."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Attention) or super().is_leaf_module(m, module_qualified_name)


@dataclass
class Analysis:
    """What is known of a model; names are those of its modules."""

    model: nn.Module
    graph: fx.Graph | None
    out: dict[str, Value] = field(default_factory=dict)  # output of each layer
    heads: dict[str, Space] = field(default_factory=dict)  # of each attention
    spaces: list[Space] = field(default_factory=list)

    def space_of(self, name: str) -> Space:
        """The space that `widen(model, name)` is about; raises CannotGrow for a name that has none."""
        if name in self.heads:
            return self.heads[name].root()
        if name in self.out:
            return self.out[name].space.root()
        raise missing(self.model, name)

    def widenable(self) -> list[str]:
        """One name for each space that can be widened, in the order of the graph."""
        found: list[str] = []
        seen: list[Space] = []
        for name in self._names():
            space = self.space_of(name)
            if space not in seen and not space.fixed and not self.shared(space):
                seen.append(space)
                found.append(name)
        return found

    def _names(self) -> list[str]:
        order = [name for name, _ in self.model.named_modules()]
        return sorted({*self.heads, *(n for n, v in self.out.items() if n in v.space.root().makers)}, key=order.index)

    def shared(self, space: Space) -> str:
        """Why weights that two layers share keep a space from growing, or ""."""
        owners: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            owners.setdefault(id(parameter), []).append(name)
        for part in space.all():
            for slot in part.slots:
                names = owners.get(id(_tensor(self.model, slot.tensor)), [])
                if len(names) > 1:
                    return f"{names[0]} and {names[1]} are the same weights"
        return ""


def missing(model: nn.Module, name: str) -> CannotGrow:
    """An error for a name that stands for nothing that can grow."""
    known = dict(model.named_modules())
    if name in known and name:
        module = known[name]
        if not any(True for _ in module.parameters()):
            return CannotGrow(f"{name!r} ({type(module).__name__}) has no parameters to grow")
        return CannotGrow(f"{name!r} ({type(module).__name__}) is not a layer that can be grown")
    error = unknown_name("layer", name, [n for n in known if n])
    return CannotGrow(error.message, remedy=error.remedy)


def _tensor(model: nn.Module, name: str) -> torch.Tensor | None:
    owner, _, leaf = name.rpartition(".")
    found = getattr(model.get_submodule(owner), leaf)
    return found if isinstance(found, torch.Tensor) else None


def analyse(model: nn.Module, layers: Sequence[str] | None = None) -> Analysis:
    """Traces a model, or follows `layers`, the names of its layers in order, where torch.fx cannot trace it."""
    if not any(True for _ in model.parameters()):
        raise CannotGrow(f"the model ({type(model).__name__}) has no parameters to grow")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise CannotGrow("the model has lazy layers without weights", remedy="run one batch through it first")
    if layers is not None:
        graph = _chain(model, layers)
    else:
        graph = traced(model)
    result = Analysis(model, graph)
    reader = rules.Reader(dict(model.named_modules()), result.out, result.heads)
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        values[node] = _visit(node, values, reader, model)
    result.spaces = reader.spaces
    return result


def traced(model: nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(model)
    except Exception as error:  # whatever the model's own forward does with a proxy
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CannotGrow(
            f"torch.fx cannot trace {type(model).__name__}: {why}",
            remedy="name its layers in order: layers=[…]",
        ) from None


def _chain(model: nn.Module, layers: Sequence[str]) -> fx.Graph:
    known = dict(model.named_modules())
    graph = fx.Graph()
    node = graph.placeholder("x")
    for name in layers:
        if name not in known:
            raise missing(model, name)
        node = graph.call_module(name, (node,))
    graph.output(node)
    return graph


def _visit(node: fx.Node, values: dict[fx.Node, Any], reader: rules.Reader, model: nn.Module) -> Any:
    def look(arg: Any) -> Any:
        return fx.map_arg(arg, lambda n: values[n])

    args, kwargs = look(node.args), look(node.kwargs)
    if node.op == "placeholder":
        return reader.opaque()
    if node.op == "output":
        reader.fix(args, "it is the model's output")
        return None
    if node.op == "get_attr":
        return Attr(str(node.target), _tensor(model, str(node.target)))
    if node.op == "call_module":
        return reader.module(str(node.target), args, kwargs)
    if node.op == "call_function":
        return reader.function(node.target, node.name, args, kwargs)
    return reader.method(str(node.target), node.name, args, kwargs)


__all__ = ["OPAQUE", "SCALAR", "Analysis", "Opaque", "analyse", "missing"]
