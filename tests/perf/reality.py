"""Does the gain hold in reality? A trace on a real slurmctld under Slurm's own order and with slurm-rl enforcing.

PYTHONPATH=tests .venv/bin/python -m perf.reality TRACE CLUSTER [RUNS] [CLOCK] [OUT.json] [ABREAST]

Each run has a lab of its own (needs root). The policies take turns, so that both see the same neighbours; ABREAST runs
go side by side. What the simulator predicts for the same jobs stands beside it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.domain.cluster import read_cluster
from slurm_rl.lab.replay import Options, RealRun, replay_on_lab
from slurm_rl.place.catalogue import PLACEMENTS
from slurm_rl.traces.read import read_trace
from slurm_rl_sim.replay import Prepared, parse_contenders, prepare, replay

OWN, OURS = "multifactor", "rl:default"
INFLUENCE = 0.5  # as shipped
WEIGHTS = {"age": 1000.0, "fairshare": 0.0, "job_size": 0.0, "partition": 0.0, "qos": 0.0, "tres": 0.0}
SOUND = 0.05  # of the mean wait: by so much may submissions be later under one order than under the other
FIGURES = ("mean_wait", "mean_bsld", "p99_wait", "max_wait")


def predicted(prepared: Prepared) -> dict[str, dict[str, float]]:
    placement = "slurm" if "slurm" in PLACEMENTS else "best-fit"
    found = {}
    for policy in (OWN, OURS):
        run = replay(
            prepared, parse_contenders([policy], "slurm"), placement=placement, influence=INFLUENCE, weights=WEIGHTS
        )[0]
        found[policy] = {name: float(run.metrics[name] or 0.0) for name in FIGURES}
    return found


def one(prepared: Prepared, policy: str, clock: float) -> dict[str, Any]:
    before = os.getloadavg()[0]
    made: RealRun = replay_on_lab(prepared, policy, Options(clock=clock, influence=INFLUENCE, weights=WEIGHTS))
    return {
        "policy": policy,
        "metrics": {name: made.run.metrics[name] for name in (*FIGURES, "jobs", "completed", "killed", "rejected")},
        "ticks": made.ticks,
        "updates": made.updates,
        "tick_seconds": made.tick,
        "late": made.late,
        "simulated": predicted(made.prepared),  # of the same arrivals and run lengths
        "machine_load": [before, os.getloadavg()[0]],
        "real_seconds": made.run.wall_seconds,
    }


def table(runs: list[dict[str, Any]], simulated: dict[str, dict[str, float]]) -> str:
    lines = [f"{'':<12} {'policy':<12} " + " ".join(f"{name:>12}" for name in FIGURES)]
    each = {p: [r["metrics"] for r in runs if r["policy"] == p] for p in (OWN, OURS)}
    for policy, rows in each.items():
        for i, row in enumerate(rows, 1):
            lines.append(f"{f'real {i}':<12} {policy:<12} " + " ".join(f"{row[name]:12.1f}" for name in FIGURES))
    if all(each.values()):
        mean = {p: {name: float(np.mean([r[name] for r in rows])) for name in FIGURES} for p, rows in each.items()}
        ratio = " ".join(f"{mean[OURS][n] / mean[OWN][n]:12.2f}" for n in FIGURES)
        lines.append(f"{'real':<12} {'ratio':<12} {ratio}")
        floor = [[r[n] / mean[OWN][n] for r in each[OWN]] for n in FIGURES]
        lines.append(
            f"{'noise floor':<12} {'own/own':<12} " + " ".join(f"{min(f):5.2f}–{max(f):.2f}" + " " for f in floor)
        )
    late = {p: float(np.mean([r["late"] for r in runs if r["policy"] == p] or [0.0])) for p in (OWN, OURS)}
    waited = float(np.mean([row["mean_wait"] for row in each[OWN]] or [0.0]))
    lines.append("")
    for policy in (OWN, OURS):
        again = [
            r["metrics"]["mean_wait"] / max(r["simulated"][OWN]["mean_wait"], 1e-9)
            for r in runs
            if r["policy"] == policy
        ]
        if again:
            said = ", ".join(f"{a:.2f}" for a in again)
            lines.append(f"{policy}: mean wait over that of {OWN} simulated on the same arrivals: {said}")
    lines.append(f"submissions were late by {late[OWN]:.0f} s ({OWN}) and {late[OURS]:.0f} s ({OURS})")
    if abs(late[OWN] - late[OURS]) > SOUND * waited:
        lines.append("NOT SOUND: the two orders did not see the same arrivals; take a slower clock or a quiet machine")
    lines.append(
        f"{'simulated':<12} {'ratio':<12} "
        + " ".join(f"{simulated[OURS][n] / max(simulated[OWN][n], 1e-9):12.2f}" for n in FIGURES)
    )
    return "\n".join(lines)


def main(trace: str, cluster: str, runs: str = "3", clock: str = "60", out: str = "", abreast: str = "1") -> None:
    prepared = prepare(read_trace(Path(trace)), read_cluster(cluster))
    simulated = predicted(prepared)
    made: list[dict[str, Any]] = []
    began = time.time()
    order = [policy for _ in range(int(runs)) for policy in (OWN, OURS)]
    with ThreadPoolExecutor(int(abreast)) as pool:
        for row in pool.map(lambda policy: one(prepared, policy, float(clock)), order):
            made.append(row)
            print(f"{time.time() - began:6.0f} s  {json.dumps(row)}", file=sys.stderr, flush=True)
            if out:
                value = {"trace": trace, "clock": float(clock), "simulated": simulated, "runs": made}
                Path(out).write_text(json.dumps(value, indent=1) + "\n")
    print(table(made, simulated))


if __name__ == "__main__":
    main(*sys.argv[1:])
