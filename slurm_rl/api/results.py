"""`slurm_rl.replay`: a trace under several policies, as tables, DataFrames, a report and pictures."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from slurm_rl.backfill.catalogue import RULES
from slurm_rl.backfill.slurm_settings import read_slurm_conf
from slurm_rl.domain.cluster import Cluster
from slurm_rl.place.plan import PlannerSettings
from slurm_rl.place.speed import SpeedMatrix
from slurm_rl.report import contenders, overtime, theme, waits
from slurm_rl.report.figures import standalone
from slurm_rl.report.html import write_report
from slurm_rl.report.measured import Comparison
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.frames import jobs_frame, timeline_frame
from slurm_rl_sim.given import contenders_of, trace_and_cluster
from slurm_rl_sim.replay import DEFAULT_POLICIES, Prepared, Run, prepare, window_of
from slurm_rl_sim.replay import replay as run_replays
from slurm_rl_sim.result import Result

SHOWN = ("mean_wait", "p99_wait", "max_wait", "mean_bsld", "geomean_bsld", "utilization", "decision_p50_us")


class Results:
    """What a replay gave: one run for each policy, on the same jobs and cluster.

    `runs` holds everything; `table()`, `jobs` and `timeline` are DataFrames; `report(path)` writes the HTML report. In
    a notebook it shows itself.
    """

    def __init__(self, prepared: Prepared, runs: Sequence[Run]) -> None:
        self.prepared, self.runs = prepared, list(runs)

    @property
    def labels(self) -> list[str]:
        """The runs' names: the policy's, with its backfill rule where that is not the common one."""
        return contenders.labels(self.runs)

    def table(self, *metrics: str) -> pd.DataFrame:
        """One row a policy: the metrics named (docs/report.md has all), or the usual ones; seconds and ratios."""
        rows = [{name: run.metrics[name] for name in metrics or SHOWN} for run in self.runs]
        return pd.DataFrame(rows, index=pd.Index(self.labels, name="policy"), dtype=float)

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """One row a job and policy: when, where and how it ran."""
        return self._all(jobs_frame)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row for each change and policy: jobs that wait and run, and GPUs held, from that time on."""
        return self._all(timeline_frame)

    def _all(self, frame: Callable[[Result], pd.DataFrame]) -> pd.DataFrame:
        return pd.concat(
            [frame(run.result).assign(policy=label) for run, label in zip(self.runs, self.labels, strict=True)],
            ignore_index=True,
        )

    def report(self, path: str | Path) -> Path:
        """Writes the comparison as one HTML file that needs nothing else."""
        path = Path(path)
        write_report(self.prepared, self.runs, path)
        return path

    @property
    def failures(self) -> dict[str, dict[str, Any]]:
        """Of policies that are Python: how often they were asked, what was not usable, and how fast they are."""
        return {label: run.outside for run, label in zip(self.runs, self.labels, strict=True) if run.outside}

    def __repr__(self) -> str:
        return f"{self._title()}\n{self.table().to_string(float_format=_short)}"

    def _repr_html_(self) -> str:
        shown = self.table().map(_short).to_html(border=0)
        troubled = [f"<p>{label}: {sum(told['failures'].values())} of {told['calls']} calls gave no usable scores, "
                    "Slurm's own order stood</p>"
                    for label, told in self.failures.items() if told["failures"]]  # fmt: skip
        return f"<p>{self._title()}</p>{shown}{''.join(troubled)}{''.join(self._pictures())}"

    def _title(self) -> str:
        cluster = self.prepared.cluster
        return (
            f"{self.prepared.trace.name}: {len(self.prepared.trace):,} jobs on {cluster.name} "
            f"({cluster.nodes:,} nodes, {cluster.gpus:,} GPUs)"
        )

    def _pictures(self) -> list[str]:
        """Waits and queues as pictures of their own: a notebook's styles do not touch them, nor they it."""
        measured, looks = Comparison(self.prepared, self.runs), theme.looks(self.runs)
        drawn = []
        for chart in (waits.distribution(measured, "wait"), overtime.queue(measured)):
            if chart is not None:
                text, width, _ = standalone(chart, looks)
                coded = base64.b64encode(text.encode()).decode("ascii")
                drawn.append(
                    f'<img alt="{chart.title}" style="max-width:{width:.0f}px" src="data:image/svg+xml;base64,{coded}">'
                )
        return drawn


def _short(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def replay(
    trace: str | Path | Trace,
    cluster: str | Path | Cluster | None = None,
    policies: Sequence[Any] | str = DEFAULT_POLICIES,
    *,
    backfill: str = "easy",
    placement: str | None = None,
    influence: float = 1.0,
    window: str | None = None,
    seed: int = 0,
    preempt: bool = False,
    weights: dict[str, float] | None = None,
    speeds: dict[str, float] | None = None,
    planning: PlannerSettings | None = None,
    slurm_conf: str | Path | None = None,
) -> Results:
    """Replays a trace under several policies: the same jobs, cluster and rules for each.

    `policies`: names as on the command line, models, functions of a Queue, agents of stable-baselines3. `window`
    ("0.6:1") measures a part; `speeds` are those of GPU types; `weights` are Slurm's. `slurm_conf` is for the backfill
    rule `slurm`. Without a `placement`, the one that belongs to the backfill rule.
    """
    jobs, where = trace_and_cluster(trace, cluster)
    given = contenders_of(policies, backfill)
    matrix = None if speeds is None else SpeedMatrix(speeds)
    prepared = prepare(jobs, where, window=window_of(jobs, window), seed=seed, speeds=matrix)
    runs = run_replays(
        prepared,
        given,
        placement=placement or RULES[backfill].placement,
        influence=influence,
        preempt=preempt,
        weights=weights,
        planning=planning,
        slurm=None if slurm_conf is None else read_slurm_conf(Path(slurm_conf)),
    )
    return Results(prepared, runs)
