"""Learns run times and figures of GPU types from finished jobs."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from slurm_rl.config import Config
from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.explain.recent_waits import RecentWaits
from slurm_rl.controller.gpu_figures import GpuFigures
from slurm_rl.controller.limit_advice import RunsOfUsers
from slurm_rl.controller.slurm_snapshot import finished_jobs
from slurm_rl.domain.keys import parse_keys
from slurm_rl.errors import SlurmError
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import HistoryJob, SlurmState
from slurm_rl.slurm.scontrol import setting

_EVERY = 300.0  # seconds from one look at accounting to the next
_OVERLAP = 600  # seconds: slurmdbd may learn late that a job has ended

log = structlog.get_logger()


class Learning:
    """Reads accounting now and then; each finished job counts once."""

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.run_times = RunTimes([key.name for key in parse_keys(config.estimate_keys, "estimate_keys")])
        self.waits = RecentWaits()
        self.gpus = GpuFigures(config)
        self.runs = RunsOfUsers()
        self._until = 0.0
        self._seen: set[tuple[int, int]] = set()
        self.config = config

    def follow(self, config: Config) -> None:
        """Takes over another configuration."""
        self.config = config
        self.gpus.follow(config)

    def learn(self, client: SlurmClient, state: SlurmState) -> tuple[list[HistoryJob], float]:
        """Feeds the estimator with jobs that ended since the last time; what is new, and since when it is whole."""
        now = self.clock()
        if now - self._until < _EVERY:
            return [], now
        self.gpus.measure()
        if setting(state.config, "AccountingStorageType") != "accounting_storage/slurmdbd":
            self._until = now
            return [], now
        start = self._until - _OVERLAP if self._until else now - self.config.history_days * 86_400
        try:
            rows = [r for r in client.history(start, now) if (r.job_id, r.end_time or 0) not in self._seen]
        except SlurmError as error:
            log.warning("history", error=str(error))
            return [], now
        ended = [r for r in rows if r.end_time]
        self.run_times.learn(finished_jobs(ended, state.nodes))
        self._seen = {k for k in self._seen if k[1] > start} | {(r.job_id, r.end_time or 0) for r in ended}
        self._until = now
        self.gpus.learn(ended, now)
        self.waits.learn(ended)
        self.runs.learn(ended)
        return rows, start
