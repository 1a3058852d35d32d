"""All charts of a comparison, in the order of the report."""

from __future__ import annotations

from slurm_rl.report import overtime, waits
from slurm_rl.report.charts import Chart, Heat
from slurm_rl.report.measured import Comparison


def all_charts(measured: Comparison, base: int) -> list[Chart | Heat]:
    """Every chart that the trace has something to say about."""
    charts = (
        waits.glance(measured, base),
        waits.distribution(measured, "wait"),
        waits.distribution(measured, "jct"),
        overtime.queue(measured),
        overtime.utilization(measured),
        waits.by_size(measured),
        waits.by_priority(measured),
        waits.by_partition(measured),
        waits.by_user(measured),
        waits.users(measured),
        overtime.occupancy(measured),
        overtime.fragmented(measured),
    )
    return [c for c in charts if c is not None]
