"""Does choosing among policies pay? `meta:meta` and the bandits against each member, in pairs: docs/agents.md.

slurm-rl study meta [RUNS] [WORKLOAD,…]     workloads: regimes perturbed venus itp ricc hetero
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from slurm_rl.bench.statistics import Interval, ratio
from slurm_rl.bench.training import real_workloads, windows
from slurm_rl.errors import unknown_name
from slurm_rl.evaluate.goals import price
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.meta import DEFAULT_SET
from slurm_rl.policy.registry import parse_policy
from slurm_rl.studies.decision import CHOOSERS
from slurm_rl.studies.places import VARIABLE
from slurm_rl.traces.perturb import KINDS, Step, perturb
from slurm_rl.train.meta_scenes import META_GOALS, meta_logs, meta_reference, meta_scene
from slurm_rl.train.scenes import TrainingScene
from slurm_rl_sim.replay import prepare

WORKLOADS = ("regimes", "perturbed", "venus", "itp", "ricc", "hetero")
_REFERENCE = "sjf-age@user"
_JOBS, _STRETCH = 400, 1000  # of a regime, and of a stretch of a trace (as many before it fill the cluster)
_LEAST_WAIT = 10.0  # seconds, on average: where nobody waits, all members are alike
# Seeds that no training and no validation draws from.
_REGIMES, _PERTURBED = 3_000_000_019, 4_000_000_007
_LEVEL = {"burst": 2.0}  # of a perturbation; others: 0.3
_NOTHING = 0.005  # distance to the best member of each run below which there is nothing to close


def main(*arguments: str) -> None:
    """Prints a table for each workload."""
    runs = int(arguments[0]) if arguments else 60
    wanted = arguments[1].split(",") if len(arguments) > 1 else list(WORKLOADS)
    for name in wanted:
        if name not in WORKLOADS:
            raise unknown_name("workload", name, WORKLOADS)
    print(f"Score: geometric mean of {', '.join(META_GOALS)} as ratios to {_REFERENCE}; less is better.")
    print("Ratio: to the member that is best on average. Closes: of the distance from it to the best of each run.")
    for name in wanted:
        _table(name, runs)


def _table(where: str, runs: int) -> None:
    names = (*DEFAULT_SET, *CHOOSERS)
    policies, reference = [parse_policy(n) for n in names], parse_policy(_REFERENCE)
    found = []
    for scene in _scenes(where, runs):
        before = meta_reference(scene, reference)
        if before.figures["wait"] > _LEAST_WAIT:
            found.append([price(meta_logs(scene, before, p), META_GOALS) for p in policies])
    if not found:
        print(f"\n{where}: nobody waits in these runs")
        return
    logs: Array = np.array(found)
    members = logs[:, : len(DEFAULT_SET)]
    best, first = members.min(axis=1), int(members.mean(axis=0).argmin())
    distance = float(members[:, first].mean() - best.mean())
    print(f"\n{where}: {len(logs)} runs; best member {names[first]} {math.exp(members[:, first].mean()):.3f}, best of "
          f"each run {math.exp(best.mean()):.3f}")  # fmt: skip
    print(f"{'policy':<18} {'score':>6}  {'ratio to the best member':<24} closes")
    for k, name in enumerate(names):
        own = ratio(np.exp(logs[:, k]).tolist(), np.exp(logs[:, first]).tolist())
        closes = 1.0 - (float(logs[:, k].mean()) - float(best.mean())) / max(distance, 1e-9)
        told = "nothing to close" if distance < _NOTHING else f"{closes:+.2f}"
        print(f"{name:<18} {math.exp(logs[:, k].mean()):>6.3f}  {_cell(own):<24} {told}", flush=True)


def _cell(own: Interval) -> str:
    return f"{own.value:.3f} [{own.low:.3f}, {own.high:.3f}]"


def _scenes(where: str, runs: int) -> Iterator[TrainingScene]:
    """Workloads that nobody was trained on: held-out regimes, the same perturbed, or stretches of a real trace."""
    if where == "regimes":
        yield from (meta_scene([], _REGIMES + i, jobs=_JOBS, sites=0.0, held_out=True) for i in range(runs))
    elif where == "perturbed":
        yield from islice(_perturbed(), runs)
    else:
        workloads = real_workloads(os.environ.get(VARIABLE))
        if where not in workloads:
            print(f"\n{where}: its trace is not in the folder")
            return
        for _, _, trace, cluster, span in windows({where: workloads[where]}, max(runs // 4, 2), _STRETCH):
            yield TrainingScene(where, prepare(trace, cluster, window=span), "easy")


def _perturbed() -> Iterator[TrainingScene]:
    """Held-out regimes, each distorted in one way, in turn."""
    kinds, i = list(KINDS), 0
    while True:
        scene = meta_scene([], _PERTURBED + i, jobs=_JOBS, sites=0.0, held_out=True)
        kind = kinds[i % len(kinds)]
        trace = perturb(scene.prepared.trace, [Step(kind, _LEVEL.get(kind, 0.3))], seed=i)
        prepared = prepare(trace, scene.prepared.cluster, seed=i)
        measured = np.arange(len(prepared.trace)) >= 0.1 * len(prepared.trace)
        yield replace(scene, prepared=replace(prepared, measured=measured))
        i += 1
