"""Speeds and watts of GPU types for the plan: configured, measured, or the vendors' figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import structlog

from slurm_rl.config import Config
from slurm_rl.domain.cluster import NodeWatts, default_watts
from slurm_rl.place.speed import FinishedRun, SpeedMatrix, learn_speeds, parse_speeds
from slurm_rl.slurm.model import HistoryJob
from slurm_rl.telemetry.account import Watts
from slurm_rl.telemetry.fit import measured_watts
from slurm_rl.telemetry.store import Measured

log = structlog.get_logger()

_REMEMBERED = 20_000  # runs that speeds are learned from
_LATE = 1800.0  # a node agent's record may come so much later than the accounting's row
_SLOWED = 0.05  # of a run's time with clocks held down: its length tells of the heat


class Measurements(Protocol):
    """What node agents told, as far as it was collected."""

    def run(self, job_id: int, start: float) -> Measured | None: ...
    def watts(self) -> Mapping[str, Watts]: ...


def ran_on(row: HistoryJob, measured: Measured | None = None) -> FinishedRun | None:
    """A run that tells how fast a GPU type is; None for one that does not.

    The accounting's GPU type goes before the agent's, which is there also where AccountingStorageTRES names no types.
    """
    kinds = {kind for kind, count in row.gpus_allocated.items() if kind and count}
    if not kinds and measured is not None and measured.gpu_type:
        kinds = set(measured.gpu_type.split("|"))
    if row.state != "COMPLETED" or len(kinds) != 1:
        return None
    busy = 1.0
    if measured is not None:
        if measured.shared or measured.slowed_seconds > _SLOWED * measured.gpu_seconds:
            return None  # others, or the heat, had part in how long it took
        busy = measured.util_mean / 100 if measured.util_mean is not None else 1.0
    return FinishedRun(row.user, row.name, sum(row.gpus_allocated.values()), kinds.pop(), float(row.elapsed), busy)


class GpuFigures:
    """Follows the accounting and the node agents."""

    def __init__(self, config: Config) -> None:
        self.measured: Measurements | None = None
        self.watts: NodeWatts = default_watts
        self.speeds = SpeedMatrix({})
        self._runs: dict[tuple[int, int], FinishedRun] = {}
        self._awaited: list[HistoryJob] = []  # rows whose record may still come
        self._said: Mapping[str, tuple[float, float]] = {}
        self.follow(config)

    def follow(self, config: Config) -> None:
        """Takes over a configuration; types that it does not name count as published."""
        self._learns = config.gpu_speeds == "learned"
        self.speeds = learn_speeds(self._runs.values()) if self._learns else SpeedMatrix(
            parse_speeds(config.gpu_speeds, "gpu_speeds")
        )  # fmt: skip

    def learn(self, ended: Iterable[HistoryJob], now: float) -> None:
        """Takes runs of the accounting, each with its record if there is one by now."""
        if not self._learns:
            return
        rows, self._awaited = [*self._awaited, *ended], []
        for row in rows:
            found = self._record(row)
            if found is None and self.measured is not None and now - (row.end_time or 0) < _LATE:
                self._awaited.append(row)
            key = row.job_id, row.start_time or 0
            self._runs.pop(key, None)
            if (ran := ran_on(row, found)) is not None:
                self._runs[key] = ran
        for key in list(self._runs)[:-_REMEMBERED]:
            del self._runs[key]
        self.speeds = learn_speeds(self._runs.values())

    def _record(self, row: HistoryJob) -> Measured | None:
        known = self.measured is not None and row.start_time is not None
        return self.measured.run(row.job_id, float(row.start_time or 0)) if known and self.measured else None

    def measure(self) -> None:
        """Takes the watts that were measured so far; published ones stay where an hour of them is missing."""
        if self.measured is None:
            return
        sums = self.measured.watts()
        self.watts = measured_watts(sums)
        said = {kind: self.watts(kind, 1) for kind in sums if self.watts(kind, 1) != default_watts(kind, 1)}
        if said.keys() != self._said.keys():
            log.info("watts", measured=sorted(said))
        self._said = said
