"""Widths that must change together: a space is one feature axis, with every tensor axis that runs along it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["make", "use"]  # make: copied with the unit (weights into it, norms); use: divided among its copies


@dataclass(frozen=True, slots=True)
class Slot:
    """An axis of a tensor, of length outer * units * inner."""

    tensor: str  # a parameter or buffer by its name in the model
    axis: int
    role: Role
    outer: int = 1
    inner: int = 1


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a module that says the width, in units * inner."""

    module: str
    name: str
    inner: int = 1
    as_tuple: bool = False


@dataclass(eq=False)
class Space:
    """A feature axis; `whole` widths must be multiples of the old one, so that every unit gets equally many copies."""

    size: int
    makers: list[str] = field(default_factory=list)  # layers whose output it is
    slots: list[Slot] = field(default_factory=list)
    attributes: list[Attribute] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)  # why it cannot be widened
    whole: list[str] = field(default_factory=list)  # layers that ask for multiples
    coupled: list[Space] = field(default_factory=list)  # spaces that grow by the same factor
    _parent: Space | None = None

    def root(self) -> Space:
        """The space that this one was merged into."""
        space = self
        while space._parent is not None:
            space = space._parent
        return space

    def merge(self, other: Space, where: str) -> Space:
        """Makes two spaces one; if their sizes differ, neither can be widened."""
        a, b = self.root(), other.root()
        if a is b:
            return a
        if a.size != b.size:
            a.fixed.append(f"{where} combines widths {a.size} and {b.size}")
            b.fixed.append(a.fixed[-1])
            return a
        for name in ("makers", "slots", "attributes", "fixed", "whole", "coupled"):
            own = getattr(a, name)
            own.extend(item for item in getattr(b, name) if item not in own)
        b._parent = a
        return a

    def all(self) -> Iterator[Space]:
        """This space and those that grow with it."""
        yield self.root()
        for other in self.root().coupled:
            yield other.root()


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in the traced graph: which of its axes is a space.

    `axis` is "last", "channel" (axis 1 of three or more) or "both" (axis 1 of two). `flat` says that other axes were
    folded in, after ("inner") or before ("outer") the units; how many, the layer that takes it tells.
    """

    space: Space
    axis: Literal["last", "channel", "both"]
    flat: Literal["", "inner", "outer"] = ""
    dims: int = 0  # number of axes; 0: unknown
