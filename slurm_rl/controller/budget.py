"""How many updates a tick may write: less while slurmctld is busy."""

from __future__ import annotations

import math

from slurm_rl.config import Config
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
