"""Decides when a World looks nodes up by runs (runs.py) or by levels (levels.py), and makes and undoes these."""

from __future__ import annotations

import itertools

import numpy as np

from slurm_rl.kernel.arrays import BOTH, CPU, FIRST_ROW, GPU, NOW, Array, make_entries
from slurm_rl.kernel.build import Workload, pack_bits
from slurm_rl.kernel.links import link
from slurm_rl.kernel.tables import World
from slurm_rl.place.catalogue import SLURM

PLACEMENTS = ("first-fit", "best-fit", "spread")
RULES = ("none", "firstfit", "easy")
PAIRS = (*itertools.product(RULES, PLACEMENTS), ("slurm", "slurm"))  # a rule and a placement that runs serve
ONE_BY_ONE, BY_RUNS, BY_LEVELS = "", "runs", "levels"  # how nodes are looked up
LARGE = 1024  # nodes of a pool …
WIDE = 16.0  # … and of a job on average, from which on runs are cheaper than nodes
MANY = 300  # nodes of a pool from which on levels are
_MOST_CPUS = 1024  # of a node: levels are as many …
_FEW_CPUS = 256  # … and otherwise these, for the emptiest nodes


def find_index(workload: Workload, rule: str, placement: str, wanted: str | None = None) -> str:
    """How nodes are looked up: as wanted, or as it pays, where the schedule is the same."""
    index = _what_pays(workload) if wanted is None else wanted
    if index == BY_RUNS and not ((rule, placement) in PAIRS and _simple(workload) and _whole_classes(workload)):
        index = BY_LEVELS if wanted is None else ONE_BY_ONE
    may = rule in RULES and placement in PLACEMENTS
    if index == BY_LEVELS and not (may and _simple(workload) and _has_levels(workload)):
        index = ONE_BY_ONE
    return index


def _simple(workload: Workload) -> bool:
    """Whether nodes are CPUs, MB and GPUs alone, and blocks do not matter."""
    wl = workload
    if len(np.unique(wl.nodes["block"])) > 1 or wl.requests["switches"].any() or wl.requests["segment"].any():
        return False
    plain = wl.slots == 0 and wl.others.shape[1] == 0 and not len(wl.node_sets) and not wl.requests["careful"].any()
    return plain


def _what_pays(workload: Workload) -> str:
    """Runs for a large pool with wide jobs, levels for many nodes."""
    wl = workload
    nodes = int((wl.pools["last_node"] - wl.pools["first_node"]).max(initial=0))
    if nodes >= LARGE and len(wl.jobs):
        request = wl.requests[wl.jobs["request"]]
        width = request["units"] / np.maximum(np.minimum(request["per_node"], request["units"]), 1)
        if width.mean() >= WIDE:
            return BY_RUNS
    return BY_LEVELS if nodes >= MANY else ONE_BY_ONE


def _has_levels(workload: Workload) -> bool:
    """Whether every job takes a GPU or a CPU: a placement goes by these."""
    requests = workload.requests
    return bool(((requests["gpu"] > 0) | (requests["cpu"] > 0)).all())


def _whole_classes(wl: Workload) -> bool:
    """Whether the nodes of every kind of job are all those of some classes."""
    for kind in range(len(wl.kind_ptr) - 1):
        mine = wl.kind_node[wl.kind_ptr[kind] : wl.kind_ptr[kind + 1]]
        classes = wl.class_list[wl.class_ptr[kind] : wl.class_ptr[kind + 1]]
        pools = np.unique(wl.nodes["pool"][mine])
        if len(mine) != int((np.isin(wl.nodes["klass"], classes) & np.isin(wl.nodes["pool"], pools)).sum()):
            return False
    return True


def make_runs(world: World) -> None:
    """Makes the runs of a World from what is free now, and links their kernels."""
    from slurm_rl.place import consecutive_runs, runs

    nodes, pools, free = world["nodes"], world["pools"], world["free"][NOW]
    table = np.zeros((int(FIRST_ROW), len(nodes), 4), dtype=np.int64)
    count = np.zeros((int(FIRST_ROW), len(pools)), dtype=np.int64)
    for pool in range(len(pools)):
        first, last = int(pools["first_node"][pool]), int(pools["last_node"][pool])
        state = np.column_stack([nodes["klass"][first:last], free[first:last, :3]])
        at = first + np.flatnonzero(np.append(True, (state[1:] != state[:-1]).any(axis=1)))
        table[:, first : first + len(at), 0] = at
        table[:, first : first + len(at), 1:] = free[at, :3]
        count[:, pool] = len(at)
    world["runs"], world["run_count"], world["by_runs"], world["indexed"] = table, count, 1, 1
    link(world, "place", consecutive_runs.place_slurm_runs if world["placer"] == SLURM else runs.place_runs)
    for name in ("shift_run", "change_node", "copy_runs", "meet_runs"):
        link(world, name)


def level_bits(free: Array, gpus: int, cpus: int, base: int) -> Array:
    """Sets of nodes with so much free, as rows of bits (levels.py)."""
    bits = np.zeros((gpus + cpus, -(-max(len(free), 1) // 64)), dtype=np.int64)
    node = np.arange(len(free))
    for first, size, amount in ((0, gpus, free[:, GPU]), (gpus, cpus, np.maximum(free[:, CPU] - base, 0))):
        if size:
            np.bitwise_or.at(bits, (first + amount, node >> 6), np.int64(1) << (node & 63))
    return bits


def make_levels(world: World, rule: str) -> None:
    """Makes the levels of a World in which all views are alike, and links their kernels."""
    from slurm_rl.place import levels, levels_ahead

    nodes, requests, free = world["nodes"], world["requests"], world["free"][NOW]
    count = len(nodes)
    gpus = int(nodes["gpu"].max(initial=0)) + 1 if (requests["gpu"] > 0).any() else 0
    most = int(nodes["cpu"].max(initial=0))
    base = most - _FEW_CPUS if most > _MOST_CPUS else 0
    cpus = most - base + 1 if (requests["gpu"] == 0).any() else 0
    bits = level_bits(free, gpus, cpus, base)
    table = np.concatenate([bits, pack_bits(bits != 0)], axis=1)
    kinds = np.zeros((len(world["kind_ptr"]) - 1, count), dtype=bool)
    for kind in range(len(kinds)):
        kinds[kind, world["kind_node"][world["kind_ptr"][kind] : world["kind_ptr"][kind + 1]]] = True
    world["levels"] = np.repeat(table[None], int(BOTH) + 1, axis=0)
    world["kind_bits"] = pack_bits(kinds)
    world["changed"] = np.zeros((2, count, 2), dtype=np.int64)
    world["changed_count"] = np.zeros((2, len(world["pools"])), dtype=np.int64)
    world["gpu_levels"], world["cpu_levels"], world["cpu_base"], world["indexed"] = gpus, cpus, base, 1
    link(world, "place", levels.place_levels)
    link(world, "shift_run", levels.shift_level)
    link(world, "change_node", levels.change_level)
    link(world, "copy_runs", levels.copy_levels)
    link(world, "meet_runs", levels.meet_levels)
    if rule == "easy":
        link(world, "reserve_by_level", levels_ahead.reserve_by_level)


def without_index(world: World) -> None:
    """Makes a World one of single nodes again: entries that hold one node each, and what is free for every view."""
    world["indexed"] = 0
    if not world["by_runs"]:
        return
    live, entries = world["live"], world["entries"]
    rows: list[Array] = [np.zeros(1, dtype=entries.dtype)]
    count = 1
    for j in np.flatnonzero(live["held"]).tolist():
        at, chain = int(live["held"][j]), []
        while at > 0:
            chain.append(at)
            at = int(entries["next"][at])
        part = np.repeat(entries[chain], entries["more"][chain] + 1)
        ends = np.cumsum(entries["more"][chain] + 1)
        part["node"] += np.arange(len(part)) - np.repeat(np.append(0, ends[:-1]), entries["more"][chain] + 1)
        part["more"] = 0
        part["next"] = count + 1 + np.arange(len(part))
        part["next"][-1] = 0
        live["held"][j] = count
        rows.append(part)
        count += len(part)
    arena = make_entries(count - 1 + len(entries))
    arena[:count] = np.concatenate(rows)
    arena["next"][0] = count
    world["entries"] = arena
    world["free"][1:] = world["free"][NOW]
    world["by_runs"] = 0
