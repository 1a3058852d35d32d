"""`slurm_rl.Simulation`: a replay to step through by hand, from one scheduling pass to the next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slurm_rl.api.results import Results
from slurm_rl.backfill.catalogue import RULES
from slurm_rl.decide import in_order
from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import NEVER, Array
from slurm_rl.policy.catalogue import BY_USER, GIVEN
from slurm_rl.policy.named import policy_of
from slurm_rl.policy.queue import Queue, renew
from slurm_rl.policy.registry import PolicySpec
from slurm_rl.traces.trace import Trace
from slurm_rl_sim import state as st
from slurm_rl_sim.given import trace_and_cluster
from slurm_rl_sim.metrics import metrics
from slurm_rl_sim.replay import Run, prepare, window_of
from slurm_rl_sim.result import result_of
from slurm_rl_sim.simulation import ReplayState as Engine


class Simulation:
    """A trace on a cluster under one policy; `step()` makes one scheduling pass, `run()` all that are left.

    Without a policy, `step(order)` takes the order of the waiting jobs from its caller.
    """

    def __init__(
        self,
        trace: str | Path | Trace,
        cluster: str | Path | Cluster | None = None,
        policy: Any = None,
        *,
        backfill: str = "easy",
        placement: str | None = None,
        influence: float = 1.0,
        window: str | None = None,
        seed: int = 0,
    ) -> None:
        jobs, where = trace_and_cluster(trace, cluster)
        self.prepared = prepare(jobs, where, window=window_of(jobs, window), seed=seed)
        self.policy = PolicySpec("by hand", GIVEN, BY_USER) if policy is None else policy_of(policy)
        self.backfill, self.placement = backfill, placement or RULES[backfill].placement
        self._by_hand = policy is None
        self.engine = Engine(
            self.prepared.workload,
            self.prepared.trace.run_time,
            self.policy,
            backfill=backfill,
            placement=self.placement,
            influence=influence,
        )
        if self._by_hand:
            live, submit = self.engine.world["live"], self.engine.world["jobs"]["submit"]
            live["score"] = -submit.astype(float)
        self._row = {job: i for i, job in enumerate(self.prepared.trace.job_id.tolist())}

    @property
    def now(self) -> int:
        """The simulation's clock, in seconds as in the trace."""
        return self.engine.now

    def to_next_pass(self) -> bool:
        """Goes on to the next scheduling pass and stops before it; False at the end."""
        return self.engine.pass_due or self.engine.to_next_pass()

    def step(self, order: Sequence[Any] | None = None) -> bool:
        """Makes the next scheduling pass; False at the end. `order`: job ids, the first to run first."""
        if not self.to_next_pass():
            return False
        if order is not None:
            if not self._by_hand:
                raise InputError(f"the policy {self.policy.name} makes the order", remedy="leave the policy out")
            rows = [self.row(job) for job in order]
            self.engine.world["live"]["score"][rows] = 1e15 - np.arange(len(rows))
        self.engine.finish_pass()
        return True

    def run(self, until: int | None = None) -> bool:
        """Goes on to an instant, or to the end; whether the end was reached."""
        return self.engine.run(int(NEVER) - 1 if until is None else until)

    def row(self, job: Any) -> int:
        """Where a job stands in the tables."""
        if job not in self._row:
            raise InputError(f"no job {job!r} in {self.prepared.trace.name}")
        return self._row[job]

    @property
    def pending(self) -> pd.DataFrame:
        """The waiting jobs in the order of submission: user, request, submission, and expected run time."""
        rows = self._in_state(st.QUEUED)
        renew(self.engine.world.record, rows)
        queue = Queue(self.engine.world, self.now, rows)
        names = ("submit", "wait", "limit", "estimate", "gpus", "cpus", "mem_gb", "size")
        return self._frame(rows, {name: getattr(queue, name) for name in names})

    @property
    def running(self) -> pd.DataFrame:
        """The jobs that run, since when, and when their limits end."""
        rows = self._in_state(st.RUNNING)
        live = self.engine.world["live"][rows]
        return self._frame(rows, {"start": live["start"], "limit_ends": live["expected_end"]})

    def order(self) -> list[Any]:
        """The ids of the waiting jobs as the policy orders them at this moment, queue by queue."""
        world, found = self.engine.world, []
        for pool in world["pools"]:
            queue = world["queue"][int(pool["queue_first"]) : int(pool["queue_last"])].copy()
            if len(queue):
                rows = queue if world["fixed_order"] else in_order(world.record, float(self.now), queue)
                found += self.prepared.trace.job_id[rows].tolist()
        return found

    def results(self) -> Results:
        """Runs to the end, and gives what `replay` gives."""
        self.run()
        result = result_of(self.engine, self.prepared.trace, self.prepared.measured)
        told = self.engine.calls.figures() if self.engine.calls is not None else None
        run = Run(self.policy.name, self.backfill, self.placement, metrics(result), 0.0, 0.0, 0.0, result, outside=told)
        return Results(self.prepared, [run])

    def _in_state(self, state: int) -> Array:
        return np.flatnonzero(self.engine.world["live"]["state"] == state)

    def _frame(self, rows: Array, columns: dict[str, Array]) -> pd.DataFrame:
        trace = self.prepared.trace
        users = trace.user.take(rows).strings()
        return pd.DataFrame(columns | {"user": users}, index=pd.Index(trace.job_id[rows], name="job_id"))
