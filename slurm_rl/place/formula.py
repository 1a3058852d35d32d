"""Placements from outside: a formula says how good a node is for a job, compiled into the engine as ours are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import overload

import numpy as np

from slurm_rl.errors import InputError
from slurm_rl.kernel import formula as made
from slurm_rl.kernel import tables
from slurm_rl.kernel.imports import MARK
from slurm_rl.kernel.jit import inlined
from slurm_rl.place.capacity import capacity
from slurm_rl.place.catalogue import PLACEMENTS, Placement

Formula = Callable[..., float]
_RAW = ("w", "request", "view", "first", "last")  # the parameters of a kernel of ours
NODE_FIGURES = {
    "free_gpus": ("GPUs free on the node", "float(t.free(w)[view, n, 2])"),
    "free_cpus": ("CPUs free on it", "float(t.free(w)[view, n, 0])"),
    "free_mem_gb": ("GB free on it", "t.free(w)[view, n, 1] / 1024.0"),
    "gpus": ("GPUs of the node", "float(t.nodes(w).gpu[n])"),
    "cpus": ("CPUs of the node", "float(t.nodes(w).cpu[n])"),
    "mem_gb": ("GB of the node", "t.nodes(w).mem[n] / 1024.0"),
    "speed": ("speed of its GPU type for the job", "float(t.speed(w)[t.requests(w).row[s], t.nodes(w).type[n]])"),
    "watts": ("what a busy GPU of it draws above idle", "t.nodes(w).watts[n]"),
    "room": ("units of the job that fit on it now", "float(room)"),
    "units": ("units that the job consists of", "float(t.requests(w).units[s])"),
    "node": ("its number", "float(n)"),
}
# Nodes one after the other, the best first; ties go to the lower number, and what is no number comes last.
_KERNEL = """
def kernel(w, s, view, first, last):
    left, count = t.requests(w).units[s], 0
    worth = np.full(last - first, -np.inf)
    for at in range(first, last):
        n = np.int64(t.kind_node(w)[at])
        room = capacity(w, s, view, n, left)
        if room > 0:
            value = float(formula({figures}))
            worth[at - first] = -1e300 if np.isnan(value) else max(value, -1e300)
    while left > 0:
        best = np.argmax(worth)
        if worth[best] == -np.inf:
            return 0
        worth[best] = -np.inf
        n = np.int64(t.kind_node(w)[first + best])
        room = capacity(w, s, view, n, left)
        if room > 0:
            t.spot(w).node[count], t.spot(w).units[count], t.spot(w).gpus[count] = n, room, 0
            count += 1
            left -= room
    return count
"""


@overload
def placement(given: Formula) -> Formula: ...
@overload
def placement(given: str | None = None, *, help: str = "") -> Callable[[Formula], Formula]: ...


def placement(given: Formula | str | None = None, *, help: str = "") -> Formula | Callable[[Formula], Formula]:
    """Makes a formula a placement by its name: of the nodes with room, those with the highest values are taken.

    Its parameters say what it looks at (`slurm_rl.NODE_FIGURES`): `def mine(free_gpus, speed): …`. A function of
    `(w, request, view, first, last)` is taken as a kernel (CONTRIBUTING.md, "Add a placement").
    """

    def register(function: Formula) -> Formula:
        name = given if isinstance(given, str) else function.__name__.replace("_", "-")
        PLACEMENTS.put(row_of(function, name, help or (inspect.getdoc(function) or "A formula.").splitlines()[0]))
        setattr(function, MARK, name)
        return function

    return register(given) if callable(given) else register


def row_of(function: Formula, name: str, help: str) -> Placement:
    """The row of a formula, its kernel compiled."""
    if not name or set(name) & set("+,: \t\n"):
        raise InputError(f"a placement cannot be called {name!r}", remedy="use letters, digits, - and _")
    if tuple(inspect.signature(function).parameters) == _RAW:
        source = "def kernel(w, s, view, first, last):\n    return given(w, s, view, first, last)\n"
        kernel = made.written(source, name, given=inlined(function))
    else:
        figures = made.figures_of(function, NODE_FIGURES, f"placement {name}")
        codes = ", ".join(NODE_FIGURES[f][1] for f in figures)
        formula = made.compiled(function, len(figures), f"placement {name}")
        known = {"t": tables, "np": np, "capacity": capacity, "formula": formula}
        kernel = made.written(_KERNEL.format(figures=codes), name, **known)
    return Placement(name, help, made.keep(f"placement:{name}", kernel))
