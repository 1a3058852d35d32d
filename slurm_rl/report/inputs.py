"""The report's view of a replay, as protocols: the simulator's types fit without an import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from slurm_rl.domain.cluster import Cluster
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.build import Workload
from slurm_rl.traces.trace import Trace


class ReportedTrace(Protocol):
    """A trace on a cluster; `measured` says which jobs the figures speak of."""

    @property
    def trace(self) -> Trace: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def workload(self) -> Workload: ...
    @property
    def measured(self) -> Array: ...


class ReportedResult(Protocol):
    """When and where each job ran, one row a job of the trace; times are -1 for a job that never did."""

    @property
    def start(self) -> Array: ...
    @property
    def end(self) -> Array: ...
    @property
    def ran(self) -> Array: ...
    @property
    def wait(self) -> Array: ...
    @property
    def rejected(self) -> dict[int, str]: ...
    @property
    def requeued(self) -> int: ...
    def entries(self) -> tuple[Array, Array, Array]:
        """Pieces of jobs on nodes: (job, node, units of its request)."""
        ...


class ReportedRun(Protocol):
    """One policy's replay."""

    @property
    def policy(self) -> str: ...
    @property
    def backfill(self) -> str: ...
    @property
    def placement(self) -> str: ...
    @property
    def metrics(self) -> Mapping[str, float | int | None]: ...
    @property
    def result(self) -> ReportedResult: ...
