"""The engine starts what `decide` plans, step by step through random replays; and the guardrails of `decide`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slurm_rl.decide import Guardrails, decide
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.build import build
from slurm_rl.place.defer import Deferral
from slurm_rl.place.plan import Planner, PlannerSettings
from slurm_rl.policy.catalogue import BY_USER, LEARNED
from slurm_rl.policy.network import LENGTH
from slurm_rl.policy.registry import PolicySpec, parse_policy
from slurm_rl.traces.trace import Trace, make_trace
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.workload import requests_of, sorted_by_id

CLUSTER = Cluster(
    "two pools",
    (
        NodeClass(2, "A100", 8, cpus=32, mem_gb=64, partition="gpu", speed=2.0),
        NodeClass(2, "V100", 4, cpus=16, mem_gb=64, partition="gpu"),
        NodeClass(3, cpus=8, mem_gb=16, partition="cpu"),
    ),
)


def a_workload(seed: int, jobs: int = 60, shares: bool = False) -> Trace:
    rng = np.random.default_rng(seed)
    gpu = rng.random(jobs) < 0.7
    sizes = np.array([0.5, 1, 2, 4, 8, 12] if shares else [1, 1, 2, 4, 8, 12])
    return sorted_by_id(
        make_trace(
            "random",
            np.sort(rng.integers(0, 600, jobs)),
            run_time=rng.integers(0, 400, jobs),
            time_limit=rng.integers(1, 600, jobs),
            num_gpus=np.where(gpu, rng.choice(sizes, jobs), 0.0),
            gpu_type=rng.choice(["", "", "A100", "A100|V100"], jobs).tolist(),
            cpus=rng.integers(1, 12, jobs).astype(float),
            mem_gb=rng.integers(0, 20, jobs).astype(float),
            partition=np.where(gpu, "gpu", "cpu").tolist(),
            user=[f"u{i}" for i in rng.integers(0, 5, jobs)],
            account=[f"g{i}" for i in rng.integers(0, 2, jobs)],
            priority=rng.integers(0, 3, jobs).astype(float),
            deadline=rng.integers(-1, 1500, jobs),
        )
    )


def a_simulation(trace: Trace, policy: str, **options: object) -> ReplayState:
    return ReplayState(build(requests_of(trace), CLUSTER), trace.run_time, a_policy(policy), **options)  # type: ignore[arg-type]


def a_policy(name: str) -> PolicySpec:
    """A policy by its name; `learned`: a network of random weights, small jobs first on CPUs, with a cap."""
    if name != "learned":
        return parse_policy(name)
    net = np.random.default_rng(5).normal(size=LENGTH).astype(np.float32) * np.float32(0.1)
    return PolicySpec("learned", LEARNED, BY_USER, starve_drain=2.0, booking_size=-1.0, net=net)


@pytest.mark.parametrize("backfill", ["none", "firstfit", "easy", "conservative", "slurm"])
@pytest.mark.parametrize(
    "policy", ["fcfs", "sjf@limit", "sjf@user", "wfp3", "multifactor", "static-equal", "smith", "learned"]
)
@pytest.mark.parametrize("placement", ["first-fit", "best-fit", "round-robin", "tier", "greedy", "mip"])
def test_the_engine_starts_what_decide_plans(policy: str, backfill: str, placement: str) -> None:
    for seed in range(2):
        trace = a_workload(seed, shares=seed == 1)
        # A solver that runs out of time answers as the machine's load has it: each problem is solved once, for both.
        planner = Planner() if placement == "mip" else None
        simulation = a_simulation(trace, policy, backfill=backfill, placement=placement, planner=planner)
        passes = 0
        while simulation.to_next_pass():
            snapshot = simulation.snapshot()
            plan = decide(snapshot, a_policy(policy), backfill=backfill, placement=placement, planner=planner)
            before = set(np.flatnonzero(simulation.world["live"]["start"] >= 0).tolist())
            now = simulation.now
            planned = {s.job: sorted(s.nodes) for s in plan.starts}
            passes += len(planned) > 0
            simulation.finish_pass()
            live = simulation.world["live"]
            started = [j for j in np.flatnonzero(live["start"] == now).tolist() if j not in before]
            log = simulation.world["log"]
            done = {
                j: sorted(
                    (int(e["node"]), int(e["units"]))
                    for e in log[live["log_first"][j] : live["log_first"][j] + live["log_count"][j]]
                )
                for j in started
            }
            assert planned == done, f"seed {seed}, time {now}"
        assert passes > 5, "a replay in which nothing starts proves nothing"


@pytest.mark.parametrize("policy", ["fcfs", "sjf@user"])
@pytest.mark.parametrize("backfill", ["none", "firstfit", "easy"])
def test_jobs_that_are_left_for_later_are_the_same_in_both(policy: str, backfill: str) -> None:
    rules = PlannerSettings(deferral=Deferral(seconds=1000.0, share=2.0, times=4, gain=0.1))
    deferred = 0
    for seed in range(2):
        planner = Planner(rules)
        simulation = a_simulation(a_workload(seed), policy, backfill=backfill, placement="mip", planner=planner)
        while simulation.to_next_pass():
            spec = parse_policy(policy)
            plan = decide(simulation.snapshot(), spec, backfill=backfill, placement="mip", planner=Planner(rules))
            waiting = set(np.flatnonzero(simulation.world["live"]["start"] < 0).tolist())
            simulation.finish_pass()
            started = {j for j in waiting if simulation.world["live"]["start"][j] >= 0}
            assert started == {s.job for s in plan.starts}, f"seed {seed}, time {simulation.now}"
        deferred += planner.tally.deferred
        assert (simulation.world["live"]["start"] >= 0).all(), "a job that is deferred still runs"
    assert deferred > 0


def test_decide_leaves_the_snapshot_as_it_was() -> None:
    simulation = a_simulation(a_workload(1), "sjf@user", backfill="conservative")
    for _ in range(20):
        simulation.to_next_pass()
        simulation.finish_pass()
    simulation.to_next_pass()
    snapshot = simulation.snapshot()
    before = {name: snapshot.world[name].tobytes() for name in ("live", "free", "pools", "entries", "users")}
    first = decide(snapshot, parse_policy("sjf@user"), backfill="conservative")
    assert {name: snapshot.world[name].tobytes() for name in before} == before
    assert decide(snapshot, parse_policy("sjf@user"), backfill="conservative") == first


def a_queue(**columns: object) -> ReplayState:
    """Seven jobs that wait behind one that holds the whole CPU pool, at 100 s, when the last of them arrives."""
    trace = make_trace(
        "queue",
        [0, 1, 2, 3, 4, 5, 6, 100],
        run_time=[1000] * 8,
        time_limit=[5000, 600, 500, 400, 300, 200, 100, 900],
        cpus=[24.0, 8, 8, 8, 8, 8, 8, 8],
        partition=["cpu"] * 8,
        **columns,
    )
    simulation = a_simulation(trace, "fcfs", backfill="easy")
    simulation.run(100)
    return simulation


def test_the_order_is_the_policys() -> None:
    plan = decide(a_queue().snapshot(), parse_policy("sjf@limit"))
    assert plan.order == (6, 5, 4, 3, 2, 1, 7)
    assert plan.starts == ()


def test_site_factors_fall_evenly_within_the_bound() -> None:
    weights = dict.fromkeys(("age", "fairshare", "job_size", "partition", "qos", "tres"), 0.0) | {"age": 1000.0}
    plan = decide(
        a_queue().snapshot(), parse_policy("sjf@limit"), guardrails=Guardrails(influence=0.5), weights=weights
    )
    assert plan.site_factor == (500, 333, 167, 0, -167, -333, -500)


def test_below_full_influence_the_factors_on_top_of_slurms_priority_give_the_order() -> None:
    """Fairshare is worth more than the bound, so the order is neither the policy's nor Slurm's."""
    snapshot = a_queue(user=list("aabbccdd"), priority=[0.0] * 8).snapshot()
    snapshot.world["jobs"]["nice"][:] = [0, 0, -700, 300, 0, 800, -100, 250]
    weights = dict.fromkeys(("age", "fairshare", "job_size", "partition", "qos", "tres"), 0.0) | {"age": 1000.0}
    bounded = decide(snapshot, parse_policy("sjf@limit"), guardrails=Guardrails(influence=0.5), weights=weights)
    own = -snapshot.world["jobs"]["nice"].astype(float)
    own += 1000 * (100 - snapshot.world["jobs"]["submit"]) / (7 * 86_400)
    totals = [own[j] + f for j, f in zip(bounded.order, bounded.site_factor, strict=True)]
    assert totals == sorted(totals, reverse=True)
    assert bounded.order not in ((6, 5, 4, 3, 2, 1, 7), tuple(sorted(range(1, 8), key=lambda j: -own[j])))
    assert dict(zip(bounded.order, bounded.site_factor, strict=True))[6] == 500, "the shortest, wherever it ends up"
    assert [r.score for r in bounded.reasons] == [-snapshot.world["jobs"]["limit"][j] for j in bounded.order]


def test_a_job_that_has_waited_too_long_goes_first() -> None:
    # All have waited longer than 10 s, but only the last one longer than 0.9 times its limit.
    plan = decide(
        a_queue().snapshot(), parse_policy("ljf@limit"), guardrails=Guardrails(starve_age=10, starve_factor=0.9)
    )
    assert plan.order[0] == 6  # 94 s > 0.9 × 100 s
    assert plan.reasons[0].promoted
    assert plan.order[1:] == (7, 1, 2, 3, 4, 5)
    assert not any(r.promoted for r in plan.reasons[1:])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_unusable_scores_leave_slurms_own_order(bad: float) -> None:
    snapshot = a_queue().snapshot()
    scores = np.arange(7.0)
    scores[3] = bad
    plan = decide(snapshot, parse_policy("fcfs"), scores=scores)
    assert plan.order == decide(snapshot, parse_policy("multifactor")).order
    assert all(r.fallback for r in plan.reasons)


def test_constant_scores_are_unusable_and_good_ones_rule() -> None:
    snapshot = a_queue().snapshot()
    assert all(r.fallback for r in decide(snapshot, parse_policy("fcfs"), scores=np.ones(7)).reasons)
    plan = decide(snapshot, parse_policy("fcfs"), scores=np.array([1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 0.0]))
    assert plan.order == (2, 4, 6, 5, 3, 1, 7)
    assert not any(r.fallback for r in plan.reasons)
