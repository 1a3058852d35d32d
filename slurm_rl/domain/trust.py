"""How much influence a policy keeps over a partition: less as a promised wait comes near its bound, more as it recedes.

The same steps live and in replay: what differs is only where the waits under Slurm's own order come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from slurm_rl.domain.promise import Promise

if TYPE_CHECKING:
    from slurm_rl.kernel.arrays import Array

STEPS = (0.0, 0.5, 0.75, 1.0)  # of influence withheld; the last one: Slurm's own order
NEAR, FAR = 0.75, 0.35  # of the way from 1 × to the bound at which influence is lowered, and may be raised again
REST = 3600.0  # seconds from one rise to the next: influence is lowered at once and given back slowly
LEAST = 20  # jobs: the waits of fewer say nothing of a percentile
_SECONDS = 60.0  # waits that differ by less are the same


@dataclass(slots=True)
class Trust:
    """One group's trust: the share that is withheld, and its waits beside the promised ones."""

    step: int = 0
    changed: float = -np.inf
    gaps: dict[str, float] = field(default_factory=dict)  # by figure: ours over own, as a share of the bound

    @property
    def withheld(self) -> float:
        return STEPS[self.step]

    def watch(self, promise: Promise, now: float, ours: Array, own: Array) -> int:
        """Compares waits of the same jobs; +1 if influence was lowered, -1 if raised, 0 if it stays."""
        if len(ours) < LEAST:
            self.gaps = {}
            return 0
        ratios = {k: compared(k, ours, own) for k in promise.bounds}
        self.gaps = {k: ratio / promise.bounds[k] for k, ratio in ratios.items()}
        # Of the way from Slurm's own order to the bound, how much is used up, at the worst figure.
        used = max((ratio - 1.0) / max(promise.bounds[k] - 1.0, 0.05) for k, ratio in ratios.items())
        if used >= NEAR and self.step < len(STEPS) - 1 and now - self.changed >= REST / 6:
            self.step, self.changed = self.step + 1, now
            return 1
        if used <= FAR and self.step > 0 and now - self.changed >= REST:
            self.step, self.changed = self.step - 1, now
            return -1
        return 0


def compared(figure: str, ours: Array, own: Array) -> float:
    """The ratio of a figure of our waits to the same under Slurm's own order; a minute is added to both."""
    return (_of(figure, ours) + _SECONDS) / (_of(figure, own) + _SECONDS)


def _of(figure: str, waits: Array) -> float:
    if figure == "max":
        return float(np.max(waits))
    return float(np.mean(waits)) if figure == "wait" else float(np.percentile(waits, {"p95": 95, "p99": 99}[figure]))


def groups(kinds: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Array]:
    """The rows of each group: by (kind, name), of kinds that name each row's group."""
    found: dict[tuple[str, str], Array] = {}
    for kind, names in kinds.items():
        column = np.array(names, dtype=object)
        for name in dict.fromkeys(names):
            found[kind, name] = np.flatnonzero(column == name)
    return found
