"""The result of a replay: the times and nodes of each job."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from slurm_rl.kernel.arrays import TYPE, Array
from slurm_rl.kernel.build import Workload
from slurm_rl.traces.trace import Trace
from slurm_rl_sim import state as st
from slurm_rl_sim.simulation import ReplayState

_TOO_MANY = "too many jobs were waiting or running when it was submitted: GrpSubmitJobs or MaxSubmitJobs"
STATE_NAMES = {st.COMPLETED: "COMPLETED", st.KILLED: "TIMEOUT", st.REJECTED: "REJECTED"}


@dataclass(frozen=True, slots=True)
class Result:
    """One row a job of the trace, in its order; `start` and `end` are -1 for a job that never ran.

    `log_first` and `log_count` point into `log`, whose records name a node (a row of `workload.nodes`) and the units
    of the job's request that it holds there; `log_more` says on how many nodes behind it holds the same.
    """

    trace: Trace
    workload: Workload
    start: Array
    end: Array
    state: Array  # COMPLETED, KILLED or REJECTED of slurm_rl_sim.state
    log_first: Array
    log_count: Array
    log: Array
    log_gpus: Array  # the GPUs of each record, as bits; empty unless GPUs of a node differ
    measured: Array  # bool: the jobs that metrics speak of
    rejected: dict[int, str]  # job -> why it never ran
    requeued: int
    latency_us: tuple[float, float]  # median and 99th percentile of a scheduling pass, NaN if unknown
    log_more: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # empty: each record is of one node

    @property
    def ran(self) -> Array:
        """Which jobs ran (bool)."""
        return self.start >= 0

    @property
    def wait(self) -> Array:
        """Seconds from submission to the start of the (last) run; -1 for a job that never ran."""
        return np.where(self.ran, self.start - self.trace.submit_time, -1)

    def entries(self) -> tuple[Array, Array, Array]:
        """Who ran where: (job, node, units), one row a pair."""
        job, node, units, count = self.runs()
        if not len(self.log_more):
            return job, node, units
        behind = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        return np.repeat(job, count), np.repeat(node, count) + behind, np.repeat(units, count)

    def runs(self) -> tuple[Array, Array, Array, Array]:
        """The same, nodes that are neighbours and alike in one row: (job, first node, units on each, nodes)."""
        job, at = self._rows()
        count = self.log_more[at] + 1 if len(self.log_more) else np.ones(len(at), dtype=np.int64)
        return job, self.log["node"][at].astype(np.int64), self.log["units"][at].astype(np.int64), count

    def gpu_types(self) -> tuple[Array, Array]:
        """GPU types that jobs ran on: (job, type), one row a pair; a job without GPUs has its nodes' first types."""
        job, at = self._rows()
        node = self.log["node"][at].astype(np.int64)
        kind = self.workload.nodes["type"][node]
        if not self.workload.mixed:
            return job, kind
        devices = self.workload.devices[self.workload.node_class[node], :, TYPE]
        held = (self.log_gpus[at][:, None] >> np.arange(devices.shape[1])[None, :] & 1) == 1
        row, slot = np.nonzero(held & (devices >= 0))
        none = ~held.any(axis=1)
        return np.concatenate([job[row], job[none]]), np.concatenate([devices[row, slot], kind[none]])

    def _rows(self) -> tuple[Array, Array]:
        jobs = np.flatnonzero(self.ran)
        count = self.log_count[jobs]
        job = np.repeat(jobs, count)
        offset = np.arange(len(job)) - np.repeat(np.cumsum(count) - count, count)
        return job, np.repeat(self.log_first[jobs], count) + offset


def result_of(simulation: ReplayState, trace: Trace, measured: Array) -> Result:
    """Reads a finished simulation; jobs still in a queue never fitted."""
    live = simulation.world["live"]
    rejected = dict(simulation.workload.rejected)
    left = np.flatnonzero(live["state"] == st.QUEUED)
    lost = "its reservation was over, or " * ("kept" in simulation.workload.site)
    rejected.update(dict.fromkeys(left.tolist(), f"waited to the end: {lost}the nodes it needs did not come back"))
    turned_away = np.flatnonzero(live["state"] == st.REJECTED)
    rejected = dict.fromkeys(turned_away.tolist(), _TOO_MANY) | rejected
    state = live["state"].copy()
    state[left] = st.REJECTED
    ran = (state == st.COMPLETED) | (state == st.KILLED)
    return Result(
        trace,
        simulation.workload,
        np.where(ran, live["start"], -1),
        np.where(ran, live["end"], -1),
        state.astype(np.int8),
        live["log_first"].copy(),
        live["log_count"].astype(np.int64),
        simulation.world["log"],
        simulation.world["log_gpus"],
        measured,
        rejected,
        int(simulation.world["requeued"]),
        _latency(simulation),
        simulation.world["log_more"],
    )


def _latency(simulation: ReplayState) -> tuple[float, float]:
    counts = simulation.world["latency"]
    total = int(counts.sum())
    if total == 0 or simulation.cycles_per_second <= 0:
        return float("nan"), float("nan")
    bucket = np.arange(len(counts))
    power = bucket // 8
    # The middle of a bucket: eight to each power of two cycles, single cycles below eight.
    middle = np.where(bucket < 8, bucket, 2.0**power * (1 + (bucket % 8 + 0.5) / 8))
    cumulated = np.cumsum(counts) / total
    cycles = [float(middle[int(np.searchsorted(cumulated, q))]) for q in (0.5, 0.99)]
    return cycles[0] / simulation.cycles_per_second * 1e6, cycles[1] / simulation.cycles_per_second * 1e6
