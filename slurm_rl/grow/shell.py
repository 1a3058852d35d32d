"""Wrappers around a model: torch.compile, DistributedDataParallel, or a plain list of layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_rl.grow.errors import CannotGrow


@dataclass(frozen=True, slots=True)
class Shell:
    """A bare module, and how to put the same wrapping around another."""

    bare: nn.Module
    rewrap: Callable[[nn.Module], Any]


def unwrap(model: Any) -> Shell:
    """Unwraps a model; a list of layers becomes a Sequential and returns as a list."""
    if isinstance(model, list | tuple):
        if not all(isinstance(layer, nn.Module) for layer in model):
            raise CannotGrow("a model given as a list must be a list of modules")
        return Shell(nn.Sequential(*model), lambda grown: list(grown.children()))
    if not isinstance(model, nn.Module):
        raise CannotGrow(f"a model must be a torch module or a list of them, got {type(model).__name__}")
    if hasattr(model, "_orig_mod") and hasattr(model, "dynamo_ctx"):
        inner = unwrap(model._orig_mod)
        return Shell(inner.bare, lambda grown: type(model)(inner.rewrap(grown), model.dynamo_ctx))
    if isinstance(model, DistributedDataParallel):
        inner = unwrap(model.module)
        return Shell(inner.bare, lambda grown: _distributed(inner.rewrap(grown), model))
    return Shell(model, lambda grown: grown)


def _distributed(grown: nn.Module, like: DistributedDataParallel) -> DistributedDataParallel:
    return DistributedDataParallel(
        grown,
        device_ids=like.device_ids or None,
        output_device=like.output_device if like.device_ids else None,
        broadcast_buffers=like.broadcast_buffers,
        process_group=like.process_group,
        find_unused_parameters=like.find_unused_parameters,
        gradient_as_bucket_view=like.gradient_as_bucket_view,
        static_graph=like.static_graph,
    )


def twin(model: nn.Module) -> tuple[nn.Module, dict[int, nn.Parameter]]:
    """A copy of a model, and its parameter for each of the model's own, by their ids."""
    memo: dict[int, Any] = {}
    try:
        made = copy.deepcopy(model, memo)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise CannotGrow(f"{type(model).__name__} cannot be copied: {error}") from None
    for parameter in made.parameters():
        parameter.grad = None
    return made, {id(p): memo[id(p)] for p in model.parameters()}


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replaces a module by its name."""
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, module)


def own(layers: Sequence[str] | None, model: Any) -> Sequence[str] | None:
    """The order of layers, which a list has by itself."""
    return layers if layers is not None or not isinstance(model, list | tuple) else [str(i) for i in range(len(model))]
