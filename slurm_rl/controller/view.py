"""What a tick shows of the queue, and what would move a job in it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from slurm_rl.controller.observe import View
from slurm_rl.controller.policy import LivePolicy
from slurm_rl.controller.scores import own_scores
from slurm_rl.decide import Guardrails
from slurm_rl.domain.arrays import Array
from slurm_rl.domain.snapshot import Plan, Snapshot
from slurm_rl.obs.queue import JobView, QueueView
from slurm_rl.policy.heuristics import BY_USER
from slurm_rl.slurm.model import SlurmJob
from slurm_rl.slurm.text import setting


def queue_view(
    view: View, plan: Plan, wanted: Array, bound: int, number: int, mode: str, policy: LivePolicy
) -> QueueView:
    """All pending jobs with their places, reasons and expected starts."""
    starts = _expected_starts(view, plan)
    scores = own_scores(view, plan, policy)
    ranks: dict[int, int] = {}
    sizes = {int(q): int(n) for q, n in zip(*np.unique(view.queue[list(plan.order)], return_counts=True), strict=True)}
    rows = []
    for position, j in enumerate(plan.order):
        queue = int(view.queue[j])
        rank = ranks[queue] = ranks.get(queue, -1) + 1
        job, reason = view.jobs[j], plan.reasons[position]
        own = reason if reason.promoted or reason.fallback else replace(reason, score=float(scores[position]))
        estimate, spread = float(view.estimate[j]), float(view.spread[j])
        limit = int(view.snapshot.world["jobs"]["limit"][j])
        expected, low, high = starts[j]
        rows.append(
            _row(
                job,
                view.now,
                limit=limit,
                rank=rank,
                of=sizes[queue],
                score=float(scores[position]),
                why=str(replace(own, rank=rank, of=sizes[queue])),
                promoted=reason.promoted,
                estimate=estimate,
                estimate_range=(estimate * math.exp(-spread), min(estimate * math.exp(spread), float(limit))),
                wanted=int(wanted[j]),
                expected_start=expected,
                expected_range=(low, high),
            )
        )
    rows += [
        _row(job, view.now, limit=job.time_limit or 0, why=view.left_alone[job.job_id])
        for job in view.state.jobs
        if job.job_id in view.left_alone
    ]
    return QueueView(
        time=view.state.taken,
        tick=number,
        cluster=view.state.cluster,
        mode=mode,
        policy=policy.name,
        model=policy.model,
        bound=bound,
        private="jobs" in setting(view.state.config, "PrivateData").lower(),
        jobs=tuple(rows),
        by_id={row.job_id: row for row in rows},
    )


def _row(
    job: SlurmJob,
    now: int,
    *,
    limit: int,
    rank: int = -1,
    of: int = 0,
    score: float = 0.0,
    why: str = "",
    promoted: bool = False,
    estimate: float = 0.0,
    estimate_range: tuple[float, float] = (0.0, 0.0),
    wanted: int = 0,
    expected_start: float | None = None,
    expected_range: tuple[float, float] | None = None,
) -> JobView:
    f = job.factors
    names = ("age", "assoc", "fairshare", "job_size", "partition", "qos", "tres", "nice", "site", "priority")
    return JobView(
        job_id=job.job_id,
        submit_time=job.submit_time or 0,
        user=job.user,
        account=job.account,
        name=job.name,
        partition=job.partitions[0] if job.partitions else "",
        gpus=job.gpu_count,
        nodes=job.nodes,
        time_limit=limit,
        rank=rank,
        of=of,
        score=score if math.isfinite(score) else 0.0,
        why=why,
        promoted=promoted,
        wait=max(0, now - (job.submit_time or now)),
        estimate=estimate,
        estimate_range=estimate_range,
        site_factor=job.site_factor,
        wanted=wanted,
        slurm_factors={name: getattr(f, name) for name in names} if f else {},
        expected_start=expected_start,
        expected_range=expected_range,
        slurm_start=job.start_time,
    )


def _expected_starts(view: View, plan: Plan) -> dict[int, tuple[float, float, float]]:
    """When each job may start: now if it fits, else when the work before it is done on the whole pool.

    The lower end takes every estimate at one deviation less, the upper end every job at its limit.
    """
    world = view.snapshot.world
    jobs, shapes, pools = world["jobs"], world["shapes"], world["pools"]
    volume = shapes["volume"][jobs["request"]]
    pool_of = shapes["pool"][jobs["request"]]
    capacity = np.maximum(pools["volume"], 1e-9)
    limit = jobs["limit"].astype(np.float64)
    best = np.minimum(view.estimate * np.exp(-view.spread), limit)
    now = float(view.now)
    ahead = np.zeros((len(pools), 3))
    running = world["live"]["held"] > 0
    ran = now - world["live"]["start"]
    for j in np.flatnonzero(running).tolist():
        for k, total in enumerate((view.estimate[j], best[j], limit[j])):
            ahead[pool_of[j], k] += volume[j] * max(total - ran[j], 0.0)
    starting = {s.job for s in plan.starts}
    found = {}
    for j in plan.order:
        p = pool_of[j]
        if j in starting:
            found[j] = (now, now, now)
        else:
            expected, low, high = (now + float(a) / float(capacity[p]) for a in ahead[p])
            found[j] = (expected, min(low, expected), max(high, expected))
        ahead[p] += volume[j] * np.array([view.estimate[j], best[j], limit[j]])
    return found


def what_if(view: View, plan: Plan, policy: LivePolicy, guardrails: Guardrails, job_id: int) -> list[dict[str, object]]:
    """Where a job would stand with a shorter limit, fewer GPUs, or after another hour of waiting."""
    j = next((i for i in plan.order if view.jobs[i].job_id == job_id), None)
    if j is None:
        return []
    place = _place(view, plan, j)
    found: list[dict[str, object]] = []

    def ask(what: str, snapshot: Snapshot) -> None:
        moved = _place(view, policy.plan(snapshot, guardrails, dict(view.weights)), j)
        if moved != place:
            found.append({"what": what, "rank": moved, "from": place})

    limit = int(view.snapshot.world["jobs"]["limit"][j])
    for shorter in (limit // 2, max(int(view.estimate[j] * 1.2), 60)):
        if 60 <= shorter < limit:
            world = view.snapshot.world.copy()
            world["jobs"]["limit"][j] = shorter
            if policy.spec.source == BY_USER:
                world["live"]["version"][j] = -1  # to be estimated anew
            else:
                world["live"]["expected"][j] = shorter
            ask(
                f"a time limit of {max(shorter // 60, 1)} min instead of {limit // 60}",
                Snapshot(view.now, world, view.snapshot.pending),
            )
    world = view.snapshot.world.copy()
    row = int(world["jobs"]["request"][j])
    shapes = np.concatenate([world["shapes"], world["shapes"][row : row + 1]])
    shapes["volume"][-1] /= 2
    shapes["units"][-1] = max(int(shapes["units"][-1]) // 2, 1)
    world["shapes"] = shapes
    world["jobs"]["request"][j] = len(shapes) - 1
    ask("half of the GPUs (or CPUs)", Snapshot(view.now, world, view.snapshot.pending))
    ask(
        "another hour of waiting, others likewise",
        Snapshot(view.now + 3600, view.snapshot.world, view.snapshot.pending),
    )
    return found


def _place(view: View, plan: Plan, j: int) -> int:
    """The job's place among those it competes with, from 1."""
    mine = [i for i in plan.order if view.queue[i] == view.queue[j]]
    return mine.index(j) + 1
