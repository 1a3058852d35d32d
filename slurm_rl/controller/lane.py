"""The lane's share of each pool on a live cluster, counted from the starts between ticks.

A replay counts starts as it makes them; live, Slurm makes them between two ticks. A job that waited at the last tick
and runs now has started; if the lane put it first then, its work counts against the lane. What is counted is kept in a
small file, so that a restart does not open the lane anew.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.controller.slurm_snapshot import LiveQueue
from slurm_rl.domain.snapshot import Plan
from slurm_rl.policy.lane import HALF_LIFE

FILE = "lane.json"


@dataclass(slots=True)
class LaneShare:
    """Work started in a pool, and by the lane; older work counts less."""

    lane: float = 0.0
    started: float = 0.0
    time: float = 0.0

    def add(self, now: float, work: float, in_lane: bool) -> None:
        kept = math.exp(-math.log(2.0) * max(now - self.time, 0.0) / HALF_LIFE)
        self.lane = self.lane * kept + (work if in_lane else 0.0)
        self.started = self.started * kept + work
        self.time = now


class LaneBook:
    """The lane's share of each pool; a pool is known by its partitions, whose numbers may change."""

    def __init__(self, state_dir: Path | None = None) -> None:
        self._file = state_dir / FILE if state_dir is not None else None
        self.shares = _read(self._file)
        self._waiting: frozenset[int] = frozenset()
        self._first: frozenset[int] = frozenset()

    def enter(self, queue: LiveQueue) -> None:
        """Counts what has started since the last tick, and tells the snapshot's pools."""
        world, now = queue.snapshot.world, float(queue.now)
        pools, names = world["pools"], queue.snapshot.pools
        requests, jobs, live = world["requests"], world["jobs"], world["live"]
        changed = False
        for j in np.flatnonzero(live["held"] > 0).tolist():
            if queue.jobs[j].job_id not in self._waiting:
                continue
            row = requests[jobs["request"][j]]
            mean = min(float(queue.estimate[j]) * math.exp(0.5 * float(queue.spread[j]) ** 2), float(jobs["limit"][j]))
            share = self.shares.setdefault(names[int(row["pool"])], LaneShare(time=now))
            share.add(now, float(row["volume"]) * mean, queue.jobs[j].job_id in self._first)
            changed = True
        for p, name in enumerate(names):
            known = self.shares.get(name)
            if known is not None:
                pools["lane_work"][p], pools["started_work"][p] = known.lane, known.started
                pools["lane_time"][p] = known.time
        if changed:
            self._write()

    def note(self, queue: LiveQueue, plan: Plan) -> None:
        """Remembers who waits, and whom the lane puts first, until the next tick."""
        self._waiting = frozenset(queue.jobs[j].job_id for j in plan.order)
        lanes = (j for j, reason in zip(plan.order, plan.reasons, strict=True) if reason.lane is not None)
        self._first = frozenset(queue.jobs[j].job_id for j in lanes)

    def _write(self) -> None:
        if self._file is None:
            return
        value = {name: [share.lane, share.started, share.time] for name, share in self.shares.items()}
        temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(value) + "\n", encoding="utf-8")
            temporary.replace(self._file)
        except OSError:
            temporary.unlink(missing_ok=True)  # a full disk must not end a tick: the count goes on in memory


def _read(file: Path | None) -> dict[str, LaneShare]:
    """What an earlier run counted; nothing, where that cannot be read."""
    if file is None:
        return {}
    try:
        said: Any = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): LaneShare(*(float(v) for v in row)) for name, row in said.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
