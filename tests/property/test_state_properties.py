"""After any event the engine's state is consistent; and the validator that says so finds what is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builders import a_cluster, a_job, a_simulation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference.cases import BACKFILLS, PLACEMENTS, POLICIES, a_case

from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.validate import StateError, check_state, problems, run_checked


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 10_000_000),
    st.sampled_from(POLICIES),
    st.sampled_from(BACKFILLS),
    st.sampled_from((*PLACEMENTS, "greedy")),
    st.booleans(),
)
def test_every_event_leaves_a_consistent_state(
    seed: int, policy: str, backfill: str, placement: str, failures: bool
) -> None:
    case = a_case(seed, failures=failures, many=True)
    preempt = policy.startswith(("srpt", "static-priority"))
    simulation, _ = a_simulation(
        case.cluster, case.jobs, policy, backfill, placement, events=case.events, preempt=preempt
    )
    run_checked(simulation)


def a_busy_simulation() -> ReplayState:
    jobs = [a_job(0, 100, cpus=2), a_job(0, 50, cpus=2), a_job(1, 10, cpus=4), a_job(2, 10, cpus=3)]
    simulation, _ = a_simulation(a_cluster(2, cpus=2), jobs, "fcfs", "conservative")
    simulation.run(5)
    check_state(simulation)
    return simulation


def _lose_an_entry(simulation: ReplayState) -> None:
    simulation.world["entries"]["next"][0] = 0


def _free_a_cpu(simulation: ReplayState) -> None:
    simulation.world["free"][0, 0, 0] += 1


def _miscount_a_pool(simulation: ReplayState) -> None:
    simulation.world["total"][0, 0, 0] -= 1


def _swap_the_running(simulation: ReplayState) -> None:
    simulation.world["running"][:2] = simulation.world["running"][:2][::-1].copy()


def _swap_the_heap(simulation: ReplayState) -> None:
    simulation.world["heap"][:2] = simulation.world["heap"][:2][::-1].copy()


def _swap_the_queue(simulation: ReplayState) -> None:
    first = int(simulation.world["pools"]["queue_first"][0])
    queue = simulation.world["queue"]
    queue[first : first + 2] = queue[first : first + 2][::-1].copy()


def _end_without_a_count(simulation: ReplayState) -> None:
    simulation.world["ended"] = 3


def _book_the_past(simulation: ReplayState) -> None:
    booked = np.flatnonzero(simulation.world["live"]["booked_start"] >= 0)
    simulation.world["live"]["booked_start"][booked[0]] = 1


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_lose_an_entry, "entries are lost"),
        (_free_a_cpu, "CPUs free, jobs leave"),
        (_miscount_a_pool, "free in sum"),
        (_swap_the_running, "running list"),
        (_swap_the_heap, "the heap has job"),
        (_swap_the_queue, "its queue is"),
        (_end_without_a_count, "3 jobs have ended"),
        (_book_the_past, "was booked for 1"),
    ],
)
def test_a_contradiction_is_found_and_named(spoil: Callable[[ReplayState], None], says: str) -> None:
    simulation = a_busy_simulation()
    spoil(simulation)
    assert any(says in problem for problem in problems(simulation))
    with pytest.raises(StateError, match="please report"):
        check_state(simulation)
