"""Puts a new layer behind another so that the model computes the same function, in train and eval mode.

Where a ReLU follows, the new layer is the identity behind a ReLU of its own (Net2Net). Elsewhere it is a residual
branch that starts at zero. A residual block is followed by a copy of itself whose branches start at zero. No batch norm
is put in: in train mode it would normalise by the batch, and nothing of fixed weights undoes that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import fx, nn
from torch.nn import functional as F

from slurm_rl.grow import blocks
from slurm_rl.grow.analysis import Analysis, analyse, missing
from slurm_rl.grow.carry import Carry, carry_over
from slurm_rl.grow.errors import CannotGrow
from slurm_rl.grow.layers import Branch, conv_of
from slurm_rl.grow.shell import own, put, twin, unwrap

Model = TypeVar("Model")

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
_RELUS = (nn.ReLU, F.relu, torch.relu, torch.relu_, "relu", "relu_")
_ACTS: dict[Any, type[nn.Module]] = {
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    F.tanh: nn.Tanh,
    torch.tanh: nn.Tanh,
    "tanh": nn.Tanh,
    F.elu: nn.ELU,
    F.mish: nn.Mish,
    F.leaky_relu: nn.LeakyReLU,
} | {kind: kind for kind in (nn.GELU, nn.SiLU, nn.Tanh, nn.ELU, nn.Mish, nn.LeakyReLU, nn.Hardswish)}


def deepen(
    model: Model,
    *,
    after: str,
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    layers: Sequence[str] | None = None,
) -> Model:
    """A copy of `model` with a new layer behind layer or residual block `after`, and behind its norm if it has one.

    New parameters join the optimiser's group of the layer they follow.
    """
    shell = unwrap(model)
    found = analyse(shell.bare, own(layers, model))
    if why := _refusal(found, after):
        raise CannotGrow(f"nothing can be put behind {after!r}: {why}")
    grown, params = twin(shell.bare)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        old, new = _insert(found, grown, after)
    carry = Carry(params)
    neighbour = next(iter(old.parameters()), None)
    origin = next((p for p in shell.bare.parameters() if neighbour is not None and params[id(p)] is neighbour), None)
    carry.added.extend((parameter, origin) for parameter in new.parameters())
    wrapped = shell.rewrap(grown)
    if optimizer is not None:
        carry_over(optimizer, shell.bare, carry)
    return wrapped  # type: ignore[no-any-return]


def deepenable(found: Analysis) -> list[str]:
    """The names of layers and residual blocks that `deepen` takes, in order."""
    return [name for name, _ in found.model.named_modules() if name and not _refusal(found, name)]


def _refusal(found: Analysis, name: str) -> str:
    """Why nothing can be put behind a layer, or ""; raises CannotGrow for a name that stands for no layer."""
    known = dict(found.model.named_modules())
    module = known.get(name)
    if module is None or not name:
        raise missing(found.model, name)
    if type(module) not in _LAYERS:
        return blocks.refusal(found.model, name)
    if blocks.within_fused(found.model, name):
        return "it is part of a fused transformer layer; name that layer"
    if name not in found.out:
        return "it is not part of the traced graph" if not _calls(found, name) else "it acts across positions"
    if "it is the model's output" in found.out[name].space.root().fixed:
        return "it is the model's output"
    if any(n.op == "get_attr" and str(n.target).startswith(f"{name}.") for n in _nodes(found)):
        return "the model uses its weights directly"
    return ""


def _nodes(found: Analysis) -> list[fx.Node]:
    return list(found.graph.nodes) if found.graph is not None else []


def _calls(found: Analysis, name: str) -> list[fx.Node]:
    return [n for n in _nodes(found) if n.op == "call_module" and n.target == name]


def _insert(found: Analysis, grown: nn.Module, after: str) -> tuple[nn.Module, nn.Module]:
    """Puts the new layer into the copy: (what it follows, itself)."""
    layer = grown.get_submodule(after)
    if type(layer) not in _LAYERS:
        return blocks.insert(grown, after)
    target, following = _behind(found, after)
    last = grown.get_submodule(target)
    new: nn.Module
    if following in _RELUS:
        new = nn.Sequential(nn.ReLU(), _identity(layer, found.out[after].axis))
    else:
        act = _ACTS.get(following, nn.ReLU)()
        new = nn.Sequential(Branch(_alike(layer, found.out[after].axis), act, _alike(layer, found.out[after].axis)))
    weight = next(layer.parameters())
    new.to(weight.device, weight.dtype).train(last.training)
    for parameter in new.parameters():
        parameter.requires_grad_(weight.requires_grad)
    put(grown, target, nn.Sequential(last, *new.children()).train(last.training))
    return layer, new


def _behind(found: Analysis, name: str) -> tuple[str, Any]:
    """The last module of layer and norm, and what is done with its output: a module's type, function or method name."""
    modules = dict(found.model.named_modules())
    target = name
    while True:
        calls = _calls(found, target)
        users = {user for call in calls for user in call.users}
        if len(calls) != 1 or len(users) != 1:
            return target, None
        (user,) = users
        if user.op != "call_module":
            return target, user.target
        kind = type(modules[str(user.target)])
        if kind not in _NORMS or target != name or len(_calls(found, str(user.target))) != 1:
            return target, kind
        target = str(user.target)


def _alike(layer: nn.Module, axis: str) -> nn.Module:
    """A new layer from a layer's output to the same width."""
    if axis != "channel":
        size = layer.embedding_dim if isinstance(layer, nn.Embedding) else layer.out_features
        return nn.Linear(size, size)  # type: ignore[arg-type]
    kernel = tuple(k if k % 2 else k + 1 for k in layer.kernel_size)  # type: ignore[union-attr]
    padding = tuple(k // 2 for k in kernel)
    made: nn.Module = conv_of(len(kernel))(layer.out_channels, layer.out_channels, kernel, padding=padding)
    return made


def _identity(layer: nn.Module, axis: str) -> nn.Module:
    made = _alike(layer, axis)
    with torch.no_grad():
        made.bias.zero_()  # type: ignore[operator]
        if isinstance(made, nn.Linear):
            nn.init.eye_(made.weight)
        else:
            nn.init.dirac_(made.weight)  # type: ignore[arg-type]
    return made
