"""The suites, one row each; `bench/NAME.py` implements a suite."""

from __future__ import annotations

from slurm_rl.bench.suite import Suite

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "core",
            "All schedulers on 56 regimes: the winner, the margin and the ties.",
            {"seeds": 4, "jobs": 1000, "policy": None},
            "core_sim_metrics.csv",
        ),
        Suite(
            "robust",
            "All schedulers on 160 distorted workloads: arrivals, durations, phase, bursts, capacity, drift.",
            {"seeds": 3, "jobs": 1000, "policy": None},
            "robustness_metrics.csv",
        ),
        Suite(
            "ablate",
            "Agents retrained without a part: the value of each.",
            {"seeds": 3, "steps": 72_000, "jobs": 1000},
            "ablation_metrics.csv",
            ("torch",),
        ),
        Suite(
            "agents",
            "Learning algorithms at equal budgets of jobs played and of time, tested on real traces.",
            {"seeds": 3, "steps": 144_000, "seconds": 60, "jobs": 1000, "traces": None},
            "agents_metrics.csv",
            ("torch",),
        ),
        Suite(
            "packing",
            "Fill a cluster until nothing fits: placements, FGD, mip, and an agent that may skip.",
            {"seeds": 10, "steps": 24_576, "traces": None},
            "packing_metrics.csv",
            ("torch", "mip"),
        ),
    )
}
