"""Free GPUs that nobody can use: the placer counts them as the model does, and keeps room for large jobs."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.arrays import NOW, Record
from slurm_rl.kernel.build import build
from slurm_rl.kernel.jit import kernel
from slurm_rl.place.by_gpu_type import blocked, blocked_by_type
from slurm_rl.place.plan import Planner, PlannerSettings, _Map
from slurm_rl.place.problem import PlacementProblem, Weights
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.trace import Trace, make_trace
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.workload import requests_of, sorted_by_id

_CLUSTER = Cluster(
    "two types",
    (
        NodeClass(5, "A100", 8, cpus=32, mem_gb=64, partition="gpu", speed=2.0),
        NodeClass(6, "V100", 4, cpus=16, mem_gb=64, partition="gpu"),
    ),
)


@kernel
def _blocked(w: Record, s: int, n: int, units: int) -> float:
    return blocked(w, s, NOW, n, units)


@kernel
def _blocked_by_type(w: Record, s: int, n: int, units: int, kind: int) -> float:
    return blocked_by_type(w, s, NOW, n, units, kind)


def simulated(trace: Trace, cluster: Cluster, weights: Weights) -> ReplayState:
    return ReplayState(
        build(requests_of(trace), cluster),
        trace.run_time,
        parse_policy("fcfs"),
        backfill="easy",
        placement="mip",
        planner=Planner(PlannerSettings(weights=weights)),
    )


@pytest.mark.parametrize("shares", [False, True])
def test_the_placer_counts_what_the_model_counts(shares: bool) -> None:
    rng = np.random.default_rng(5)
    jobs = 80
    trace = sorted_by_id(
        make_trace(
            "random",
            np.sort(rng.integers(0, 300, jobs)),
            run_time=rng.integers(20, 400, jobs),
            time_limit=np.full(jobs, 500),
            num_gpus=rng.choice([0.3, 0.5, 1, 2, 4, 8] if shares else [1.0, 1, 2, 4, 8], jobs),
            num_nodes=np.ones(jobs, dtype=np.int64),
            gpu_type=rng.choice(["", "", "A100", "V100"], jobs).tolist(),
            cpus=rng.integers(1, 12, jobs).astype(float),
            mem_gb=rng.integers(0, 12, jobs).astype(float),
        )
    )
    weights = Weights(blocked=60.0)
    run = simulated(trace, _CLUSTER, weights)
    world, known = run.world, _Map(run.world)
    compared = found = 0
    while run.to_next_pass():
        run.finish_pass()
        states, members = known.states(world, 0)
        mix = [(part, known.requests[s]) for part, s in world["mix"].tolist()]
        problem = PlacementProblem([], known.kinds, states, weights=weights, mix=mix)
        for state, nodes in members.items():
            for s in range(0, len(known.requests), 7):
                ask = known.requests[s]
                gpu_type = known.kinds[state.kind].gpu_type
                units = state.room(ask, 1, gpu_type) if state.kind in ask.kinds else 0
                then = state.after(ask, units, gpu_type) if units else state
                by_model = problem.blocked(then)
                assert _blocked(world.record[0], s, nodes[0], units) == pytest.approx(by_model, abs=1e-9)
                compared += 1
                found += by_model > 0
    assert compared > 1000
    assert found > compared / 10


def test_it_counts_slices_by_type() -> None:
    cluster = Cluster(
        "sliced",
        (
            NodeClass(3, cpus=12, mem_gb=64, gres=(("gpu:a100", 2), ("gpu:a100_3g.20gb", 3))),
            NodeClass(2, cpus=12, mem_gb=64, gres=(("gpu:a100_3g.20gb", 2), ("gpu:a100_1g.5gb", 4), ("fpga", 1))),
            NodeClass(2, "v100", 4, cpus=16, mem_gb=64),
        ),
    )
    rng = np.random.default_rng(7)
    jobs = 80
    few = ["", "", "a100", "a100|v100", "a100_3g.20gb|a100_1g.5gb"]
    trace = sorted_by_id(
        make_trace(
            "random",
            np.sort(rng.integers(0, 300, jobs)),
            run_time=rng.integers(20, 400, jobs),
            time_limit=np.full(jobs, 500),
            num_gpus=rng.choice([0.5, 1, 1, 2, 3], jobs),
            num_nodes=np.ones(jobs, dtype=np.int64),
            gpu_type=rng.choice(few, jobs).tolist(),
            cpus=rng.integers(1, 6, jobs).astype(float),
            mem_gb=rng.integers(0, 12, jobs).astype(float),
        )
    )
    weights = Weights(blocked=60.0)
    run = simulated(trace, cluster, weights)
    world, known = run.world, _Map(run.world)
    compared = found = 0
    while run.to_next_pass():
        run.finish_pass()
        states, members = known.states(world, 0)
        mix = [(part, known.requests[s]) for part, s in world["mix"].tolist()]
        problem = PlacementProblem([], known.kinds, states, weights=weights, mix=mix)
        for state, nodes in members.items():
            for s in range(0, len(known.requests), 7) if state.by_type else ():
                ask = known.requests[s]
                for kind in () if ask.share else problem.choices(ask).get(state.kind, ()):
                    units = state.room(ask, 1, kind)
                    by_model = problem.blocked(state.after(ask, units, kind))
                    by_placer = _blocked_by_type(world.record[0], s, nodes[0], units, kind)
                    assert by_placer == pytest.approx(by_model, abs=1e-9)
                    compared += 1
                    found += by_model > 0
    assert compared > 500
    assert found > compared / 10


def starts(weights: Weights) -> list[int]:
    """Two nodes of 8 GPUs and 32 CPUs: 4 GPUs and 16 CPUs are free on one, 5 and 4 on the other; then two jobs come."""
    cluster = Cluster("two nodes", (NodeClass(2, "A100", 8, cpus=32, mem_gb=64, partition="gpu"),))
    trace = make_trace(
        "choice",
        [0, 0, 10, 20],
        run_time=[1000, 1000, 1000, 1000],
        time_limit=[1000] * 4,
        num_gpus=[4.0, 3.0, 1.0, 4.0],
        num_nodes=[1, 1, 1, 1],
        cpus=[16.0, 28.0, 1.0, 16.0],
    )
    run = simulated(sorted_by_id(trace), cluster, weights)
    run.run()
    return [int(start) for start in run.world["live"]["start"]]


def test_a_small_job_leaves_the_room_that_a_large_one_can_use() -> None:
    # The fullest node is the one on which the last job would fit; it waits if the third takes a GPU there.
    assert starts(Weights()) == [0, 0, 10, 1000]
    assert starts(Weights(blocked=60.0)) == [0, 0, 10, 20]
