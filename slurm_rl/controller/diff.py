"""The difference between the queue as it is and as decided: SiteFactors to write, the head of the queue first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_rl.controller.assign import assign, steadily, tolerated
from slurm_rl.controller.slurm_snapshot import LiveQueue
from slurm_rl.domain.snapshot import Plan
from slurm_rl.kernel.arrays import Array
from slurm_rl.obs.journal import Change


def wanted_factors(queue: LiveQueue, plan: Plan, bound: int, top: int, site: Array, writes: int | None = None) -> Array:
    """The SiteFactor of every job, such that Slurm's order of each queue becomes the plan's for its first `top` jobs.

    `site` holds the present factors. Jobs beyond the first ones get none, and the first ones stay above them. Where
    more than `writes` changes of a queue would be needed, its head comes first. Jobs that stand near their place stay.
    """
    wanted = np.zeros(len(queue.jobs), dtype=np.int64)
    order = np.array(plan.order, dtype=np.int64)
    for line in np.unique(queue.line[order]).tolist() if len(order) else []:
        mine = order[queue.line[order] == line]
        head, rest = _as_they_stand(queue, plan, mine[:top], site), mine[top:]
        base = queue.base[head]
        low = np.maximum(-bound, np.minimum(0, queue.floor - base))
        if len(rest):
            low = np.minimum(np.maximum(low, int(queue.base[rest].max()) + 1 - base), bound)
        high = np.full(len(head), bound, dtype=np.int64)
        wanted[head] = assign(base.tolist(), site[head].tolist(), low.tolist(), high.tolist(), writes)
    return wanted


def _as_they_stand(queue: LiveQueue, plan: Plan, jobs: Array, site: Array) -> Array:
    """The jobs in decided order, but for those that stand near enough to it."""
    now = (queue.base + site)[jobs]
    ids = np.array([queue.jobs[j].job_id for j in jobs.tolist()])
    stands = np.empty(len(jobs), dtype=np.int64)
    stands[np.lexsort((ids, -now))] = np.arange(len(jobs))
    starting = {s.job for s in plan.starts}
    exact = max((place + 1 for place, j in enumerate(jobs.tolist()) if j in starting), default=0)
    return jobs[tolerated(stands.tolist(), exact)]


def changes(queue: LiveQueue, plan: Plan, wanted: Array, site: Array) -> list[tuple[int, Change]]:
    """(index, change) of every job whose factor is not as wanted, in the plan's order."""
    found = []
    order = np.array(plan.order, dtype=np.int64)
    for rank in np.flatnonzero(site[order] != wanted[order]).tolist():
        j = plan.order[rank]
        job, why = queue.jobs[j], str(plan.reasons[rank])
        found.append((j, Change(job.job_id, job.submit_time or 0, int(site[j]), int(wanted[j]), why)))
    # Jobs that only lose their factor come last: they are far behind in the queue.
    return sorted(found, key=lambda item: item[1].new == 0)


def in_safe_write_order(batch: Sequence[tuple[int, Change]]) -> list[tuple[int, Change]]:
    """The changes in the order in which they are written: writing takes seconds, and may be stopped."""
    order = steadily([c.new for _, c in batch], [c.old or 0 for _, c in batch])
    return [batch[i] for i in order]
