"""real_system_metrics.csv: figures of real runs, one row per trace and policy."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from slurm_rl.decide import decide
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.registry import PolicySpec, parse_policy
from slurm_rl_sim.replay import Prepared, Run, parse_contenders, replay
from slurm_rl_sim.simulation import ReplayState

COLUMNS = (
    *("trace", "policy", "jobs", "completed", "killed", "rejected", "jct", "wait", "bsld", "utilization"),
    *("energy_kwh", "jain", "sla", "policy_entropy", "oracle_gap"),
)
_FROM_METRICS = {
    "jobs": "jobs",
    "completed": "completed",
    "killed": "killed",
    "rejected": "rejected",
    "jct": "mean_jct",
    "wait": "mean_wait",
    "bsld": "mean_bsld",
    "utilization": "utilization",
    "energy_kwh": "energy_kwh",
    "jain": "jain_users",
    "sla": "sla_met",
}


def real_metrics(happened: Prepared, run: Run) -> dict[str, object]:
    """A row: figures of the real run, and of the jobs as they happened, simulated, what no real run can tell."""
    row: dict[str, object] = {"trace": happened.trace.name, "policy": run.policy}
    row |= {name: run.metrics[key] for name, key in _FROM_METRICS.items()}
    row["policy_entropy"] = policy_entropy(happened, run.policy)
    row["oracle_gap"] = oracle_gap(happened, run)
    return row


def oracle_gap(happened: Prepared, run: Run) -> float | None:
    """The real mean slowdown as a ratio to SJF's with true run times, minus 1; SJF can only be simulated."""
    best = replay(happened, parse_contenders(["sjf@oracle"], "easy"))[0].metrics["mean_bsld"]
    own = run.metrics["mean_bsld"]
    return None if best is None or own is None else own / best - 1.0


def policy_entropy(happened: Prepared, policy: str) -> float | None:
    """Mean entropy, in nats, of the choice of the next job by a network's scores; None of a policy without one.

    Over the passes of a simulation of the same jobs at which two or more wait.
    """
    if not policy.startswith("rl:"):
        return None
    spec = parse_policy(policy)
    simulation = ReplayState(happened.workload, happened.trace.run_time, spec, backfill="easy")
    found = []
    while simulation.to_next_pass():
        snapshot = simulation.snapshot()
        if len(snapshot.pending) > 1:
            found.append(entropy(_scores(simulation, spec)))
        simulation.finish_pass()
    return float(np.mean(found)) if found else None


def _scores(simulation: ReplayState, spec: PolicySpec) -> Array:
    plan = decide(simulation.snapshot(), spec)
    return np.array([reason.score for reason in plan.reasons])


def entropy(scores: Array) -> float:
    """Of a draw by these scores, in nats; a job that goes first by a guardrail, not by its score, leaves no draw."""
    highest = scores.max()
    if not np.isfinite(highest):
        return 0.0
    weight = np.exp(scores - highest)
    share = weight / weight.sum()
    return float(-(share * np.log(np.maximum(share, 1e-300))).sum())


def append(path: Path, rows: list[dict[str, object]]) -> None:
    """Adds rows to the file; the header comes first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if fresh:
            writer.writeheader()
        writer.writerows({k: _text(row[k]) for k in COLUMNS} for row in rows)


def _text(value: object) -> object:
    return "" if value is None else round(value, 6) if isinstance(value, float) else value
