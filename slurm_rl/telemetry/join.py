"""Joins measurements with a site's accounting history, as columns of its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from slurm_rl.telemetry.store import Measured, Store
from slurm_rl.traces.trace import MEASURED_COLUMNS, Trace


class HistoryRun(Protocol):
    """What is needed of an accounting record to find its measurements."""

    @property
    def job_id(self) -> int: ...
    @property
    def display_id(self) -> str: ...
    @property
    def start_time(self) -> int | None: ...


def with_measurements(trace: Trace, history: Sequence[HistoryRun], store: Store) -> tuple[Trace, int]:
    """The trace with MEASURED_COLUMNS, and how many of its jobs have them.

    A job is matched by its id and by when its last run began. A heterogeneous job is known only if all its parts are.
    """
    parts: dict[str, dict[int, HistoryRun]] = {}
    for row in sorted((r for r in history if r.start_time is not None), key=lambda r: r.start_time or 0):
        # A later run of a requeued job replaces an earlier one, as in the trace.
        parts.setdefault(row.display_id.partition("+")[0], {})[row.job_id] = row
    by_id = {str(job_id): rows for rows in parts.values() for job_id in rows} | parts
    columns = {name: np.full(len(trace), np.nan) for name in MEASURED_COLUMNS}
    found = 0
    for i, job in enumerate(trace.job_id.tolist()):
        rows = by_id.get(str(job), {}).values()
        runs = [store.run(row.job_id, float(row.start_time or 0)) for row in rows]
        known = [r for r in runs if r is not None]
        if not known or len(known) < len(runs):
            continue
        found += 1
        for name, value in _values(known).items():
            columns[name][i] = np.nan if value is None else value
    kept = {name: values for name, values in columns.items() if not np.isnan(values).all()}
    return replace(trace, measured=kept), found


def _values(runs: list[Measured]) -> dict[str, float | None]:
    told = [(r.util_mean, r.gpu_seconds) for r in runs if r.util_mean is not None]
    weight = sum(seconds for _, seconds in told)
    return {
        "gpus_used": sum(r.gpus_used for r in runs),
        "gpu_util": round(sum(u * s for u, s in told) / weight, 2) if weight else None,
        "gpu_util_p95": runs[0].util_p95 if len(runs) == 1 else None,
        "gpu_mem_gb": round(max(r.memory_peak_mb for r in runs) / 1024, 3),
        "gpu_idle_min": round(sum(r.idle_gpu_minutes for r in runs), 3),
        "energy_kwh": round(sum(r.energy_j for r in runs) / 3.6e6, 6),
    }
