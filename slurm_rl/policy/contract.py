"""The contract between a model and the code: the features' version, their names, and their values on a fixed snapshot.

Values are compared, not source text. A change that computes the same features keeps every model; a change of anything
that feeds them, the run-time estimator included, shows in the values and refuses the models made before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.arrays import NOW, Array
from slurm_rl.kernel.build import Requests, build
from slurm_rl.kernel.jit import kernel
from slurm_rl.kernel.linking import link_kernels
from slurm_rl.kernel.tables import World
from slurm_rl.kernel.world import new_world
from slurm_rl.policy.catalogue import BY_USER, LEARNED, POLICIES
from slurm_rl.policy.estimate import finish
from slurm_rl.policy.features import JOB_COUNT, JOB_FEATURES, POOL_COUNT, POOL_FEATURES, VERSION
from slurm_rl.policy.network import HIDDEN, LENGTH
from slurm_rl.policy.order import call_order_queue

# Processors and mathematical libraries differ in the last bits of single precision; a change of a formula does not.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4
# The first jobs of the snapshot have ended, several of each kind; the next ones run, the rest waits.
_ENDED, _RUNNING, _JOBS = 60, 63, 84
_TIME = 1_000_000


def contract() -> dict[str, Any]:
    """What is written into the manifest of a model."""
    return {"version": VERSION, "values": dict(values())}


def difference(made_for: Mapping[str, Any]) -> str:
    """In what a model's contract differs from this release's; "" if in nothing."""
    return compare(made_for, VERSION, values())


def compare(made_for: Mapping[str, Any], ours_version: int, ours: Mapping[str, float]) -> str:
    """In what a contract differs from another; "" if in nothing."""
    version, theirs = made_for["version"], made_for["values"]
    if version != ours_version:
        return f"made for features of version {version}, this release has {ours_version}"
    other = sorted(theirs.keys() ^ ours.keys())
    if other:
        return f"made for other features: {other[0]} is known to {'it' if other[0] in theirs else 'this release'} alone"
    for name, value in ours.items():
        if not math.isclose(value, theirs[name], rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
            return f"made for other features: {name} is {value:.6g} here and was {theirs[name]:.6g} when it was made"
    return ""


@cache
def values() -> dict[str, float]:
    """By feature: its weighted mean over the waiting jobs of a fixed snapshot."""
    world, _, queue = fixed_world()
    weight = 1.0 + 0.37 * np.arange(len(queue))  # jobs that change places show, too
    means = weight @ world["features"][: len(queue)].astype(np.float64) / weight.sum()
    found = zip((*JOB_FEATURES, *POOL_FEATURES), (*means, *world["context"]), strict=True)
    return {name: float(f"{value:.7g}") for name, value in found}


def fixed_world() -> tuple[World, float, Array]:
    """A world of its own, in which a network has looked at a queue: the world, the time, and the queue."""
    world = _snapshot()
    queue = np.arange(_RUNNING, _JOBS)
    _look(world.record, float(_TIME), queue, np.arange(_ENDED), _run_times()[:_ENDED])
    return world, float(_TIME), queue


@kernel
def _look(world: Array, now: float, queue: Array, ended: Array, ran: Array) -> None:
    """Learns from jobs that have ended, and orders a queue, which writes its features."""
    w = world[0]
    for i in range(len(ended)):
        finish(w, ended[i], ran[i])
    call_order_queue(w, now, queue, len(queue))


def _run_times() -> Array:
    return 30.0 + (np.arange(_JOBS) * 7919 % 9973).astype(np.float64)


def _snapshot() -> World:
    """Jobs of three users and two accounts on nodes of two GPU types: ended, running, waiting, one preempted."""
    at = np.arange(_JOBS)
    gpus = np.array([1.0, 2.0, 0.5, 4.0, 8.0, 0.0])[at % 6]
    requests = Requests(
        submit=_TIME - 40_000 + 470 * at,
        limit=600 * (1 + at * at % 17),
        gpus=gpus,
        gpu_type=np.array([-1, 0, -1, 1, 2])[at % 5],
        gpu_type_names=("A100", "T4", "A100|T4"),
        nodes=np.zeros(_JOBS, dtype=np.int64),
        cpus=2.0 + 2.0 * np.ceil(gpus),
        mem_gb=8.0 * np.ceil(gpus),
        partition=np.zeros(_JOBS, dtype=np.int64),
        partition_names=("gpu",),
        user=at % 3,
        users=3,
        account=at % 3 // 2,
        accounts=2,
        name=np.where(at % 4 == 3, -1, at % 4),
        qos=np.zeros(_JOBS, dtype=np.int64),
        qos_count=1,
        priority=np.zeros(_JOBS),
        deadline=np.where(at % 7 == 2, _TIME + 5_000, -1),
    )
    nodes = (NodeClass(2, "A100", 8, 64, 512.0, "gpu", 2.0), NodeClass(3, "T4", 4, 32, 128.0, "gpu", 0.45))
    tables = {
        "net": np.zeros(LENGTH, dtype=np.float32),
        "features": np.zeros((_JOBS, JOB_COUNT), dtype=np.float32),
        "context": np.zeros(POOL_COUNT, dtype=np.float32),
        "hidden": np.zeros((_JOBS, HIDDEN), dtype=np.float32),
        "partition_factor": np.full(1, 0.5),
    }
    settings = {"code": LEARNED, "source": BY_USER, "influence": 1.0, "starve_age": np.inf, "starve_drain": np.inf}
    workload = build(requests, Cluster("contract", nodes))
    world = new_world(workload, settings, now=_TIME, bookings=False, **tables)
    live, pools, distinct = world["live"], world["pools"], world["requests"]
    running = np.arange(_ENDED, _RUNNING)
    live["start"][running] = _TIME - 700 * (1 + at[running] % 3)
    live["expected"][running], live["spread"][running] = 1_800.0, 0.5
    live["done"][_JOBS - 1] = 120.0
    pools["running"] = len(running)
    world["running"][: len(running)] = running
    taken = np.array([16, 64 * 1024, 7])  # one GPU of the first node is left
    world["free"][NOW, 0, :] -= taken.astype(np.int32)
    world["total"][NOW, 0, :] -= taken
    world["users"]["fairshare"] = [0.9, 0.5, 0.2]
    np.add.at(world["users"]["rate"], requests.user[running], distinct["volume"][world["jobs"]["request"][running]])
    link_kernels(world, POLICIES["learned"])
    return world
