"""What decide plans is what the engine starts: on mixed nodes, slices, shards, constraints, blocks and switches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import a_simulation
from reference.cases import Case, a_block_case, a_gres_case

from slurm_rl.decide import decide
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.arrays import TYPE
from slurm_rl.kernel.build import Speeds, build
from slurm_rl.place.plan import Planner, PlannerSettings
from slurm_rl.place.problem import Weights
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.trace import make_trace
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.workload import requests_of, sorted_by_id


def walk(case: Case, policy: str, backfill: str, placement: str, seed: int) -> int:
    """Compares pass by pass; how many jobs started."""
    # A job of no run time would make an instant of several passes, of which one step is the first alone.
    jobs = [replace(j, run=max(j.run, 1)) for j in case.jobs]
    # Each problem is solved once for both: how far a solver comes depends on the machine's load.
    planner = Planner() if placement == "mip" else None
    simulation, _ = a_simulation(case.cluster, jobs, policy, backfill, placement, planner=planner)
    count = 0
    while simulation.to_next_pass():
        snapshot = simulation.snapshot()
        plan = decide(snapshot, parse_policy(policy), backfill=backfill, placement=placement, planner=planner)
        live, now = simulation.world["live"], simulation.now
        before = set(np.flatnonzero(live["start"] >= 0).tolist())
        simulation.finish_pass()
        live, log = simulation.world["live"], simulation.world["log"]
        done = {
            j: sorted((int(e["node"]), int(e["units"])) for e in log[first : first + live["log_count"][j]])
            for j in np.flatnonzero(live["start"] == now).tolist()
            if j not in before
            for first in (live["log_first"][j],)
        }
        assert {s.job: sorted(s.nodes) for s in plan.starts} == done, f"seed {seed}, time {now}"
        count += len(done)
    return count


@pytest.mark.parametrize("placement", ["best-fit", "greedy", "mip", "topology", "slurm"])
@pytest.mark.parametrize("backfill", ["firstfit", "easy", "slurm"])
@pytest.mark.parametrize("cases", [a_gres_case, a_block_case])
def test_the_engine_starts_what_decide_plans(cases: object, backfill: str, placement: str) -> None:
    started = 0
    for seed in range(30_000_000, 30_000_012):
        case = cases(seed)  # type: ignore[operator]
        started += walk(case, ("fcfs", "sjf", "multifactor")[seed % 3], backfill, placement, seed)
    assert started > 20


SLICED = Cluster(
    "sliced",
    (
        NodeClass(2, cpus=16, mem_gb=64, speed=2.0, gres=(("gpu:a100", 2), ("gpu:a100_3g.20gb", 3))),
        NodeClass(1, cpus=16, mem_gb=64, speed=2.0, gres=(("gpu:a100_3g.20gb", 2), ("gpu:a100_1g.5gb", 6))),
        NodeClass(2, "v100", 4, cpus=16, mem_gb=64),
    ),
)


def on_slices(seed: int, planner: Planner, policy: str, backfill: str) -> ReplayState:
    """Untyped jobs and jobs of a few types, of three classes that gain differently from whole GPUs."""
    rng = np.random.default_rng(seed)
    jobs = 60
    gpus = rng.choice([1.0, 1, 1, 2, 4], jobs)
    few = ["", "", "", "a100", "a100|a100_3g.20gb", "a100_3g.20gb|a100_1g.5gb|v100"]
    trace = sorted_by_id(
        make_trace(
            "sliced",
            np.sort(rng.integers(0, 9, jobs)) * 100,  # several at a time
            run_time=rng.integers(20, 400, jobs),
            time_limit=rng.integers(100, 900, jobs),
            num_gpus=gpus,
            num_nodes=np.where(gpus < 4, 1, 0),
            gpu_type=rng.choice(few, jobs).tolist(),
            cpus=rng.integers(1, 4, jobs).astype(float),
            user=[f"u{i}" for i in rng.integers(0, 5, jobs)],
        )
    )
    classes = ({}, {"a100_3g.20gb": 1.9, "a100_1g.5gb": 1.2}, {"a100": 1.0, "v100": 0.3})
    workload = build(requests_of(trace), SLICED, speeds=Speeds({}, classes, rng.integers(0, 3, jobs)))
    return ReplayState(
        workload, trace.run_time, parse_policy(policy), backfill=backfill, placement="mip", planner=planner
    )


@pytest.mark.parametrize("blocked", [0.0, 60.0])
@pytest.mark.parametrize("backfill", ["firstfit", "easy", "conservative"])
@pytest.mark.parametrize("policy", ["fcfs", "sjf@user"])
def test_a_pass_follows_the_plan_to_the_slices(policy: str, backfill: str, blocked: float) -> None:
    followed = improved = 0
    for seed in range(3):
        planner = Planner(PlannerSettings(weights=Weights(blocked=blocked), jobs=12))
        simulation = on_slices(seed, planner, policy, backfill)
        while simulation.to_next_pass():
            plan = decide(
                simulation.snapshot(), parse_policy(policy), backfill=backfill, placement="mip", planner=planner
            )
            waiting = np.flatnonzero(simulation.world["live"]["start"] < 0)
            simulation.finish_pass()
            world = simulation.world
            live, log, gpus = world["live"], world["log"], world["log_gpus"]
            started = waiting[live["start"][waiting] >= 0].tolist()
            assert sorted(started) == sorted(s.job for s in plan.starts), f"seed {seed}, time {simulation.now}"
            for start in plan.starts:
                rows = np.arange(live["log_count"][start.job]) + live["log_first"][start.job]
                assert sorted(start.nodes) == sorted(log[["node", "units"]][rows].tolist())
                at = int(world["hint_of"][start.job]) - 1
                if at >= 0 and log[rows[0]].tolist() == world["hint"][at].tolist()[:2]:
                    klass = world["nodes"]["klass"][log["node"][rows[0]]]
                    bits = int(gpus[rows[0]])
                    types = {int(world["devices"][klass, k, TYPE]) for k in range(64) if bits >> k & 1}
                    followed += types == {int(world["hint"]["gpu_type"][at])}
        improved += planner.tally.improved
        assert (simulation.world["live"]["start"] >= 0).all()
    assert improved > 0
    assert followed > 0
