"""A policy's view of a training, and its choices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from slurm_rl.grow.analysis import Analysis, analyse
from slurm_rl.grow.deepen import deepenable
from slurm_rl.grow.places import Action
from slurm_rl.grow.vocabulary import encode
from slurm_rl.grow.widen import wider

OVERHEAD = 0.2  # the share of a step's time that does not grow with the network


@dataclass(frozen=True, slots=True)
class GrowthStep:
    """A step of growth: where, how far, and what it costs."""

    action: Action
    name: str
    to: int  # the new width; 0 for a new layer
    cost: float  # time of an epoch after it over that before
    layer: int  # its place among the layers, -1 if it is none of them

    @property
    def growth(self) -> float:
        """Parameters after it over those before."""
        return (self.cost - OVERHEAD) / (1 - OVERHEAD)


@dataclass(frozen=True, slots=True)
class State:
    """A training at an epoch's end; times are in seconds."""

    layers: tuple[int, ...]  # ids of the vocabulary
    choices: tuple[GrowthStep, ...]
    elapsed: float
    left: float
    epoch_seconds: float  # what the next epoch takes as the network is
    losses: tuple[float, ...] = ()
    metrics: tuple[float, ...] = ()  # higher is better, one an epoch
    grown: tuple[int, ...] = field(default=())  # epochs at which the network grew

    @property
    def epochs_left(self) -> float:
        return self.left / self.epoch_seconds if self.epoch_seconds > 0 else math.inf


def survey(model: nn.Module, factor: float = 2.0, layers: Any = None) -> tuple[tuple[int, ...], tuple[GrowthStep, ...]]:
    """A model's layers and a short menu: the first and the last width, the first and the last place for a layer."""
    found = analyse(model, layers)
    ids, names = encode(model)
    size = sum(p.numel() for p in model.parameters())
    menu: list[GrowthStep] = []
    widths, depths = found.widenable(), deepenable(found)
    for name in dict.fromkeys((*widths[:1], *widths[-1:])):
        to = wider(found, name, factor)
        menu.append(GrowthStep("widen", name, to, _cost(size, _added_by_width(found, name, to)), _place(names, name)))
    for name in dict.fromkeys((*depths[:1], *depths[-1:])):
        module = model.get_submodule(name)
        added = _added_by_depth(module)
        menu.append(GrowthStep("deepen", name, 0, _cost(size, added), _place(names, name)))
    return tuple(ids), tuple(menu)


def _place(names: list[str], name: str) -> int:
    return next((i for i, n in enumerate(names) if n == name or n.startswith(f"{name}.")), -1)


def _cost(size: int, added: int) -> float:
    return OVERHEAD + (1 - OVERHEAD) * (size + added) / size


def _added_by_width(found: Analysis, name: str, to: int) -> int:
    """Parameters that come in by widening."""
    from slurm_rl.grow.widen import width

    factor = to / width(found, name)
    before: dict[str, int] = {}
    axes: dict[str, int] = {}
    for part in found.space_of(name).all() if name not in found.heads else [found.space_of(name)]:
        for slot in part.slots:
            tensor = dict(found.model.named_parameters()).get(slot.tensor)
            if tensor is not None:
                before[slot.tensor] = tensor.numel()
                axes[slot.tensor] = axes.get(slot.tensor, 0) + 1
    return round(sum(count * (float(factor) ** axes[tensor] - 1) for tensor, count in before.items()))


def _added_by_depth(module: nn.Module) -> int:
    """Parameters that come in by a new layer behind a module."""
    if isinstance(module, nn.Embedding):
        return 2 * module.embedding_dim**2
    if isinstance(module, nn.Linear):
        return module.out_features * (module.out_features + 1)
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return module.out_channels * (module.out_channels * math.prod(module.kernel_size) + 1)
    return sum(p.numel() for p in module.parameters())
