"""What each key of a site's history is worth: replays of the past with it, and with none, on the same jobs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from slurm_rl.backfill.catalogue import RULES
from slurm_rl.domain.cluster import Cluster
from slurm_rl.evaluate.paired import replicate
from slurm_rl.policy.registry import PolicySpec
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.metrics import metrics
from slurm_rl_sim.replay import Prepared, prepare
from slurm_rl_sim.result import result_of
from slurm_rl_sim.simulation import ReplayState

NONE = "none"
ALL = "all"
_REPLICATES = 4


@dataclass(frozen=True, slots=True)
class KeysWorth:
    """Estimates and schedules with some keys; ratios are to those without any, with their standard errors."""

    keys: str
    jobs: int  # that have the key
    rank: float  # rank correlation of a job's estimate when it starts with its run time
    slowdown: float
    slowdown_error: float  # of its logarithm
    wait: float
    wait_error: float


def worth_of_keys(
    policy: PolicySpec,
    past: Trace,
    cluster: Cluster,
    backfill: str,
    *,
    replicates: int = _REPLICATES,
    seed: int = 0,
    on_progress: Callable[[str, float], None] | None = None,
) -> list[KeysWorth]:
    """One row for each key of the past, one for all together where there are several, and one for none."""
    sets = {
        NONE: (),
        **{name: (name,) for name in past.keys},
        **({ALL: tuple(past.keys)} if len(past.keys) > 1 else {}),
    }
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sets}
    for number in range(replicates):
        jittered = replicate(past, number, seed)
        for name, kept in sets.items():
            rows[name].append(_figures(prepare(jittered.with_keys(kept), cluster, seed=seed), policy, backfill))
        if on_progress is not None:
            on_progress("keys", (number + 1) / replicates)
    first = np.array(rows[NONE])
    found = []
    for name, own in rows.items():
        gain = np.array(own)[:, 1:] - first[:, 1:]
        error = gain.std(axis=0, ddof=1) / math.sqrt(replicates) if replicates > 1 else np.zeros(2)
        ratio = np.exp(gain.mean(axis=0))
        some = np.any([past.keys[k].codes >= 0 for k in sets[name]], axis=0).sum() if sets[name] else 0
        rank = float(np.mean([r[0] for r in own]))
        found.append(KeysWorth(name, int(some), rank, ratio[0], error[0], ratio[1], error[1]))
    return found


def _figures(case: Prepared, policy: PolicySpec, backfill: str) -> tuple[float, float, float]:
    """Rank correlation of estimates with run times, and the logarithms of mean slowdown and mean wait."""
    placement = RULES[backfill].placement
    simulation = ReplayState(case.workload, case.trace.run_time, policy, backfill=backfill, placement=placement)
    simulation.run()
    told = metrics(result_of(simulation, case.trace, case.measured))
    ran = simulation.world["live"]["start"] >= 0
    guess = pd.Series(simulation.world["live"]["expected"][ran]).rank()
    truth = pd.Series(case.trace.run_time[ran]).rank()
    slowdown, wait = float(told["mean_bsld"] or 1.0), float(told["mean_wait"] or 0.0)
    return float(guess.corr(truth)), math.log(slowdown), math.log(wait + 1.0)
