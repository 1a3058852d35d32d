"""How many updates a tick may write: less while slurmctld is busy; and how much it may read."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from slurm_rl.config import Config
from slurm_rl.obs.metrics import Metrics
from slurm_rl.slurm.model import Health

_LEAST = 1 / 64


class WriteBudget:
    """Halves with every tick that finds slurmctld busy, and doubles back with every one that does not."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._share = 1.0

    def ease(self, health: Health) -> None:
        """Takes account of what sdiag says."""
        busy = (
            not health.up
            or health.server_threads >= self._config.busy_threads
            or health.agent_queue >= self._config.busy_agent_queue
            or health.main_last_cycle_us >= 1000 * self._config.busy_cycle_ms
        )
        self._share = max(self._share / 2, _LEAST) if busy else min(self._share * 2, 1.0)

    @property
    def per_tick(self) -> int:
        return max(1, math.floor(self._config.updates_per_tick * self._share))

    @property
    def per_second(self) -> float:
        return self._config.updates_per_second * self._share


@runtime_checkable
class CountsLoad(Protocol):
    """A client that knows what it asks of slurmctld."""

    def load(self) -> tuple[int, int]: ...


class ReadBudget:
    """Spaces ticks out whose answers are longer than the budget, so that reading stays within it over time."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.stretch = 1.0  # times the interval until the next tick

    def count(self, client: object, megabytes: float) -> None:
        """Takes account of a tick."""
        if isinstance(client, CountsLoad):
            calls, characters = client.load()
            self._metrics.slurm_calls.set(calls)
            self._metrics.slurm_bytes.set(characters)
            self.stretch = max(1.0, characters / (1e6 * megabytes))
