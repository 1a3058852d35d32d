"""Widens a layer so that the model computes the same function: units are copied, their readers divided.

Copies of a unit would stay equal for ever if what reads them were divided evenly. Noise that cancels out among the
copies' outgoing weights sets them apart under any optimiser and leaves the function as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from slurm_rl.grow.analysis import Analysis, analyse
from slurm_rl.grow.carry import Carry, carry_over
from slurm_rl.grow.errors import CannotGrow
from slurm_rl.grow.layers import Attention
from slurm_rl.grow.shell import own, put, twin, unwrap
from slurm_rl.grow.spaces import Slot, Space

Model = TypeVar("Model")


def widen(
    model: Model,
    name: str,
    *,
    to: int,
    noise: float = 0.1,
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    layers: Sequence[str] | None = None,
) -> Model:
    """A copy of `model` in which layer `name`, and all that share its width, have `to` units.

    The width of an attention is that of its heads together. `noise` is relative to the weights it is added to; 0 leaves
    copies equal. An `optimizer` is moved to the new model, its state with it. `layers` names the layers in order, for
    a model that torch.fx cannot trace.
    """
    shell = unwrap(model)
    found = analyse(shell.bare, own(layers, model))
    space = found.space_of(name)
    parts = _growing(found, name, space, to)
    grown, params = twin(shell.bare)
    if name in found.heads and isinstance(grown.get_submodule(name), nn.MultiheadAttention):
        attention: Any = grown.get_submodule(name)
        put(grown, name, Attention(attention))
    carry = Carry(params)
    generator = torch.Generator().manual_seed(seed)
    for part, units in parts:
        _widen_space(grown, part, units, noise, generator, carry)
    wrapped = shell.rewrap(grown)
    if optimizer is not None:
        carry_over(optimizer, shell.bare, carry)
    return wrapped  # type: ignore[no-any-return]


def width(found: Analysis, name: str) -> int:
    """The width of a layer as `widen` counts it."""
    space = found.space_of(name)
    return space.size * _unit(found, name)


def wider(found: Analysis, name: str, factor: float) -> int:
    """The nearest width to `factor` times the present one that `widen` takes."""
    space, unit = found.space_of(name), _unit(found, name)
    if space.whole and name not in found.heads:
        return space.size * max(2, round(factor))
    return unit * max(space.size + 1, round(space.size * factor))


def _unit(found: Analysis, name: str) -> int:
    return int(found.model.get_submodule(name).head_dim) if name in found.heads else 1  # type: ignore[arg-type]


def _growing(found: Analysis, name: str, space: Space, to: int) -> list[tuple[Space, int]]:
    """The spaces that change and their new sizes."""
    if space.fixed:
        raise CannotGrow(f"{name!r} cannot be widened: {space.fixed[0]}")
    if why := found.shared(space):
        raise CannotGrow(f"{name!r} cannot be widened: {why}")
    unit = _unit(found, name)
    now = space.size * unit
    if to <= now:
        raise CannotGrow(f"{name!r} is {now} wide and cannot be widened to {to}", remedy="distill takes any width")
    if to % unit:
        raise CannotGrow(f"{name!r} has heads of {unit}: its width must be a multiple of it, got {to}")
    units = to // unit
    if name in found.heads:
        return [(space, units)]
    factor, rest = divmod(units, space.size)
    if space.whole and rest:
        raise CannotGrow(
            f"{name!r} is {now} wide and {space.whole[0]!r} spans it: it must grow by a whole factor, not to {to}",
            remedy=f"{now * (factor or 1)} or {now * (factor + 1)}" if factor > 1 else f"{now * 2}",
        )
    return [(part, part.size * factor if part is not space else units) for part in space.all()]


def _mapping(space: Space, units: int, generator: torch.Generator) -> Tensor:
    """The old unit behind each new one; copies lie next to each other, and no unit has two more than another."""
    rounds, rest = divmod(units, space.size)
    chosen = torch.randperm(space.size, generator=generator)[:rest]
    return torch.cat([torch.arange(space.size).repeat(rounds), chosen]).sort().values


def _widen_space(
    model: nn.Module, space: Space, units: int, noise: float, generator: torch.Generator, carry: Carry
) -> None:
    index = _mapping(space, units, generator)
    share = 1.0 / torch.bincount(index, minlength=space.size)[index].double()
    for slot in sorted(space.slots, key=lambda s: s.role):  # makers first: noise is then drawn for the final shape
        owner = model.get_submodule(slot.tensor.rpartition(".")[0])
        leaf = slot.tensor.rpartition(".")[2]
        old = getattr(owner, leaf)
        with torch.no_grad():
            new = pick(old, slot, index)
            if slot.role == "use":
                new *= along(share, slot, new)
                if noise:
                    new += _cancelling(new, slot, index, space.size, generator) * (noise * old.square().mean().sqrt())
        if isinstance(old, nn.Parameter):
            parameter = nn.Parameter(new, requires_grad=old.requires_grad)
            setattr(owner, leaf, parameter)
            carry.changed(old, parameter, slot, index, share)
        else:
            owner.register_buffer(leaf, new, persistent=leaf not in owner._non_persistent_buffers_set)
    for attribute in space.attributes:
        module = model.get_submodule(attribute.module)
        value = units * attribute.inner
        setattr(module, attribute.name, (value,) if attribute.as_tuple else value)


def pick(tensor: Tensor, slot: Slot, index: Tensor) -> Tensor:
    """A tensor with the units of one axis chosen anew."""
    units = tensor.shape[slot.axis] // (slot.outer * slot.inner)
    full = index
    if slot.inner > 1:
        full = (full[:, None] * slot.inner + torch.arange(slot.inner)).flatten()
    if slot.outer > 1:
        full = (torch.arange(slot.outer)[:, None] * (units * slot.inner) + full).flatten()
    return tensor.index_select(slot.axis, full.to(tensor.device))


def along(values: Tensor, slot: Slot, like: Tensor) -> Tensor:
    """One value a unit, shaped to be multiplied with a tensor along a slot."""
    full = values.repeat_interleave(slot.inner).repeat(slot.outer)
    shape = [1] * like.dim()
    shape[slot.axis] = -1
    return full.reshape(shape).to(like.device, like.dtype)


def _cancelling(like: Tensor, slot: Slot, index: Tensor, units: int, generator: torch.Generator) -> Tensor:
    """Noise that sums to zero over the copies of each unit."""
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    split = [*like.shape[: slot.axis], slot.outer, len(index), slot.inner, *like.shape[slot.axis + 1 :]]
    by_unit = drawn.reshape(split).movedim(slot.axis + 1, 0)
    count = torch.bincount(index, minlength=units).reshape(-1, *[1] * (by_unit.dim() - 1))
    total = torch.zeros(units, *by_unit.shape[1:], dtype=torch.float64).index_add_(0, index, by_unit)
    centred = by_unit - (total / count)[index]
    return centred.movedim(0, slot.axis + 1).reshape(like.shape).to(like.device, like.dtype)
