"""The report's charts as plain numbers, one series per replay."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_rl.kernel.arrays import Array

Series = list[float | None]


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows; `unit` is `s`, `share`, `ratio`, `count` or, for names, `name`."""

    name: str
    unit: str
    log: bool = False
    zero: bool = True  # whether a linear axis begins at 0
    at: tuple[float, ...] = ()  # the only values there are: ticks and marks stand there


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture of a chart: a series for each replay, along the chart's `xs`."""

    name: str
    series: list[Series]


@dataclass(frozen=True, slots=True)
class Chart:
    """Numbers to plot.

    `lines` draws series over numeric xs; `rows` draws one row for each name in xs; `scatter` draws one point for each
    name, against the base replay.
    """

    id: str
    title: str
    caption: str
    kind: str
    x: Axis
    y: Axis
    xs: list[float] | list[str]
    panels: list[Panel]
    facet: str = ""  # what tells the panels apart
    counts: list[int] = field(default_factory=list)  # jobs behind each of xs, for names


@dataclass(frozen=True, slots=True)
class Heat:
    """Occupancy of rows of nodes over time, one picture a replay."""

    id: str
    title: str
    caption: str
    xs: list[float]
    rows: list[str]
    groups: list[tuple[str, int, int]]  # label, first row, end
    cells: list[Array]  # uint8 [rows, slices] percent, one a replay
