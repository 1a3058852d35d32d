"""The placers, each as its rule reads: a placement, or None if the request does not fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

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
