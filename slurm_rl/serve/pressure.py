"""`GET /v1/pressure`: the expected wait of a request, by the pending jobs like it."""

from __future__ import annotations

import statistics
from typing import Any

from slurm_rl.obs.queue import QueueView

_ALL = 2**31 - 1


def measure(view: QueueView, partition: str = "", gpus: int = 0, time_limit: int = 0) -> dict[str, Any]:
    """`like` jobs ask for as many GPUs and as long a limit or more; `wait` is theirs from now, null if unknown.

    `allowed`: the partition's MaxTime, null if it has none, is as long as the limit asked for.
    """
    _, rows = view.page(0, _ALL)
    there = [job for job in rows if not partition or partition in job.partition.split(",")]
    like = [job for job in there if job.gpus >= gpus and job.time_limit >= time_limit]
    starts = [job.expected_start for job in like if job.expected_start is not None]
    waits = [max(start - view.time, 0.0) for start in starts]
    wait = None
    if waits:
        wait = {"median": statistics.median(waits), "low": min(waits), "high": max(waits)}
    elif not there:
        wait = {"median": 0.0, "low": 0.0, "high": 0.0}  # nobody waits
    most = [limit for name, limit in view.max_times.items() if not partition or name in partition.split(",")]
    # One partition without a limit is enough; one that is not known may be one.
    max_time = max((limit for limit in most if limit is not None), default=None) if None not in most else None
    allowed = max_time is None or time_limit <= max_time
    head = {"time": view.time, "tick": view.tick}
    return head | {"pending": len(there), "like": len(like), "wait": wait, "max_time": max_time, "allowed": allowed}
