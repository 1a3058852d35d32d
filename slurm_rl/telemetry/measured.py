"""The service's view of measured use: collected in the background, read by job."""

from __future__ import annotations

import threading
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from slurm_rl.config import Config
from slurm_rl.telemetry.account import Watts
from slurm_rl.telemetry.collect import Collector, agent_urls
from slurm_rl.telemetry.store import FILE, Measured, Store
from slurm_rl.telemetry.token import agent_token


class MeasuredJobs:
    """Collects in a thread of its own, and tells of jobs; without agents and shared directory it knows none."""

    def __init__(self, config: Config, registry: CollectorRegistry) -> None:
        self._store: Store | None = None
        self._thread: threading.Thread | None = None
        if not config.telemetry_agents and not config.telemetry_dir:
            return
        agents = agent_urls(config.telemetry_agents)
        token = agent_token(config.telemetry_token_file) if agents else ""
        Path(config.state_dir).mkdir(parents=True, exist_ok=True)
        self._store = Store(Path(config.state_dir) / FILE)
        directory = Path(config.telemetry_dir) if config.telemetry_dir else None
        ca_file = Path(config.telemetry_ca_file) if config.telemetry_ca_file else None
        self._collector = Collector(self._store, agents, token, directory, ca_file, config.telemetry_days)
        gauge = Gauge(
            "slurmrl_telemetry_sources",
            "Node agents and shared directories by whether they could be read in the last round: well, or in trouble.",
            ["state"],
            registry=registry,
        )
        sources = len(agents) + (directory is not None)
        gauge.labels("trouble").set_function(lambda: len(self._collector.problems))
        gauge.labels("well").set_function(lambda: sources - len(self._collector.problems))
        collect = self._collector.run
        self._thread = threading.Thread(target=collect, args=(config.telemetry_interval,), name="telemetry")
        self._thread.start()

    def of(self, job_id: int) -> Measured | None:
        """The last run of a job."""
        runs = self._store.runs(job_id) if self._store is not None else []
        return runs[-1] if runs else None

    def run(self, job_id: int, start: float) -> Measured | None:
        """The run of a job that began when Slurm says."""
        return self._store.run(job_id, start) if self._store is not None else None

    def watts(self) -> dict[str, Watts]:
        """Seconds and joules of each GPU type, over all nodes."""
        return self._store.watts() if self._store is not None else {}

    def running(self, user: str | None, limit: int) -> list[Measured]:
        """Jobs that run now; of one user, or of all (None)."""
        return self._store.running(user, limit) if self._store is not None else []

    def idlest(self, since: float, user: str | None, limit: int) -> list[Measured]:
        """Runs that ended since a time, the idlest first; of one user, or of all (None)."""
        return self._store.idlest(since, user, limit) if self._store is not None else []

    def close(self) -> None:
        if self._thread is not None and self._store is not None:
            self._collector.stop()
            self._thread.join()
            self._store.close()
