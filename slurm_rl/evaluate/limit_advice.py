"""The value of advice on time limits to all: replays jobs with limits that their users' finished jobs suggest."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_rl.controller.limit_advice import RunsAlike
from slurm_rl.kernel.arrays import Array
from slurm_rl_sim.forward import SiteRules
from slurm_rl_sim.replay import Contender, Prepared, Run, prepare, replay


@dataclass(frozen=True, slots=True)
class AdviceWorth:
    """Both replays, and what became of the jobs that were advised."""

    jobs: int
    advised: int
    before: dict[str, float]  # mean_wait, p95_wait, mean_bsld and the waits of those advised and the others
    after: dict[str, float]
    killed_by_advice: int  # advised jobs that would have run longer than they were told to ask for

    def as_value(self) -> dict[str, Any]:
        names = ("jobs", "advised", "before", "after", "killed_by_advice")
        return {name: getattr(self, name) for name in names}


def suggested_limits(prepared: Prepared, start: Array, end: Array) -> Array:
    """The limit that each job's user would have been told to ask for; the job's own where there is no advice.

    A job's advice knows runs that had ended when it was submitted, in the replay as it was.
    """
    jobs, volume = prepared.workload.jobs, prepared.workload.requests["volume"]
    size = np.floor(np.log2(np.maximum(volume[jobs["request"]], 1e-3))).astype(int)
    names = prepared.trace.job_name.codes
    limits = jobs["limit"].copy()
    runs: dict[tuple[int, ...], RunsAlike] = {}
    running: list[tuple[int, int]] = []
    for j in range(len(jobs)):
        now = int(jobs["submit"][j])
        while running and running[0][0] <= now:
            ended, k = heapq.heappop(running)
            for key in _keys(k, jobs, names, size):
                runs.setdefault(key, RunsAlike()).learn(int(jobs["submit"][k]), ended, float(ended - start[k]))
        for key in _keys(j, jobs, names, size):
            known = runs.get(key)
            if known is not None and len(known.latest) >= 10:
                advice = known.advise(int(limits[j]), "")
                if advice is not None:
                    limits[j] = advice.limit
                break
        if end[j] >= 0:
            heapq.heappush(running, (int(end[j]), j))
    return limits


def _keys(j: int, jobs: Array, names: Array, size: Array) -> list[tuple[int, ...]]:
    user = int(jobs["user"][j])
    general = (user, int(size[j]))
    return [(user, int(names[j]), int(size[j])), general] if names[j] >= 0 else [general]


def worth_of_advice(prepared: Prepared, site: SiteRules) -> AdviceWorth:
    """Replays a trace as it is and with suggested limits, under the same order and backfill rule."""
    contender = Contender(site.policy, site.backfill)
    weights = dict(site.weights) if site.weights else None
    (before,) = replay(prepared, [contender], placement=site.placement, influence=site.influence, weights=weights)
    limits = suggested_limits(prepared, before.result.start, before.result.end)
    advised = limits < prepared.workload.jobs["limit"]
    trace = replace(prepared.trace, time_limit=limits.astype(prepared.trace.time_limit.dtype))
    again = replace(prepare(trace, prepared.cluster), measured=prepared.measured)
    (after,) = replay(again, [contender], placement=site.placement, influence=site.influence, weights=weights)
    counted = advised & prepared.measured
    killed = int(np.sum(counted & (prepared.trace.run_time > limits)))
    told = int(prepared.measured.sum()), int(counted.sum())
    return AdviceWorth(*told, _figures(before, advised), _figures(after, advised), killed)


def _figures(run: Run, advised: Array) -> dict[str, float]:
    result = run.result
    counted = result.measured & result.ran
    figures = {name: float(run.metrics[name] or 0.0) for name in ("mean_wait", "p95_wait", "mean_bsld", "killed")}
    for name, who in (("wait_of_advised", counted & advised), ("wait_of_others", counted & ~advised)):
        figures[name] = float(result.wait[who].mean()) if who.any() else 0.0
    return figures
