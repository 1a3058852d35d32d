"""Keeps the promise: simulates Slurm's own order and withholds influence before a partition or account loses.

Once a minute the queue is simulated forward from its present state, once as we order it and once in Slurm's own order.
What Slurm's own order would have given a job is what it foretells when the job is first seen: later states are already
of our making. Against that stand the waits that jobs have had, or are foretold to have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_rl.controller.explain.live_scene import starts_in_order
from slurm_rl.controller.slurm_snapshot import LiveQueue
from slurm_rl.domain.promise import FIGURES, Promise
from slurm_rl.domain.snapshot import Plan
from slurm_rl.domain.trust import Trust
from slurm_rl.kernel.arrays import Array
from slurm_rl.obs.metrics import Metrics

EVERY = 60.0  # seconds from one look to the next
_SAID = {computed: said for said, computed in FIGURES.items()}
_TOP = 2000  # jobs at the head of the order: those behind them start far in the future
_DRAWS = 3  # of run times, for each order
_MEMORY = 7 * 86_400.0  # seconds that a job counts after it was submitted, or as long as it waits


@dataclass(slots=True)
class _Foretold:
    """A job whose wait under Slurm's own order was foretold."""

    partition: str
    account: str
    submit: float
    own: float  # seconds
    ours: float


class Supervisor:
    """Watches the gap to Slurm's own order, by partition and account, and says how much influence each pool loses."""

    def __init__(self, promise: Promise, metrics: Metrics) -> None:
        self.promise, self._metrics = promise, metrics
        self.trust: dict[tuple[str, str], Trust] = {}
        self._seen: dict[int, _Foretold] = {}
        self._looked = -np.inf

    def withhold(self, queue: LiveQueue) -> None:
        """Tells the snapshot's pools how much influence they withhold: what their worst partition or account needs."""
        if not self.promise:
            return
        world = queue.snapshot.world
        pools = world["requests"]["pool"][world["jobs"]["request"]]
        for j in queue.snapshot.pending.tolist():
            lost = self._withheld(queue, j)
            world["pools"]["distrust"][pools[j]] = max(lost, world["pools"]["distrust"][pools[j]])

    def _withheld(self, queue: LiveQueue, j: int) -> float:
        job = queue.jobs[j]
        keys = (("partition", job.partitions[0]), ("account", job.account))
        return max((self.trust[k].withheld for k in keys if k in self.trust), default=0.0)

    def handed_back(self, queue: LiveQueue) -> Array:
        """The waiting jobs of pools in which Slurm's own order rules: they keep no factor of ours."""
        world = queue.snapshot.world
        pending = queue.snapshot.pending
        pools = world["requests"]["pool"][world["jobs"]["request"][pending]]
        found: Array = pending[world["pools"]["distrust"][pools] >= 1.0]
        return found

    def watch(self, queue: LiveQueue, plan: Plan, now: float) -> list[str]:
        """Looks, once a minute; what has changed, in words."""
        if not self.promise or now - self._looked < EVERY:
            return []
        self._looked = now
        self._foretell(queue, plan)
        said = []
        jobs = list(self._seen.values())
        for kind in self.promise.groups:
            names = [getattr(job, kind) for job in jobs]
            for name in sorted(set(names)):
                mine = [job for job, of in zip(jobs, names, strict=True) if of == name]
                trust = self.trust.setdefault((kind, name), Trust())
                ours, own = (np.array([getattr(job, which) for job in mine]) for which in ("ours", "own"))
                change = trust.watch(self.promise, now, ours, own)
                for figure, gap in trust.gaps.items():
                    self._metrics.promise_gap.labels(kind, name, figure).set(gap)
                if kind == "partition":
                    self._metrics.withheld.labels(name).set(trust.withheld)
                if change:
                    worst = max(trust.gaps, key=lambda figure: trust.gaps[figure])
                    what = "lowered" if change > 0 else "raised"
                    share = 1 - trust.withheld
                    said.append(
                        f"promise: influence on {kind} {name} {what} to {share:.0%}: {_SAID[worst]} wait is at "
                        f"{trust.gaps[worst]:.0%} of the promise"
                    )
        return said

    def _foretell(self, queue: LiveQueue, plan: Plan) -> None:
        """Renews what is known of each job's wait, in both orders."""
        now = float(queue.now)
        waiting = set()
        if len(plan.order):
            own_order = sorted(plan.order, key=lambda j: (-int(queue.base[j]), j))
            own = self._starts(queue, replace(plan, order=tuple(own_order)))
            ours = self._starts(queue, plan)
            for j in plan.order:
                job = queue.jobs[j]
                submit = float(job.submit_time or now)
                waiting.add(job.job_id)
                foretold = max(ours.get(j, now), now) - submit
                known = self._seen.get(job.job_id)
                if known is None:
                    first = max(own.get(j, now), now) - submit
                    self._seen[job.job_id] = _Foretold(job.partitions[0], job.account, submit, first, foretold)
                else:
                    known.ours = foretold
        for j in np.flatnonzero(queue.snapshot.world["live"]["held"] > 0).tolist():
            known, began = self._seen.get(queue.jobs[j].job_id), queue.jobs[j].start_time
            if known is not None and began:
                known.ours = float(began) - known.submit
        for job_id in [i for i, s in self._seen.items() if i not in waiting and now - s.submit > _MEMORY]:
            del self._seen[job_id]

    @staticmethod
    def _starts(queue: LiveQueue, plan: Plan) -> dict[int, float]:
        return starts_in_order(queue, plan.order[:_TOP], _DRAWS)

    def shown(self) -> dict[str, Any]:
        """The promise and how it stands, for the API and the dashboard."""
        rows = [
            {"kind": kind, "name": name, "withheld": trust.withheld, "of_promise": dict(trust.gaps)}
            for (kind, name), trust in sorted(self.trust.items())
        ]
        return {"promise": str(self.promise), "groups": rows}
