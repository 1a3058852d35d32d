"""The one place where a World is made: for replay, for live scheduling, and for kernels that look at jobs alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.arrays import (
    ACCOUNT,
    ENTRY,
    FIRST_ROW,
    GPU_MILLI,
    GROUP,
    LATENCY_BUCKETS,
    LIVE,
    LOG,
    MIX,
    NEVER,
    PARTS,
    RECENT,
    USER,
    Array,
    make_entries,
)
from slurm_rl.kernel.build import Requests, Workload, build
from slurm_rl.kernel.tables import World, fill_views


def new_world(
    workload: Workload, settings: Mapping[str, float], *, now: int, bookings: bool = True, **tables: Array
) -> World:
    """A World in which nothing runs and nobody waits yet; `tables` go beside, or in place of, those made here.

    The workload is not changed. `bookings`: each job may hold a booking beside its nodes. Kernels are linked later
    (linking.py), when the caller has set all tables.
    """
    wl = workload
    jobs, nodes, pools = len(wl.jobs), len(wl.nodes), len(wl.pools)
    width = _width(wl)
    asked, widest = int(width[wl.jobs["request"]].sum()), int(width.max(initial=1))
    live = np.zeros(jobs, dtype=LIVE)
    live["start"] = live["end"] = live["booked_start"] = live["version"] = -1
    users = np.zeros(len(wl.user_account), dtype=USER)
    users["account"], users["fairshare"], users["time"] = wl.user_account, 1.0, now
    accounts = np.zeros(wl.accounts, dtype=ACCOUNT)
    accounts["time"] = now
    planned = bool(settings.get("planned"))
    by_runs = bool(settings.get("by_runs"))  # entries name many nodes each, and the log grows as it fills
    held = _most_entries(wl, asked)
    logged = min(asked, 4 * jobs) + held if by_runs else asked
    scratch = 0 if settings.get("fixed_order") and not planned else jobs  # a fixed order is never sorted
    made = {
        "jobs": wl.jobs,
        "live": live,
        "requests": wl.requests.copy(),  # passes note misfits in them
        "nodes": wl.nodes.copy(),  # which are down
        "kind_ptr": wl.kind_ptr,
        "kind_node": wl.kind_node,
        "class_ptr": wl.class_ptr,
        "class_list": wl.class_list,
        "speed": wl.speed,
        "pools": wl.pools.copy(),
        "free": np.zeros((FIRST_ROW, nodes, 3 + wl.others.shape[1]), dtype=np.int32),
        "used": np.zeros((FIRST_ROW, nodes, wl.slots), dtype=np.int16),
        "devices": wl.devices,
        "others": wl.others,
        "demand": wl.demand,
        "node_sets": wl.node_sets,
        "total": np.zeros((FIRST_ROW, pools, 3), dtype=np.int64),
        "entries": make_entries(held + (asked if bookings else widest)),
        "spot": np.zeros(widest, dtype=ENTRY),
        "running": np.empty(jobs, dtype=np.int64),
        "part_bits": wl.part_bits,
        "fitting": np.zeros(nodes, dtype=np.int64),
        "room": np.zeros(nodes, dtype=np.int64),
        "users": users,
        "accounts": accounts,
        "partition_factor": np.zeros(max(len(wl.partition_names), 1)),
        "qos_factor": np.zeros(int(wl.jobs["qos"].max(initial=0)) + 1),
        "heap": np.empty(jobs, dtype=np.int64),
        "queue": np.empty(jobs, dtype=np.int64),
        "scores": np.empty(scratch),
        "order": np.empty(scratch, dtype=np.int64),
        "scratch": np.empty(scratch, dtype=np.int64),
        "started": np.empty(jobs, dtype=np.int64),
        "log": np.empty(logged + 1, dtype=LOG),
        "log_gpus": np.empty(logged + 1 if wl.mixed else 0, dtype=np.int64),
        "log_more": np.zeros(logged + 1 if by_runs else 0, dtype=np.int64),
        "prefer": wl.speed[wl.requests["row"]],
        "hint_of": np.zeros(jobs if planned else 0, dtype=np.int64),
        "mix": np.zeros(RECENT if settings.get("weighs") else 0, dtype=MIX),
        "latency": np.zeros(LATENCY_BUCKETS, dtype=np.int64),
    }
    if "groups" not in tables:
        made["groups"] = np.zeros(wl.groups + 1, dtype=GROUP)
    made |= {name: table.copy() for name, table in wl.site.items()}
    world = World(**(made | tables))
    for name, value in settings.items():
        world[name] = value
    world["clock"], world["tick"], world["wake"], world["last_cycle"] = now, NEVER, NEVER, -NEVER
    world["long_queue"] = NEVER
    world["mixed"] = wl.mixed
    world["blocks"] = int(wl.nodes["block"].max(initial=0)) + 1
    fill_views(world)
    return world


def bare_world(jobs: int, settings: Mapping[str, float], *, groups: Array) -> World:
    """A World for kernels that look at jobs alone: `jobs` jobs of one CPU and one user, on one node."""
    nothing, zero = np.full(jobs, -1, dtype=np.int64), np.zeros(jobs, dtype=np.int64)
    requests = Requests(
        submit=zero,
        limit=zero + 1,
        gpus=np.zeros(jobs),
        gpu_type=nothing,
        gpu_type_names=(),
        nodes=zero,
        cpus=np.ones(jobs),
        mem_gb=np.zeros(jobs),
        partition=nothing,
        partition_names=(),
        user=zero,
        users=1,
        account=zero,
        accounts=1,
        name=nothing,
        qos=nothing,
        qos_count=0,
        priority=np.zeros(jobs),
        deadline=nothing,
    )
    workload = build(requests, Cluster("one node", (NodeClass(1, cpus=1),)), learn=False)
    return new_world(workload, settings, now=0, bookings=False, groups=groups)


def _width(wl: Workload) -> Array:
    """Entries that a placement of each request can have at most: one a node, one a unit where GPUs are shared."""
    nodes = np.diff(wl.kind_ptr)[wl.requests["kind"]]
    width = np.where(wl.requests["share"] > 0, wl.requests["units"], np.minimum(wl.requests["units"], nodes))
    return np.maximum(width, 1).astype(np.int64)


def _most_entries(wl: Workload, asked: int) -> int:
    """Bound on entries held at a time: the units that the nodes can hold, or all that the jobs ask for."""
    least = int(wl.requests["share"][wl.requests["share"] > 0].min(initial=GPU_MILLI))
    each = max(GPU_MILLI // least, int(wl.devices[:, :, PARTS].max(initial=0)) if wl.requests["shards"].any() else 1)
    thinnest = int(wl.requests["cpu"][wl.requests["cpu"] > 0].min(initial=1 << 20))
    room = np.minimum(wl.nodes["cpu"].astype(np.int64), 1 << 20) // thinnest + wl.nodes["gpu"] * np.int64(each)
    return min(asked, int(room.sum()))
