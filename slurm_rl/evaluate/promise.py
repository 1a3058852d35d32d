"""The costs and gains of the promise in replay: a policy with and without its supervisor.

Slurm's own order is replayed first; what it had done by a moment is all that the supervisor sees of it then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_rl.backfill.catalogue import RULES
from slurm_rl.domain.promise import Promise
from slurm_rl.domain.trust import LEAST, Trust, compared
from slurm_rl.kernel.arrays import Array
from slurm_rl.place.outside import find_placement
from slurm_rl.policy.registry import parse_policy
from slurm_rl_sim.metrics import metrics
from slurm_rl_sim.replay import Contender, Prepared, Run, replay
from slurm_rl_sim.result import Result, result_of
from slurm_rl_sim.simulation import ReplayState

_EVERY = 600  # seconds of simulated time from one look to the next
_MEMORY = 7 * 86_400  # seconds that a job counts after its submission, or as long as it waits


@dataclass(frozen=True, slots=True)
class SupervisedRun:
    """A supervised run: the share of pool-time without full influence, and how often it was lowered."""

    run: Run
    withheld: float
    lowered: int


def supervised(
    prepared: Prepared,
    contender: Contender,
    promise: Promise,
    own: Result,
    *,
    placement: str | None = None,
    influence: float = 1.0,
    weights: dict[str, float] | None = None,
) -> SupervisedRun:
    """Replays a policy whose influence on each pool follows the promise."""
    began = time.perf_counter()
    where = find_placement(placement or RULES[contender.backfill].placement)
    # A pool may be Slurm's own at any time, so no order is a fixed one and everybody's usage counts.
    policy = replace(contender.policy, starve_age=min(contender.policy.starve_age, 1e15))
    simulation = ReplayState(
        prepared.workload,
        prepared.trace.run_time,
        policy,
        backfill=contender.backfill,
        placement=where,
        influence=influence,
        weights=weights,
    )
    world = simulation.world
    world["track_usage"] = 1
    pool = prepared.workload.requests["pool"][prepared.workload.jobs["request"]]
    accounts = prepared.workload.jobs["account"]
    submit, count = prepared.trace.submit_time, len(world["pools"])
    trust: dict[tuple[str, int], Trust] = {("partition", p): Trust() for p in range(count)}
    now, last = int(submit[0]), int(submit[-1])
    looks = held = lowered = 0
    done = False
    while not done:
        now += _EVERY
        done = simulation.run(now)
        first, upto = np.searchsorted(submit, (now - _MEMORY, now))
        start = world["live"]["start"][:upto]
        rows = np.flatnonzero((np.arange(upto) >= first) | (start < 0))
        rows = rows[own.ran[rows]]
        if now > last + _MEMORY or not len(rows):
            continue
        ours = np.where(start[rows] >= 0, start[rows], now) - submit[rows]
        theirs = np.minimum(own.start[rows], now) - submit[rows]
        withheld = np.zeros(count)
        for kind in promise.groups:
            group = pool[rows] if kind == "partition" else accounts[rows]
            for g in np.unique(group).tolist():
                mine = group == g
                known = trust.setdefault((kind, int(g)), Trust())
                lowered += known.watch(promise, float(now), ours[mine], theirs[mine]) > 0
                for p in np.unique(pool[rows][mine]).tolist():
                    withheld[p] = max(withheld[p], known.withheld)
        world["pools"]["distrust"] = withheld
        looks, held = looks + count, held + int((withheld > 0).sum())
    result = result_of(simulation, prepared.trace, prepared.measured)
    seconds = time.perf_counter() - began
    name = f"{contender.policy.name}, promise"
    speed = len(prepared.trace) / max(seconds, 1e-9)
    run = Run(name, contender.backfill, where, metrics(result), seconds, speed, 0.0, result)
    return SupervisedRun(run, held / max(looks, 1), lowered)


def own_run(
    prepared: Prepared, backfill: str, placement: str | None = None, weights: dict[str, float] | None = None
) -> Run:
    """Slurm's own order on the same jobs."""
    return replay(prepared, [Contender(parse_policy("multifactor"), backfill)], placement=placement, weights=weights)[0]


def worst(result: Result, own: Result, kinds: Mapping[str, Array], names: Mapping[str, Any]) -> dict[str, Any]:
    """By kind of group: the one whose p99 and longest wait grew most against Slurm's own order."""
    picked = np.flatnonzero(result.measured & result.ran & own.ran)
    submit = result.trace.submit_time
    found: dict[str, Any] = {}
    for kind, of_job in kinds.items():
        rows = []
        for g in np.unique(of_job[picked]).tolist():
            mine = picked[of_job[picked] == g]
            if len(mine) < LEAST:
                continue
            ours, theirs = result.start[mine] - submit[mine], own.start[mine] - submit[mine]
            rows.append((compared("p99", ours, theirs), compared("max", ours, theirs), str(names[kind][g]), len(mine)))
        for place, figure in enumerate(("p99", "max")):
            if rows:
                top = max(rows, key=lambda row, place=place: row[place])  # type: ignore[misc]
                found[f"{kind} {figure}"] = {"name": top[2], "ratio": top[place], "jobs": top[3]}
    return found
