"""Prices of GPU types: the dual values of sharing the queue out over them, and what a job does with them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.arrays import Array
from slurm_rl.place.prices import drain_prices
from slurm_rl.place.speed import SpeedMatrix
from slurm_rl.traces.trace import make_trace
from slurm_rl_sim.replay import Run, parse_contenders, prepare, replay


def least_cost(seconds: Array, gpus: Array, has: Array, delay: float) -> float:
    """The linear programme itself: run times and the time until all is through, by an exact solver."""
    group, kind = np.nonzero(np.isfinite(seconds))
    count = len(group)
    used = np.zeros((len(has), count + 1))
    used[kind, np.arange(count)] = (seconds * gpus[:, None])[group, kind]
    used[:, count] = -has
    shares = np.zeros((len(seconds), count + 1))
    shares[group, np.arange(count)] = 1.0
    found = linprog(
        np.append(seconds[group, kind], delay), used, np.zeros(len(has)), shares, np.ones(len(seconds)), method="highs"
    )
    return float(found.fun)


def test_prices_are_the_dual_values_of_the_programme() -> None:
    rng = np.random.default_rng(1)
    for case in range(100):
        groups, types = int(rng.integers(1, 40)), int(rng.integers(2, 8))
        speed = np.exp(rng.normal(0.0, 0.6, (groups if case % 2 else 1, types)))
        seconds = np.exp(rng.normal(8.0, 2.0, groups))[:, None] / speed
        accepts = rng.random((groups, types)) < 0.8
        accepts[np.arange(groups), rng.integers(0, types, groups)] = True
        seconds = np.where(accepts, seconds, np.inf)
        gpus, has = 2.0 ** rng.integers(0, 5, groups), rng.integers(4, 300, types).astype(float)
        delay = 0.5 * float(rng.integers(1, 300))
        price = drain_prices(seconds, gpus, has, delay)
        assert price @ has == pytest.approx(delay)
        # No prices make the groups' least costs add up to more than the programme's optimum, and these come close.
        dual = float((seconds * (1.0 + gpus[:, None] * price)).min(axis=1).sum())
        best = least_cost(seconds, gpus, has, delay)
        assert 0.95 * best <= dual <= best * (1.0 + 1e-9), f"case {case}"


def test_types_without_gpus_and_empty_queues_cost_nothing() -> None:
    has = np.array([4.0, 0.0])
    assert drain_prices(np.array([[10.0, np.inf]]), np.ones(1), has, 2.0).tolist() == [0.5, 0.0]
    assert drain_prices(np.zeros((0, 2)), np.ones(0), has, 2.0).tolist() == [0.0, 0.0]


def a_queue(placement: str, *, behind: bool, insists: bool = True) -> dict[int, tuple[str, int]]:
    """Where and when jobs start: 1 holds half of the A100s until 100, 2 could take the other half or the T4s.

    Job 2 runs hardly faster on the A100s; behind it waits job 3, which needs all of them. If it does not insist on
    A100s, it would be faster on T4s, of which there are too few for it.
    """
    count = 3 if behind else 2
    trace = make_trace(
        "queue",
        [0, 10, 10][:count],
        run_time=[300, 1000, 3000][:count],
        time_limit=[300, 5000, 5000][:count],
        num_gpus=[4.0, 4.0, 8.0][:count],
        gpu_type=["A100", "", "A100" if insists else ""][:count],
        user=["ann"] * count,
        job_name=["train", "load", "train" if insists else "odd"][:count],
    )
    cluster = Cluster("two", (NodeClass(1, "A100", 8, speed=3.0), NodeClass(1, "T4", 4, speed=1.0)))
    classes = {("ann", "load"): {"A100": 1.1, "T4": 1.0}, ("ann", "odd"): {"A100": 1.0, "T4": 2.0}}
    speeds = SpeedMatrix({"A100": 3.0, "T4": 1.0}, classes)
    prepared = prepare(trace, cluster, speeds=speeds)
    (run,) = replay(prepared, parse_contenders("fcfs", "easy"), placement=placement)
    return _starts(run)


def _starts(run: Run) -> dict[int, tuple[str, int]]:
    result = run.result
    nodes, names = result.workload.nodes, result.workload.type_names
    kind = {int(j): names[nodes["type"][n]] for j, n, _ in zip(*result.entries(), strict=True)}
    return {int(i): (kind[j], int(result.start[j])) for j, i in enumerate(result.trace.job_id)}


def test_a_job_leaves_a_fast_type_to_the_one_behind_that_needs_it() -> None:
    greedy, mip = a_queue("greedy", behind=True), a_queue("mip", behind=True)
    assert greedy[2] == ("A100", 10)
    assert mip[2] == ("T4", 10)
    assert mip[3][1] < greedy[3][1]


def test_a_type_that_cannot_hold_a_job_is_no_use_to_it() -> None:
    greedy, mip = (a_queue(placement, behind=True, insists=False) for placement in ("greedy", "mip"))
    assert greedy[2] == ("A100", 10)
    assert mip[2] == ("T4", 10)
    assert mip[3][1] < greedy[3][1]


def test_nothing_is_dear_while_nobody_waits() -> None:
    assert a_queue("mip", behind=False)[2] == ("A100", 10)
