"""Does the gain hold in reality? Two workloads on a real slurmctld, by Slurm's own order and with slurm-rl enforcing.

Each run has a lab of its own (needs root, and a quiet machine). The orders take turns, so that both see the same
neighbours. Runs that are done are kept in a file and not made again; what the simulator predicts stands beside them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl.lab.replay import Options, RealRun, replay_on_lab
from slurm_rl.studies.places import public
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Trace, make_trace
from slurm_rl_sim.replay import Prepared, parse_contenders, prepare, replay

OWN, OURS = "multifactor", "rl:default"
CLOCK = 30.0  # so that a tick, a second of real time, is half a minute of the lab's
INFLUENCE = 0.5  # as shipped
WEIGHTS = {"age": 1000.0, "fairshare": 0.0, "job_size": 0.0, "partition": 0.0, "qos": 0.0, "tres": 0.0}
LATE = 0.05  # of the mean wait: a run whose submissions were later than that on average does not count
FIGURES = ("mean_wait", "mean_bsld", "p99_wait", "max_wait")
_JOBS, _BUSY, _LOAD = 110, 4200.0, 2.1  # jobs, seconds of work for the whole cluster, and how fast it is offered
_SHORTEST, _LONGEST = 20, 1500
_START = 40.0  # real seconds for a lab and its service to come and go


def mixed() -> tuple[Trace, Cluster]:
    """Generated: twelve users with habits, one to eight GPUs, some of one type, on A100 and T4 nodes."""
    cluster = Cluster("mixed", (NodeClass(2, "A100", 8, 64, mem_gb=256.0), NodeClass(2, "T4", 4, 32, mem_gb=128.0)))
    rng = np.random.default_rng(1)
    user = rng.integers(0, 12, _JOBS)
    usual = rng.lognormal(np.log(150.0), 0.9, 12)
    gpus = rng.choice([1, 2, 4, 8], _JOBS, p=[0.5, 0.2, 0.2, 0.1])
    kind = np.where(gpus == 8, "A100", rng.choice(["", "A100", "T4"], _JOBS, p=[0.4, 0.3, 0.3]))
    return _trace("mixed", usual[user] * rng.lognormal(0.0, 0.6, _JOBS), gpus, kind, user, cluster, rng), cluster


def venus() -> tuple[Trace, Cluster]:
    """Consecutive jobs of Helios Venus, run times and arrivals scaled to four nodes: of its busiest tenth most users.

    The very busiest stretch is one user's hundred equal jobs, whose order does not matter.
    """
    cluster = Cluster("four nodes of Venus", (NodeClass(4, "V100", 8, 48, mem_gb=256.0),))
    whole = read_trace(public() / "helios_venus_sept2020.csv.gz")
    keep = np.flatnonzero((whole.num_gpus >= 1) & (whole.num_gpus <= 8) & (whole.run_time >= 60))
    gaps = whole.submit_time[keep[_JOBS:]] - whole.submit_time[keep[:-_JOBS]]
    busy = np.flatnonzero(gaps <= np.quantile(gaps, 0.1))
    users = [len(np.unique(whole.user.codes[keep[i : i + _JOBS]])) for i in busy.tolist()]
    first = int(busy[np.argmax(users)])
    taken = whole.take(keep[first : first + _JOBS])
    rng = np.random.default_rng(2)
    run = np.minimum(taken.run_time, 24 * 3600.0) ** 0.6  # hours become minutes, and the order stays
    return _trace("venus", run, taken.num_gpus.astype(int), np.full(_JOBS, ""), taken.user.codes, cluster, rng), cluster


def _trace(
    name: str, run: Array, gpus: Array, kind: Array, user: Array, cluster: Cluster, rng: np.random.Generator
) -> Trace:
    """Jobs whose work keeps the cluster busy for a given time, offered twice as fast as it can be done."""
    for _ in range(20):  # cut, and scaled to the wanted work
        run = np.clip(run * (_BUSY * cluster.gpus) / float((run * gpus).sum()), _SHORTEST, _LONGEST)
    run = np.round(run).astype(np.int64)
    limit = np.ceil(run * rng.uniform(1.2, 4.0, len(run)) / 60.0).astype(np.int64) * 60 + 60
    submit = np.sort(rng.uniform(0.0, _BUSY / _LOAD, len(run))).astype(np.int64)
    return make_trace(
        name,
        submit,
        run_time=run.tolist(),
        time_limit=limit.tolist(),
        num_gpus=gpus.tolist(),
        gpu_type=kind.tolist(),
        num_nodes=[1] * len(run),
        cpus=(2 * gpus).tolist(),
        mem_gb=(4 * gpus).tolist(),
        user=[f"u{u}" for u in user.tolist()],
    )


WORKLOADS = {"mixed": mixed, "venus": venus}


def predicted(prepared: Prepared) -> dict[str, dict[str, float]]:
    """What the simulator says of both orders."""
    found = {}
    for policy in (OWN, OURS):
        (run,) = replay(prepared, parse_contenders([policy], "slurm"), influence=INFLUENCE, weights=WEIGHTS)
        found[policy] = {name: float(run.metrics[name] or 0.0) for name in FIGURES}
    return found


def one(prepared: Prepared, policy: str, clock: float) -> dict[str, Any]:
    """One real run, with what the simulator says of the same arrivals and run lengths."""
    before, began = os.getloadavg()[0], time.time()
    made: RealRun = replay_on_lab(prepared, policy, Options(clock=clock, influence=INFLUENCE, weights=WEIGHTS))
    metrics = {name: made.run.metrics[name] for name in (*FIGURES, "jobs", "completed", "killed", "rejected")}
    return {
        "policy": policy,
        "clock": made.clock,
        "metrics": metrics,
        "ticks": made.ticks,
        "updates": made.updates,
        "tick_seconds": made.tick,
        "late": made.late,
        "sound": made.late <= LATE * float(metrics["mean_wait"] or 0.0),
        "simulated": predicted(made.prepared),
        "machine_load": [before, os.getloadavg()[0]],
        "real_seconds": time.time() - began,
    }


def table(name: str, runs: list[dict[str, Any]], simulated: dict[str, dict[str, float]]) -> str:
    """A table in Markdown: every run, means, ratios with the noise of own against own, and the prediction."""
    lines = [
        f"| {name} | mean wait | BSLD | p99 wait | longest | late by | ticks | updates |",
        "|---|---|---|---|---|---|---|---|",
    ]
    each: dict[str, list[dict[str, float]]] = {OWN: [], OURS: []}
    for policy in (OWN, OURS):
        for number, run in enumerate((r for r in runs if r["policy"] == policy), 1):
            m = run["metrics"]
            if run["sound"]:
                each[policy].append(m)
            mark = "" if run["sound"] else " (submissions late: does not count)"
            figures = f"{m['mean_wait']:.0f} s | {m['mean_bsld']:.2f} | {m['p99_wait']:.0f} s | {m['max_wait']:.0f} s"
            counts = f"{run['late']:.0f} s | {run['ticks']} | {run['updates']}"
            lines.append(f"| {policy}, run {number}{mark} | {figures} | {counts} |")
    if all(each.values()):
        mean = {p: {n: float(np.mean([m[n] for m in rows])) for n in FIGURES} for p, rows in each.items()}
        ratio = " | ".join(f"×{mean[OURS][n] / mean[OWN][n]:.2f}" for n in FIGURES)
        lines.append(f"| **{OURS} to {OWN}, real** | {ratio} | | | |")
        noise = [[m[n] / mean[OWN][n] for m in each[OWN]] for n in FIGURES]
        lines.append(
            f"| noise: {OWN} to its mean | " + " | ".join(f"{min(f):.2f}–{max(f):.2f}" for f in noise) + " | | | |"
        )
    said = " | ".join(f"×{simulated[OURS][n] / max(simulated[OWN][n], 1e-9):.2f}" for n in FIGURES)
    lines.append(f"| {OURS} to {OWN}, simulated | {said} | | | |")
    return "\n".join(lines)


def _missing(done: dict[str, list[dict[str, Any]]], names: tuple[str, ...], runs: int) -> Iterator[tuple[str, str]]:
    """Runs to make next, in turns; a run that does not count is made again."""
    for number in range(1, runs + 1):
        for name in names:
            for policy in (OWN, OURS):
                while sum(r["policy"] == policy and r["sound"] for r in done.get(name, [])) < number:
                    yield name, policy


def main(
    runs: str = "3",
    minutes: str = "60",
    out: str = "out/reality.json",
    workloads: str = "mixed,venus",
    clock: str = f"{CLOCK:g}",
) -> None:
    """Makes the runs that are still missing, as far as the time goes, and prints the tables."""
    if os.geteuid() != 0:
        raise InputError("reality starts its own labs, which needs root", remedy="sudo slurm-rl study reality")
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path.is_file() else {}
    until = time.monotonic() + 60.0 * float(minutes)
    prepared = {name: prepare(*WORKLOADS[name]()) for name in workloads.split(",")}
    simulated = {name: predicted(p) for name, p in prepared.items()}
    for name, policy in _missing(done, tuple(prepared), int(runs)):
        rows = done.setdefault(name, [])
        took = [r["real_seconds"] for r in rows] or [1.6 * _BUSY / float(clock) + _START]
        if time.monotonic() + max(took) > until:
            print(f"no time left for {name}, {policy}: call again", file=sys.stderr, flush=True)
            break
        rows.append(one(prepared[name], policy, float(clock)))
        path.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {json.dumps(rows[-1])}", file=sys.stderr, flush=True)
    for name in prepared:
        print(table(name, done.get(name, []), simulated[name]) + "\n")
