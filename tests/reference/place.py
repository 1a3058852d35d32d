"""The placers, each as its rule reads: a placement, or None if the request does not fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from reference.model import Ask, Node, Placement, View

Chooser = Callable[[View, Ask], list[tuple[int, int]] | None]


def fill(view: View, ask: Ask, nodes: list[int]) -> list[tuple[int, int]] | None:
    """Nodes as they come, as many units of each as fit."""
    chosen, left = [], ask.units
    for n in nodes:
        units = view.room(ask, n, left)
        if units:
            chosen.append((n, units))
            left -= units
        if not left:
            return chosen
    return None


def first_fit(view: View, ask: Ask) -> list[tuple[int, int]] | None:
    """Ascending node numbers."""
    return fill(view, ask, list(ask.nodes))


def from_cursor(view: View, ask: Ask, cursor: int) -> list[tuple[int, int]] | None:
    """Ascending node numbers from the cursor on, and around."""
    return fill(view, ask, [n for n in ask.nodes if n >= cursor] + [n for n in ask.nodes if n < cursor])


def node_by_node(view: View, ask: Ask, emptiest: bool) -> list[tuple[int, int]] | None:
    """A node that holds all that is left, else one that holds most; of these the fullest (or emptiest)."""
    chosen, left, nodes = [], ask.units, list(ask.nodes)
    while left:
        if not nodes:
            return None

        def rank(n: int) -> tuple[int, int, int]:
            free = view.gpus[n] if ask.gpu or ask.share else view.cpu[n]
            return (-view.room(ask, n, left), -free if emptiest else free, n)  # noqa: B023  # used at once

        best = min(nodes, key=rank)
        units = view.room(ask, best, left)
        if not units:
            return None
        nodes.remove(best)
        chosen.append((best, units))
        left -= units
    return chosen


def consecutive(view: View, ask: Ask, weights: Sequence[int] | None = None) -> list[tuple[int, int]] | None:
    """The tightest run of consecutive nodes that suffices, else the largest ones; within a run, the first nodes.

    A run is broken by each node without room for a unit, and where the weight changes; light runs come first. Tight
    means the fewest units that the run could take.
    """
    rooms = {n: view.room(ask, n, ask.units) for n in ask.nodes}
    heavy = weights or [1] * (max(rooms, default=0) + 1)
    runs: list[list[int]] = []
    for n in sorted(n for n, room in rooms.items() if room):
        if runs and runs[-1][-1] == n - 1 and heavy[n - 1] == heavy[n]:
            runs[-1].append(n)
        else:
            runs.append([n])
    left, chosen = ask.units, []
    while left and runs:
        lightest = min(heavy[run[0]] for run in runs)
        light = [run for run in runs if heavy[run[0]] == lightest]
        size = {run[0]: sum(rooms[n] for n in run) for run in light}
        enough = [run for run in light if size[run[0]] >= left]
        run = min(enough, key=lambda r: size[r[0]]) if enough else max(light, key=lambda r: size[r[0]])
        runs.remove(run)
        alone = [n for n in run if rooms[n] >= left]  # a single node that holds the rest: the one with least room
        for n in [min(alone, key=lambda n: (rooms[n], n))] if alone else run:
            units = min(rooms[n], left)
            if units:
                chosen.append((n, units))
                left -= units
    return None if left else sorted(chosen)


def least_loaded(view: View, ask: Ask) -> list[tuple[int, int]] | None:
    """CR_LLN: node by node, the one with most free CPUs."""
    rooms = {n: room for n in ask.nodes if (room := view.room(ask, n, ask.units))}
    left, chosen = ask.units, []
    for n in sorted(rooms, key=lambda n: (-view.cpu[n], n)):
        if left:
            chosen.append((n, min(rooms[n], left)))
            left -= chosen[-1][1]
    return None if left else sorted(chosen)


def tier_family(view: View, ask: Ask) -> Iterator[list[tuple[int, int]]]:
    """Every placement in which all nodes but at most one are filled to the brim."""
    rooms = {n: r for n in ask.nodes if (r := view.room(ask, n, ask.units))}
    for count in range(len(rooms) + 1):
        for full in itertools.combinations(rooms, count):
            left = ask.units - sum(rooms[n] for n in full)
            if left == 0:
                yield [(n, rooms[n]) for n in full]
            for n, room in rooms.items():
                if n not in full and 0 < left < room:
                    yield [*((m, rooms[m]) for m in full), (n, left)]


def tier_cost(nodes: list[Node], view: View, ask: Ask, chosen: list[tuple[int, int]]) -> tuple[int, int, int]:
    """Growth of partly used nodes, of free GPUs on them, and of the sum of squares of free GPUs."""
    partial = waste = squares = 0
    for n, units in chosen:
        before, total = view.gpus[n], nodes[n].gpus
        after = before - units * ask.gpu
        partial += (0 < after < total) - (0 < before < total)
        waste += after * (0 < after < total) - before * (0 < before < total)
        squares += after**2 - before**2
    return partial, waste, squares


def tier_best(nodes: list[Node], view: View, ask: Ask) -> tuple[int, int, int] | None:
    """The least cost within the family: on the fewest nodes, or on one more if partly used nodes do not grow."""
    family = list(tier_family(view, ask))
    if not family:
        return None
    least = min(len(f) for f in family)
    costs = [(len(f), tier_cost(nodes, view, ask, f)) for f in family]
    return min(c for size, c in costs if size == least or (size == least + 1 and c[0] <= 0))


def with_gpus(view: View, ask: Ask, chosen: list[tuple[int, int]] | None) -> Placement | None:
    """The chosen nodes with the GPUs on them."""
    return None if chosen is None else tuple((n, units, view.pick(ask, n, units)) for n, units in chosen)
