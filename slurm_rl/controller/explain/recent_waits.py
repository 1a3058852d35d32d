"""Waits of jobs that ended in the last week, by partition, beside the waiting jobs."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from statistics import quantiles

from slurm_rl.slurm.model import HistoryJob

WEEK = 7 * 86_400
_MOST = 100_000  # jobs remembered; the oldest go first


class RecentWaits:
    """Waits of the last week's jobs; the controller writes them, requests read them."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, str, int]] = deque(maxlen=_MOST)
        self._lock = threading.Lock()

    def learn(self, ended: Iterable[HistoryJob]) -> None:
        """Takes in jobs that have ended, in any order."""
        rows = [
            (row.end_time, row.partition, row.start_time - begun)
            for row in ended
            if row.end_time and row.start_time and (begun := row.eligible_time or row.submit_time)
        ]
        with self._lock:
            self._rows.extend(sorted(rows))

    def by_partition(self, now: float) -> Mapping[str, Mapping[str, float]]:
        """Jobs, median and 95th percentile of the wait in seconds, for each partition with a job in the last week."""
        waits: dict[str, list[int]] = defaultdict(list)
        with self._lock:
            rows = list(self._rows)
        for ended, partition, wait in rows:
            if ended >= now - WEEK:
                waits[partition].append(max(wait, 0))
        return {name: {"jobs": len(found), **middle_and_tail(found)} for name, found in waits.items()}


def middle_and_tail(waits: list[int]) -> dict[str, float]:
    """Median and 95th percentile; both 0 where nobody waits."""
    if len(waits) < 2:
        only = float(waits[0]) if waits else 0.0
        return {"median": only, "p95": only}
    cuts = quantiles(waits, n=20, method="inclusive")
    return {"median": cuts[9], "p95": cuts[18]}
