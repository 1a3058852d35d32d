"""A catalogue: one row for each policy, placement, backfill rule or algorithm; names, help and kernels come from it.

Rows name kernels as `package.module:function`, so that listing names compiles and imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from slurm_rl.errors import InputError, unknown_name


class Named(Protocol):
    """A row of a catalogue."""

    @property
    def name(self) -> str:
        """How users call it."""

    @property
    def help(self) -> str:
        """One line for users."""


class Row(Named, Protocol):
    """A row with compiled code."""

    @property
    def kernels(self) -> Mapping[str, str]:
        """By slot (kernel/links.py): the kernel to link, as `package.module:function`."""


@runtime_checkable
class Chooser(Protocol):
    """A row whose kernel chooses among other rows' kernels while it runs."""

    @property
    def choices(self) -> tuple[Row, ...]:
        """The rows to choose from, in the order of their numbers."""


R = TypeVar("R", bound=Named)


class Catalogue(Generic[R]):
    """Rows by name; a row's code is its place."""

    def __init__(self, what: str, *rows: R) -> None:
        self.what = what
        self._rows = {row.name: row for row in rows}
        self._own = frozenset(self._rows)
        if len(self._rows) != len(rows):
            raise ValueError(f"{what}: a name stands twice")

    def add(self, row: R) -> None:
        """Adds a row at the end, as an extension does: it can then be asked for by name."""
        if row.name in self._rows:
            raise ValueError(f"{self.what} {row.name}: is there")
        self._rows[row.name] = row

    def put(self, row: R) -> None:
        """Adds a row from outside, or replaces one of that name: a notebook's cell may run twice. Ours stay."""
        if row.name in self._own:
            raise InputError(f"{self.what} {row.name!r} is one of ours", remedy="give it another name")
        self._rows[row.name] = row

    def is_own(self, name: str) -> bool:
        """Whether a row is one of ours, not one that was put in from outside."""
        return name in self._own

    def __getitem__(self, name: str) -> R:
        """The row of that name; an error that lists the names if there is none."""
        row = self._rows.get(name)
        if row is None:
            raise unknown_name(self.what, name, self.names)
        return row

    def __iter__(self) -> Iterator[R]:
        return iter(self._rows.values())

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def code(self, name: str) -> int:
        """The number by which a World knows a row."""
        return self.names.index(self[name].name)

    def of_code(self, code: int) -> R:
        """The row behind a World's number."""
        return self._rows[self.names[code]]

    def listed(self) -> str:
        """The names as prose: `a, b or c`."""
        *most, last = self.names
        return f"{', '.join(most)} or {last}" if most else last


def within(package: str, where: str) -> str:
    """`module:function` of a package in full; what names a package of its own stays as it is."""
    return where if "." in where.partition(":")[0] else f"{package}.{where}"


def find_kernel(where: str) -> Any:
    """The kernel at `package.module:function`."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)
