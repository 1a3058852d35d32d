"""Decides when a World counts runs of equal nodes (runs.py), and makes and undoes the runs."""

from __future__ import annotations

import itertools

import numpy as np

from slurm_rl.kernel.arrays import FIRST_ROW, NOW, Array, make_entries
from slurm_rl.kernel.build import Workload
from slurm_rl.kernel.links import link
from slurm_rl.kernel.tables import World
from slurm_rl.place.catalogue import SLURM

PLACEMENTS = ("first-fit", "best-fit", "spread")
RULES = ("none", "firstfit", "easy")
PAIRS = (*itertools.product(RULES, PLACEMENTS), ("slurm", "slurm"))  # a rule and a placement
LARGE = 1024  # nodes of a pool …
WIDE = 16.0  # … and of a job on average, from which on runs are cheaper than nodes


def may_count(workload: Workload, rule: str, placement: str) -> bool:
    """Whether runs give the same schedule: simple rules, nodes of CPUs, MB and GPUs, sets of whole classes."""
    wl = workload
    if len(np.unique(wl.nodes["block"])) > 1 or wl.requests["switches"].any() or wl.requests["segment"].any():
        return False
    plain = wl.slots == 0 and wl.others.shape[1] == 0 and not len(wl.node_sets) and not wl.requests["careful"].any()
    return plain and (rule, placement) in PAIRS and _whole_classes(wl)


def pays(workload: Workload) -> bool:
    """Whether runs are worth it: a large pool with wide jobs."""
    wl = workload
    nodes = int((wl.pools["last_node"] - wl.pools["first_node"]).max(initial=0))
    if nodes < LARGE or not len(wl.jobs):
        return False
    request = wl.requests[wl.jobs["request"]]
    width = request["units"] / np.maximum(np.minimum(request["per_node"], request["units"]), 1)
    return bool(width.mean() >= WIDE)


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
    world["runs"], world["run_count"], world["by_runs"] = table, count, 1
    link(world, "place", consecutive_runs.place_slurm_runs if world["placer"] == SLURM else runs.place_runs)
    for name in ("shift_run", "change_node", "copy_runs", "meet_runs"):
        link(world, name)


def without_runs(world: World) -> None:
    """Turns runs into nodes again: entries that hold one node each, and what is free for every view."""
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
