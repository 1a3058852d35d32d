"""No plan overcommits a node or breaks a constraint: on problems of any shape, and as the engine carries it out."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.build import build
from slurm_rl.place.greedy import place_greedily
from slurm_rl.place.mip import solve
from slurm_rl.place.problem import Job, NodeKind, NodeState, PlacementProblem, Request, Weights, evaluate, violations
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.trace import make_trace
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.workload import requests_of, sorted_by_id

_KINDS = [NodeKind(0, 8), NodeKind(1, 4), NodeKind(1, 8), NodeKind(2, 2), NodeKind(3, 0)]


@st.composite
def problems(draw: st.DrawFn) -> PlacementProblem:
    shared = draw(st.booleans())

    def a_state() -> NodeState:
        kind = draw(st.integers(0, 4))
        gpus, cpu, mem = _KINDS[kind].gpus, draw(st.integers(0, 64)), draw(st.integers(0, 64))
        if not shared:
            return NodeState(kind, draw(st.integers(0, gpus)), cpu, mem)
        slots = tuple(sorted((draw(st.sampled_from([0, 250, 700, 1000])) for _ in range(gpus)), reverse=True))
        return NodeState(kind, slots.count(0), cpu, mem, slots)

    def a_job() -> Job:
        kinds = frozenset(draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)))
        gpu = draw(st.sampled_from([0, 1, 1, 2, 4]))
        share = draw(st.sampled_from([0, 250, 500])) if shared and gpu == 1 else 0
        units = 1 if share else draw(st.integers(1, 12))
        cpu = draw(st.integers(0, 8)) or int(gpu == 0)
        ask = Request(
            units, draw(st.integers(1, units)), cpu, draw(st.integers(0, 8)), 0 if share else gpu, share, kinds
        )
        run = draw(st.sampled_from([10.0, 500.0, 3e4]))
        return Job(ask, tuple(run * f for f in (0.5, 1.0, 2.0, 1.0)))

    nodes: dict[NodeState, int] = {}
    for _ in range(draw(st.integers(1, 6))):
        nodes[a_state()] = draw(st.integers(1, 5))
    jobs = [a_job() for _ in range(draw(st.integers(1, 8)))]
    weights = Weights(*(draw(st.sampled_from([0.0, 1.0, 100.0])) for _ in range(2)))
    mix = [(draw(st.sampled_from([0.1, 0.5])), a_job().request) for _ in range(draw(st.integers(0, 3)))]
    return PlacementProblem(
        jobs, _KINDS, nodes, weights=weights, mix=[(part, a) for part, a in mix if a.gpu or a.share]
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
def test_no_plan_overcommits_or_breaks_a_constraint(problem: PlacementProblem) -> None:
    greedy = place_greedily(problem)
    assert violations(problem, greedy) == []
    solution = solve(problem, seconds=5.0, gap=0.0)
    assert violations(problem, solution.where) == []
    assert solution.cost <= evaluate(problem, greedy) + 1e-6
    assert set(solution.where) >= set(greedy)
    assert solution.bound <= solution.cost + 1e-4


_CLUSTER = Cluster(
    "three types",
    (
        NodeClass(3, "A100", 8, cpus=32, mem_gb=64, partition="gpu", speed=2.0),
        NodeClass(4, "V100", 4, cpus=16, mem_gb=64, partition="gpu"),
        NodeClass(4, "T4", 2, cpus=8, mem_gb=16, partition="gpu", speed=0.45),
    ),
)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["greedy", "mip"]), st.booleans())
def test_what_the_engine_starts_fits_its_nodes_and_stays_on_one_type(seed: int, placement: str, shares: bool) -> None:
    rng = np.random.default_rng(seed)
    jobs = 60
    trace = sorted_by_id(
        make_trace(
            "random",
            np.sort(rng.integers(0, 200, jobs)),
            run_time=rng.integers(1, 400, jobs),
            time_limit=rng.integers(1, 600, jobs),
            num_gpus=rng.choice([0.5, 1, 2, 4, 8, 12] if shares else [1.0, 1, 2, 4, 8, 12], jobs),
            gpu_type=rng.choice(["", "", "A100", "A100|V100", "T4"], jobs).tolist(),
            cpus=rng.integers(1, 12, jobs).astype(float),
            mem_gb=rng.integers(0, 12, jobs).astype(float),
        )
    )
    workload = build(requests_of(trace), _CLUSTER)
    run = ReplayState(workload, trace.run_time, parse_policy("fcfs"), backfill="easy", placement=placement)
    run.run()
    live, log, nodes = run.world["live"], run.world["log"], workload.nodes
    requests = workload.requests[workload.jobs["request"]]
    events: list[tuple[int, int, int, float, int, int]] = []
    for j in np.flatnonzero(live["start"] >= 0).tolist():
        entries = log[live["log_first"][j] : live["log_first"][j] + live["log_count"][j]]
        s = requests[j]
        mine = set(workload.kind_node[workload.kind_ptr[s["kind"]] : workload.kind_ptr[s["kind"] + 1]].tolist())
        assert set(entries["node"].tolist()) <= mine
        assert int(entries["units"].sum()) == s["units"]
        if s["alone"]:
            assert len({int(nodes["type"][n]) for n in entries["node"].tolist()}) == 1
        for n, units in entries.tolist():
            takes = (units * (s["gpu"] + s["share"] / 1000), units * int(s["cpu"]), units * int(s["mem"]))
            events.append((int(live["start"][j]), 1, n, *takes))
            events.append((int(live["end"][j]), 0, n, *(-x for x in takes)))
    held = np.zeros((len(nodes), 3))
    for _, _, n, *takes in sorted(events, key=lambda e: (e[0], e[1])):
        held[n] += takes
        assert held[n, 0] <= nodes["gpu"][n] + 1e-6
        assert held[n, 1] <= nodes["cpu"][n]
        assert held[n, 2] <= nodes["mem"][n]
    assert len(events) > jobs
