"""What finished jobs teach the live side: run times, and how fast GPU types are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from slurm_rl.config import Config
from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.slurm_snapshot import finished_jobs
from slurm_rl.errors import SlurmError
from slurm_rl.place.speed import Ran, SpeedMatrix, learn_speeds, parse_speeds
from slurm_rl.slurm.client import SlurmClient
from slurm_rl.slurm.model import HistoryJob, SlurmState
from slurm_rl.slurm.text import setting

_EVERY = 300.0  # seconds from one look at accounting to the next
_OVERLAP = 600  # seconds: slurmdbd may learn late that a job has ended
_REMEMBERED = 20_000  # finished jobs that GPU speeds are learned from

log = structlog.get_logger()


def given_speeds(config: Config) -> SpeedMatrix:
    """Speeds as configured; types that are not named count as published."""
    return SpeedMatrix({} if config.gpu_speeds == "learned" else parse_speeds(config.gpu_speeds, "gpu_speeds"))


def ran_on(rows: Iterable[HistoryJob]) -> list[Ran]:
    """Finished jobs that ran on GPUs of one type."""
    found = []
    for r in rows:
        kinds = [kind for kind, count in r.gpus_allocated.items() if kind and count]
        if r.state == "COMPLETED" and len(kinds) == 1:
            found.append(Ran(r.user, r.name, r.gpus_allocated[kinds[0]], kinds[0], float(r.elapsed)))
    return found


class Learning:
    """Reads accounting now and then; each finished job counts once."""

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.run_times = RunTimes()
        self._ran: list[Ran] = []  # on which GPU types finished jobs ran, where speeds are learned
        self._until = 0.0
        self._seen: set[tuple[int, int]] = set()
        self.follow(config)

    def follow(self, config: Config) -> None:
        """Takes over another configuration."""
        self.config = config
        self.speeds = given_speeds(config)

    def learn(self, client: SlurmClient, state: SlurmState) -> None:
        """Feeds the estimator with jobs that ended since the last time."""
        now = self.clock()
        if now - self._until < _EVERY:
            return
        if setting(state.config, "AccountingStorageType") != "accounting_storage/slurmdbd":
            self._until = now
            return
        start = self._until - _OVERLAP if self._until else now - self.config.history_days * 86_400
        try:
            rows = [r for r in client.history(start, now) if (r.job_id, r.end_time or 0) not in self._seen]
        except SlurmError as error:
            log.warning("history", error=str(error))
            return
        ended = [r for r in rows if r.end_time]
        self.run_times.learn(finished_jobs(ended, state.nodes))
        self._seen = {k for k in self._seen if k[1] > start} | {(r.job_id, r.end_time or 0) for r in ended}
        self._until = now
        if self.config.gpu_speeds == "learned":
            self._ran = [*self._ran, *ran_on(ended)][-_REMEMBERED:]
            self.speeds = learn_speeds(self._ran)
