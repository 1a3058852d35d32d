"""Residual blocks: which ones become the identity when the ends of their branches are zero, and how to add one."""

from __future__ import annotations

import copy
import inspect
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from slurm_rl.grow.analysis import traced
from slurm_rl.grow.errors import CannotGrow
from slurm_rl.grow.layers import Attention, Branch

_ADDING = (operator.add, operator.iadd, torch.add)
_ZEROED = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm,
    nn.RMSNorm, nn.GroupNorm,
)  # fmt: skip
_KEEPS_ZERO = (nn.Dropout, nn.Identity, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh)
_KEEPS_ZERO_CALLS = (F.relu, F.gelu, F.silu, F.dropout, torch.relu, torch.tanh, operator.mul, torch.mul)
_RELUS = (F.relu, torch.relu, "relu", "relu_")


def within_fused(model: nn.Module, name: str) -> bool:
    """Whether a layer lies in one of PyTorch's transformer layers, which use its weights directly."""
    parts = name.split(".")
    owners = (model.get_submodule(".".join(parts[:i])) for i in range(1, len(parts)))
    return any(isinstance(owner, nn.TransformerEncoderLayer | nn.MultiheadAttention | Attention) for owner in owners)


def refusal(model: nn.Module, name: str) -> str:
    """Why a module is not a residual block that can be added once more, or ""."""
    module = model.get_submodule(name)
    if isinstance(module, Branch):
        return ""
    if isinstance(module, nn.TransformerEncoderLayer):
        if not module.norm_first:
            return "it normalises behind its residual connections (norm_first=False), so no layer is the identity"
        return "" if _in_encoder(model, name) else "it is called with more than its input"
    if type(module).__module__.startswith("torch.nn") or within_fused(model, name):
        return f"{type(module).__name__} is not a layer or residual block that can be followed by another"
    if not any(True for _ in module.parameters()):
        return "it has no parameters"
    if len(inspect.signature(module.forward).parameters) != 1:
        return "it takes more than one argument"
    try:
        ends = _ends(module)
    except CannotGrow as error:
        return error.message
    return "" if ends else "it is not the identity when its branches are zero"


def insert(model: nn.Module, name: str) -> tuple[nn.Module, nn.Module]:
    """Puts a copy of a block, with branches that start at zero, behind it: (block, copy)."""
    block = model.get_submodule(name)
    made = copy.deepcopy(block)
    for parameter in made.parameters():
        parameter.grad = None
    ends = _encoder_ends(made) if isinstance(made, nn.TransformerEncoderLayer) else _ends(made)
    with torch.no_grad():
        for end in ends or ():
            for parameter in end.parameters(recurse=False):
                parameter.zero_()
    owner, _, leaf = name.rpartition(".")
    parent = model.get_submodule(owner)
    if isinstance(block, nn.TransformerEncoderLayer):
        layers: Any = parent
        layers.insert(int(leaf) + 1, made)
        model.get_submodule(owner.rpartition(".")[0]).num_layers = len(layers)  # type: ignore[assignment]
    else:
        setattr(parent, leaf, nn.Sequential(block, made).train(block.training))
    return block, made


def _in_encoder(model: nn.Module, name: str) -> bool:
    owner = name.rpartition(".")[0]
    encoder = model.get_submodule(owner.rpartition(".")[0]) if owner else model
    return isinstance(encoder, nn.TransformerEncoder)


def _encoder_ends(layer: nn.TransformerEncoderLayer) -> list[nn.Module]:
    return [layer.self_attn.out_proj, layer.linear2]


def _ends(block: nn.Module) -> list[nn.Module] | None:
    """The modules whose weights must be zero for the block to be the identity; None if there are none such."""
    graph = traced(block)
    modules = dict(block.named_modules())
    result = next(n for n in graph.nodes if n.op == "output").args[0]
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    if len(inputs) != 1 or not isinstance(result, fx.Node):
        return None
    # What comes out of a block that ends in a ReLU is not negative, and a ReLU leaves it as it is.
    ends = _identity(result, modules, relu=_is_relu(result, modules))
    if ends is None:
        return None
    direct = [str(n.target) for n in graph.nodes if n.op == "get_attr"]
    names = [name for name, module in modules.items() if any(module is end for end in ends)]
    return None if any(d.startswith(f"{n}.") for d in direct for n in names) else ends


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    return isinstance(modules.get(str(node.target)), nn.ReLU) if node.op == "call_module" else node.target in _RELUS


def _identity(node: Any, modules: dict[str, nn.Module], relu: bool) -> list[nn.Module] | None:
    """What must be zero for a node to equal the block's input."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "placeholder":
        return []
    if node.op == "call_module" and isinstance(modules[str(node.target)], nn.Identity):
        return _identity(node.args[0], modules, relu)
    if relu and _is_relu(node, modules):
        return _identity(node.args[0], modules, relu)
    if node.op == "call_function" and node.target in _ADDING and len(node.args) == 2 and not node.kwargs:
        for kept, gone in (node.args, node.args[::-1]):
            same, zero = _identity(kept, modules, relu), _zero(gone, modules)
            if same is not None and zero is not None:
                return same + zero
    return None


def _zero(node: Any, modules: dict[str, nn.Module]) -> list[nn.Module] | None:
    """What must be zero for a node to be zero."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_module":
        module = modules[str(node.target)]
        if type(module) in _ZEROED and "weight" in module._parameters and module.weight is not None:
            return [module]
        return _zero(node.args[0], modules) if isinstance(module, _KEEPS_ZERO) else None
    if node.target is operator.getitem and node.args[1] == 0 and isinstance(node.args[0], fx.Node):
        source = modules.get(str(node.args[0].target)) if node.args[0].op == "call_module" else None
        if isinstance(source, nn.MultiheadAttention | Attention):
            return [source.out_proj]
    if node.op == "call_function" and node.target in _KEEPS_ZERO_CALLS:
        for arg in node.args[:2] if node.target in (operator.mul, torch.mul) else node.args[:1]:
            if (found := _zero(arg, modules)) is not None:
                return found
    return None
