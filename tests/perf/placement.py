"""Inputs for measuring placement: large batches, and openb's pods that fill openb's cluster."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np

from slurm_rl.domain.cluster import Cluster, read_cluster
from slurm_rl.place.plan import Planner, PlannerSettings
from slurm_rl.place.problem import Job, NodeKind, NodeState, PlacementProblem, Request, Weights
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import prepare
from slurm_rl_sim.simulation import ReplayState

_GPUS = (8, 8, 8, 4, 4, 2, 2)
_SPEED = (2.0, 1.0, 0.9, 1.0, 0.55, 0.45, 0.45)


def a_batch(nodes: int, jobs: int, seed: int, full: float, weights: Weights | None = None) -> PlacementProblem:
    """Jobs of 1 to 16 GPUs, two of five bound to one of seven types, on nodes each filled at random up to `full`."""
    rng = random.Random(seed)
    kinds = [NodeKind(t, gpus) for t, gpus in enumerate(_GPUS)]
    states: dict[NodeState, int] = {}
    for _ in range(nodes):
        kind = rng.randrange(7)
        free = _GPUS[kind]
        cpus = 12 * free
        while free and rng.random() < full:
            gpus = rng.choice([g for g in (1, 1, 2, 4, 8) if g <= free])
            free, cpus = free - gpus, cpus - gpus * rng.choice([4, 8, 8, 12])
        state = NodeState(kind, free, cpus, 64_000 * free)
        states[state] = states.get(state, 0) + 1
    batch = []
    for _ in range(jobs):
        gpus, run = rng.choice([1, 1, 1, 1, 2, 2, 4, 8, 16]), 2.0 ** rng.randrange(8, 17)
        wanted = frozenset(range(7)) if rng.random() < 0.6 else frozenset([rng.randrange(7)])
        ask = Request(gpus, gpus, rng.choice([4, 8, 8, 12]), 16_000, 1, 0, wanted)
        batch.append(Job(ask, tuple(run / speed for speed in _SPEED)))
    return PlacementProblem(batch, kinds, states, weights=weights, mix=[(1 / jobs, j.request) for j in batch])


def shuffled_pods(traces: Path, seed: int) -> tuple[Trace, Cluster]:
    """openb's pods with GPU types (gpuspec33), drawn at random until they ask for all GPUs, one a second, for ever."""
    pods = read_trace(traces / "alibaba_openb_v2023_gpuspec33.csv.gz")
    cluster = read_cluster(traces / "alibaba_openb_v2023_gpuspec33.cluster.json")
    pods = pods.take(np.flatnonzero(pods.num_gpus > 0))
    rng = np.random.default_rng(seed)
    order = rng.integers(0, len(pods), 4 * len(pods))
    asked = np.cumsum(pods.num_gpus[order])
    order = order[: int(np.searchsorted(asked, cluster.gpus)) + 1]
    trace = pods.take(order)
    count = len(trace)
    return (
        replace(
            trace,
            job_id=np.arange(count, dtype=np.int64),
            submit_time=np.arange(count, dtype=np.int64),
            run_time=np.full(count, 10**8, dtype=np.int64),
            time_limit=np.full(count, 10**8, dtype=np.int64),
        ),
        cluster,
    )


def packed(trace: Trace, cluster: Cluster, placement: str, weights: Weights | None = None) -> dict[str, float]:
    """Shares of all GPUs: given out at the first pod that finds no room, and when pods have asked for all of them."""
    prepared = prepare(trace, cluster)
    planner = Planner(PlannerSettings(weights=weights or Weights()))
    run = ReplayState(
        prepared.workload,
        prepared.trace.run_time,
        parse_policy("fcfs"),
        backfill="firstfit",
        placement=placement,
        planner=planner,
    )
    run.run(len(trace))
    started = run.world["live"]["start"] >= 0
    return _shares(trace, cluster, started)


def _shares(trace: Trace, cluster: Cluster, started: np.ndarray) -> dict[str, float]:
    refused = np.flatnonzero(~started)
    first = int(refused[0]) if len(refused) else len(started)
    return {
        "at first refusal": float(trace.num_gpus[:first].sum()) / cluster.gpus,
        "in the end": float(trace.num_gpus[started].sum()) / cluster.gpus,
        "pods refused": float(len(refused)),
    }


def packed_by_dot_product(trace: Trace, cluster: Cluster) -> dict[str, float]:
    """Tetris' alignment: the node with the largest product of what is asked and what is free, as shares of a node."""
    wl = prepare(trace, cluster).workload
    nodes, requests, rows = wl.nodes, wl.requests, wl.jobs["request"]
    scale = np.maximum(np.stack([nodes["cpu"], nodes["mem"], nodes["gpu"] * 1000], axis=1).max(axis=0), 1).astype(float)
    cpu, mem = nodes["cpu"].astype(np.int64).copy(), nodes["mem"].astype(np.int64).copy()
    used = np.where(np.arange(wl.slots)[None, :] < nodes["gpu"][:, None], 0, 1000)
    started = np.zeros(len(rows), dtype=bool)
    for j, row in enumerate(rows.tolist()):
        s = requests[row]
        mine = wl.kind_node[wl.kind_ptr[s["kind"]] : wl.kind_ptr[s["kind"] + 1]]
        units, share, gpu = int(s["units"]), int(s["share"]), int(s["gpu"])
        need_cpu, need_mem = units * int(s["cpu"]), units * int(s["mem"])
        if share:
            fits = (used[mine] + share <= 1000).any(axis=1)
        else:
            fits = (used[mine] == 0).sum(axis=1) >= units * gpu
        fits &= (cpu[mine] >= need_cpu) & (mem[mine] >= need_mem)
        if not fits.any():
            continue
        mine = mine[fits]
        milli = (1000 - used[mine]).sum(axis=1)
        want = np.array([need_cpu, need_mem, share or units * gpu * 1000]) / scale
        best = int(mine[np.argmax(np.stack([cpu[mine], mem[mine], milli], axis=1) / scale @ want)])
        cpu[best] -= need_cpu
        mem[best] -= need_mem
        if share:
            open_slots = np.flatnonzero(used[best] + share <= 1000)
            used[best, open_slots[np.argmax(used[best, open_slots])]] += share
        else:
            used[best, np.flatnonzero(used[best] == 0)[: units * gpu]] = 1000
        started[j] = True
    return _shares(trace, cluster, started)
