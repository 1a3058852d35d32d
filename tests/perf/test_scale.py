"""What a job costs by the number of nodes, and by the length of the queue, at one number of jobs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perf.inputs import COUNTS, NODES, generate
from perf.measure import Report, Row
from perf.test_bench import engine, simulation
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.traces.trace import make_trace
from slurm_rl_sim.replay import Prepared, prepare

pytestmark = pytest.mark.perf

JOBS = 100_000
SIZES = (100, 1_000, 10_000, 100_000)  # nodes of 8 CPUs
BURSTS = (10, 100, 1_000, 10_000, 100_000)  # jobs that are submitted at once
FREE_STATES = 8  # of a node: CPUs that may be free on it


def on_nodes(nodes: int, *, whole: bool) -> Prepared:
    """Jobs of one to eight whole nodes, or of 1 to 128 CPUs anywhere, at load 0.85."""
    rng = np.random.default_rng(1)
    cpus = 8 * 2 ** rng.integers(0, 4, JOBS) if whole else 2 ** rng.integers(0, 8, JOBS)
    run = np.exp(rng.normal(6.0, 1.5, JOBS)).astype(np.int64) + 1
    limit = run * rng.integers(1, 10, JOBS)
    span = float((cpus * run).sum()) / (8 * nodes) / 0.85
    submit = np.sort((rng.random(JOBS) * span).astype(np.int64))
    trace = make_trace("generated", submit, run_time=run, time_limit=limit, cpus=cpus.astype(float))
    return prepare(trace, Cluster(f"{nodes} nodes of 8 CPUs", (NodeClass(nodes, cpus=8),)))


def in_bursts(size: int, cluster: Cluster) -> Prepared:
    """The benchmark's jobs at load 0.85, submitted so many at a time."""
    load = generate(JOBS)
    at = np.arange(JOBS) // size * size
    return type(load)(load.submit[at], load.run, load.limit, load.cores, load.user).prepared(cluster)


def mean_queue(prepared: Prepared) -> float:
    run = simulation(prepared, "fcfs", "easy", "best-fit")
    run.run()
    live, submit = run.world["live"], run.world["jobs"]["submit"]
    return float((live["start"] - submit).sum() / (live["start"].max() - submit[0] + 1))


def test_cost_by_nodes(report: Report) -> None:
    rows: list[dict[str, float | str]] = [{"nodes": nodes} for nodes in SIZES]
    for row, nodes in zip(rows, SIZES, strict=True):
        for name, whole in (("whole nodes", True), ("1-128 CPUs", False)):
            row[name] = engine(on_nodes(nodes, whole=whole), "fcfs", "easy", "best-fit").cpu / JOBS * 1e6
    report.tables[f"microseconds a job by nodes, EASY, best-fit, {JOBS:,} jobs at load 0.85"] = rows
    growth = float(rows[-1]["whole nodes"]) / float(rows[0]["whole nodes"])
    report.add(Row("whole nodes, 100,000 to 100 nodes", "×", growth, math.log(SIZES[-1]) / math.log(SIZES[0])))
    growth = float(rows[-1]["1-128 CPUs"]) / float(rows[0]["1-128 CPUs"])
    report.add(Row("1-128 CPUs, 100,000 to 100 nodes", "×", growth, FREE_STATES))


def test_cost_by_queue(report: Report) -> None:
    for cluster, what in ((COUNTS, "counts"), (NODES, "256 nodes")):
        rows = []
        worst = dict.fromkeys(("sjf@user", "multifactor"), 0.0)
        for size in BURSTS:
            prepared = in_bursts(size, cluster)
            row: dict[str, float | str] = {"at once": size, "mean queue": mean_queue(prepared)}
            times = 2 if size < 10_000 else 1
            for policy in ("fcfs", *worst):
                if policy == "sjf@user" and size == BURSTS[-1]:
                    row[policy] = (
                        "–"  # each end renews the estimates of all that wait of its user: too long to wait for
                    )
                    continue
                row[policy] = engine(prepared, policy, "easy", "best-fit", times=times).cpu / JOBS * 1e6
                if policy in worst:
                    worst[policy] = max(worst[policy], float(row[policy]) / float(row["fcfs"]))
            rows.append(row)
        report.tables[f"microseconds a job by jobs submitted at once, EASY, {what}, {JOBS:,} jobs at load 0.85"] = rows
        for policy, ratio in worst.items():
            report.add(Row(f"{policy} to fcfs, any queue, {what}", "×", ratio, 4.0))
