"""A suite: independent units of work, tables made of their rows, and a text for the reader."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

Row = dict[str, Any]  # of a table; a name that begins with _ is for figures alone and in no CSV file
Settings = dict[str, Any]  # plain JSON: what a suite was asked to do


@dataclass(frozen=True, slots=True)
class Unit:
    """The least that is run, kept and skipped: its name is unique in a plan, and its rows depend on nothing else."""

    name: str
    what: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of the page."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure: a file name, a caption, and the SVG with its size."""

    name: str
    caption: str
    svg: str
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Findings:
    """What a suite found: sentences for people, figures for programs, tables and drawings."""

    title: str
    summary: Sequence[str]
    figures: Mapping[str, Any]
    tables: Sequence[PageTable] = ()
    drawings: Sequence[Drawing] = ()
    files: Mapping[str, Sequence[Row]] = field(default_factory=dict)  # CSV files by name


class Module(Protocol):
    """What a suite's module offers."""

    def plan(self, settings: Settings) -> list[Unit]:
        """All units, in the order of the tables."""

    def run(self, unit: Unit, settings: Settings) -> list[Row]:
        """The rows of one unit: the same wherever and whenever it runs, so no clock may show in them."""

    def find(self, rows: Sequence[Row], settings: Settings) -> Findings:
        """Tables, figures and words of all rows."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A row of the catalogue (suites.py)."""

    name: str
    help: str
    defaults: Mapping[str, Any]  # options that it takes, and their values where nobody gives any
    csv: str  # its main table
    needs: tuple[str, ...] = ()  # packages beyond the core

    @property
    def module(self) -> Module:
        """Imported when it is used."""
        return cast(Module, importlib.import_module(f"slurm_rl.bench.{self.name}"))
