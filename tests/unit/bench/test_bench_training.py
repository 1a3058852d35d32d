"""`bench ablate` and `bench agents`: plans, pairs by hand, and a training that ends when its time is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from slurm_rl.bench import ablate, agents
from slurm_rl.bench.training import JOBS, SCENES, Variant, iterations, real_workloads, trained, windows
from slurm_rl.train.algorithms.catalogue import ALGORITHMS
from slurm_rl.train.module import PARTS

SETTINGS = {"seeds": 2, "steps": SCENES * JOBS, "seconds": 30, "jobs": 200, "traces": None}


def test_every_part_that_is_removed_is_one_that_the_agent_has() -> None:
    for name, variants in ablate.VARIANTS.items():
        for v in variants:
            row = ALGORITHMS[v.algorithm]
            assert row.name == name
            row.settings(v.options)  # refuses what it does not know
            assert set(v.without) <= set(PARTS)
        assert variants[0].name == "whole"
        changed = [(dict(v.options), v.without, v.prepared) for v in variants]
        assert len(changed) == len({str(c) for c in changed}), "each variant lacks something else"


def test_a_variant_is_paired_with_the_whole_of_its_seed_and_workload() -> None:
    def row(removed: str, seed: int, regime: str, mixed: float) -> dict[str, Any]:
        return {"agent": "ppo", "removed": removed, "seed": seed, "regime": regime, "mixed": mixed}

    rows = [row("nothing", 0, "a", 1.0), row("nothing", 1, "a", 4.0), row("attention", 0, "a", 2.0),
            row("attention", 1, "a", 8.0)]  # fmt: skip
    assert ablate._against_whole(rows, "ppo", "attention", "mixed").as_list() == [2.0, 2.0, 2.0]


def a_test(agent: str, budget: str, seed: int, slowdowns: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {"agent": agent, "budget": budget, "seed": seed, "trace": "t", "window": k, "slowdown": v, "avg_wait": 10 * v,
         "p99_wait": 100 * v} for k, v in enumerate(slowdowns)
    ]  # fmt: skip


def test_agents_are_compared_on_the_same_stretches() -> None:
    rows = a_test("fcfs", "none", 0, (10.0, 40.0)) + a_test("sjf-age@user", "none", 0, (8.0, 30.0))
    for algorithm, better in (("ppo", 0.5), ("sac", 0.9)):
        for seed in range(2):
            rows += a_test(algorithm, "jobs", seed, (10.0 * better, 40.0 * better))
            rows[-2]["_curve"] = [(0, 0.0, 1.0), (SCENES * JOBS, 5.0, better)]
    found = agents.find(rows, SETTINGS)
    assert found.figures["slowdown"]["ppo/jobs"] == pytest.approx([0.5] * 3, abs=1e-3)
    assert "ppo learns best" in found.summary[1]
    assert "ahead of sac beyond chance" in found.summary[1]
    for row in rows:  # and nobody wins where all are alike
        row["slowdown"] = 5.0 if row["budget"] == "jobs" else row["slowdown"]
    assert "nobody is ahead beyond chance" in agents.find(rows, SETTINGS).summary[1]
    assert [d.name for d in found.drawings] == ["learning_curves_jobs", "learning_curves_jobs_seconds", "agents"]
    assert len(found.files["learning_curves.csv"]) == 8


def test_the_plan_has_every_algorithm_with_both_budgets() -> None:
    units = agents.plan(SETTINGS)
    assert len(units) == 1 + 2 * 2 * len(agents.LEARNERS)
    assert len(agents.plan(SETTINGS | {"seconds": 0})) == 1 + 2 * len(agents.LEARNERS)
    assert set(agents.LEARNERS) <= set(ALGORITHMS.names)


def test_the_bundled_sample_is_always_tested() -> None:
    workloads = real_workloads(None)
    assert list(workloads) == ["hetero"]
    cut = windows(workloads, 2, 200)
    assert [(name, k) for name, k, *_ in cut] == [("hetero", 0), ("hetero", 1)]
    for _, _, trace, _, (low, high) in cut:
        assert ((trace.submit_time >= low) & (trace.submit_time < high)).sum() >= 200


@pytest.mark.soak
def test_a_training_ends_with_its_jobs_or_its_time() -> None:
    policy, curve = trained(Variant("ppo"), 0, steps=SCENES * JOBS)
    assert (policy.net is not None, curve[-1][0]) == (True, SCENES * JOBS)
    assert iterations(SCENES * JOBS) == 1
    policy, curve = trained(Variant("reinforce"), 0, steps=0, seconds=1.0)
    assert policy.net is not None
    assert curve[-2][1] <= 1.0 < curve[-1][1]
