"""Gangs inside blocks against placements that know of none, where spanning costs speed: docs/placement.md.

slurm-rl study topology [SEEDS] [SPEED …]    SPEED: of a gang that spans, as a share of its speed within a block
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from slurm_rl.domain.cluster import Cluster
from slurm_rl.studies.placement import interval
from slurm_rl.traces.machines import machine
from slurm_rl_sim.metrics import metrics
from slurm_rl_sim.replay import parse_contenders, prepare
from slurm_rl_sim.result import Result, result_of
from slurm_rl_sim.simulation import ReplayState

BLIND = ("first-fit", "best-fit", "slurm", "greedy")
COMPARED = ("mean_jct", "mean_wait", "p99_wait")
POLICY = "sjf-age@user"


def inside(result: Result) -> float:
    """Share of the gangs that a block could hold, and no node, that ran inside one block."""
    wl = result.workload
    job, node, _ = result.entries()
    first = np.full(len(result.start), np.iinfo(np.int64).max)
    last = np.full(len(result.start), -1)
    np.minimum.at(first, job, wl.nodes["block"][node])
    np.maximum.at(last, job, wl.nodes["block"][node])
    request = wl.requests[wl.jobs["request"]]
    room: dict[int, int] = {}  # GPUs of the largest block, by pool
    for pool in range(len(wl.pools)):
        mine = wl.nodes[wl.nodes["pool"] == pool]
        room[pool] = int(np.bincount(mine["block"], weights=mine["gpu"]).max())
    could = request["units"] * request["gpu"] <= np.array([room[p] for p in request["pool"].tolist()])
    gangs = result.ran & (request["wide"] > 0) & (request["gpu"] > 0) & could
    return float((first == last)[gangs].mean()) if gangs.any() else float("nan")


def spanning(cluster: Cluster, speed: float) -> Cluster:
    """The cluster with another cost of spanning."""
    return Cluster(cluster.name, tuple(replace(c, span_speed=speed) for c in cluster.classes))


def main(*given: str) -> None:
    """The table: seeds, then speeds."""
    seeds = int(given[0]) if given else 8
    speeds = [float(text) for text in given[1:]] or [0.9, 0.8, 0.7]
    for speed in speeds:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in (*BLIND, "topology")}
        for seed in range(seeds):
            trace, cluster = machine("blocks", seed=seed)
            prepared = prepare(trace, spanning(cluster, speed), seed=seed)
            contender = parse_contenders(POLICY, "easy")[0]
            for name, runs in found.items():
                simulation = ReplayState(prepared.workload, prepared.trace.run_time, contender.policy, placement=name)
                simulation.run()
                result = result_of(simulation, prepared.trace, prepared.measured)
                figures = metrics(result)
                runs.append({k: float(figures[k] or 0.0) for k in (*COMPARED, "killed")} | {"inside": inside(result)})
                row = ", ".join(f"{k} {v:,.3f}" for k, v in runs[-1].items())
                print(f"speed {speed:g}, seed {seed}, {name}: {row}", file=sys.stderr, flush=True)
        for name, runs in found.items():
            means = ", ".join(f"{k} {np.mean([r[k] for r in runs]):,.0f}" for k in (*COMPARED, "killed"))
            print(f"spanning at {speed:g}, {name}: inside {100 * np.mean([r['inside'] for r in runs]):.1f}%, {means}")
            if name != "topology" and seeds > 1:
                pairs = list(zip(found["topology"], runs, strict=True))
                ratio = {k: [ours[k] / theirs[k] for ours, theirs in pairs] for k in COMPARED}
                changes = ", ".join(f"{k} {interval(v)}" for k, v in ratio.items())
                print(f"   topology against it: {changes}", flush=True)
