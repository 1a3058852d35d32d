"""Moves an optimiser to a grown model: its groups, its hooks and its state.

Gradients of the grown model are those of the old one, copied, and divided for weights into a copied unit. Momentum
follows the same rule, second moments its square.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from slurm_rl.grow.spaces import Slot

# What optimisers call averages of squared gradients: torch's own, and the usual ones beside.
_SQUARED = ("sq", "square", "sum", "acc", "hessian", "prev_sec")


@dataclass
class Carry:
    """Which parameter of the new model stands for which of the old one, and how it came about."""

    new: dict[int, nn.Parameter]  # by the id of the old parameter
    steps: dict[int, list[tuple[Slot, Tensor, Tensor]]] = field(default_factory=dict)  # by the id of the new one
    added: list[tuple[nn.Parameter, nn.Parameter | None]] = field(default_factory=list)  # (new, an old neighbour)

    def changed(self, before: nn.Parameter, after: nn.Parameter, slot: Slot, index: Tensor, share: Tensor) -> None:
        """A parameter of the new model was replaced by a wider one."""
        for key, parameter in self.new.items():
            if parameter is before:
                self.new[key] = after
        self.steps[id(after)] = [*self.steps.pop(id(before), []), (slot, index, share)]

    def transported(self, new: nn.Parameter, tensor: Tensor, squared: bool) -> Tensor:
        """What has the shape of the old parameter, in the shape of the new one."""
        from slurm_rl.grow.widen import along, pick

        for slot, index, share in self.steps.get(id(new), ()):
            tensor = pick(tensor, slot, index)
            if slot.role == "make":
                factor = share.square() if squared else share
                tensor = tensor * along(factor, slot, tensor)
        return tensor


def carry_over(optimizer: torch.optim.Optimizer, old: nn.Module, carry: Carry) -> None:
    """Points an optimiser at the new model's parameters; new ones join the group of their neighbour."""
    mine = {id(p) for p in old.parameters()}
    before: dict[int, nn.Parameter] = {id(p): p for p in old.parameters()}
    groups = optimizer.param_groups
    state: dict[Any, dict[str, Any]] = {}
    home: dict[int, dict[str, Any]] = {}
    for group in groups:
        params: list[Any] = []
        for p in group["params"]:
            new = carry.new[id(p)] if id(p) in mine else p
            params.append(new)
            home[id(p)] = group
            if p in optimizer.state:
                state[new] = _state(optimizer.state[p], before.get(id(p), p), new, carry)
        group["params"] = params
    for new, neighbour in carry.added:
        group = home.get(id(neighbour), groups[0]) if neighbour is not None else groups[0]
        group["params"].append(new)
    optimizer.state.clear()
    optimizer.state.update({p: s for p, s in state.items() if s})


def _state(state: dict[str, Any], old: Any, new: Any, carry: Carry) -> dict[str, Any]:
    """An optimiser's state for one parameter; {} if its shape cannot be carried over."""
    made: dict[str, Any] = {}
    for key, value in state.items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            made[key] = value
        elif value.shape == old.shape:
            made[key] = carry.transported(new, value, _is_squared(key, _SQUARED))
        elif id(new) in carry.steps:
            return {}  # factored or flattened state: begin anew
        else:
            made[key] = value
    return made


def _is_squared(key: str, names: Iterable[str]) -> bool:
    return any(name in key for name in names)
