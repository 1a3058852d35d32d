"""`slurm_rl.evaluate`: policies compared in pairs, with intervals, as a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from slurm_rl.backfill.catalogue import RULES
from slurm_rl.domain.cluster import Cluster
from slurm_rl.evaluate.paired import COMPARED, PairedWindows, PolicyFigures, compare, gap_closed
from slurm_rl.evaluate.settle import settle
from slurm_rl.policy.registry import guarded
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.given import contenders_of, trace_and_cluster
from slurm_rl_sim.replay import Progress, window_of


@dataclass(frozen=True)
class Evaluation:
    """Standings of policies: means, and ratios to the base with 95% intervals."""

    base: str
    standings: tuple[PolicyFigures, ...]
    weights: dict[str, float] | None  # multifactor's, as tuned
    styles: dict[str, str]  # of models, as fitted

    def table(self, metric: str = "mean_bsld") -> pd.DataFrame:
        """One row a policy: the mean of a metric, its ratio to the base, and the interval of the ratio."""
        rows = [
            {"mean": s.mean[metric], "ratio": s.ratio[metric], "low": s.low[metric], "high": s.high[metric]}
            for s in self.standings
        ]
        names = [s.policy if s.backfill == self.standings[0].backfill else f"{s.policy}+{s.backfill}"
                 for s in self.standings]  # fmt: skip
        return pd.DataFrame(rows, index=pd.Index(names, name="policy"))

    def gap_closed(self, policy: str) -> float | None:
        """The share of the way from the base to `sjf@oracle` that a policy covers, in log mean BSLD."""
        return gap_closed(self.standings, policy, self.base)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What `table` knows."""
        return COMPARED

    def _repr_html_(self) -> str:
        return f"<p>mean BSLD, ratios to {self.base}</p>{self.table().round(3).to_html(border=0)}"


def evaluate(
    trace: str | Path | Trace,
    cluster: str | Path | Cluster | None = None,
    policies: Sequence[Any] | str = ("rl:default",),
    *,
    base: Any = "multifactor",
    backfill: str = "easy",
    placement: str | None = None,
    starvation: str = "cap",
    window: str | None = None,
    replicates: int = 3,
    windows: int = 0,
    window_jobs: int = 1024,
    tune: bool = True,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Evaluation:
    """Compares policies as `slurm-rl evaluate` does; policies in any form that `replay` takes.

    With `window`, multifactor is tuned and models are fitted on the jobs before it, unless `tune` is False. With
    `windows=N`, policies meet on N random stretches of `window_jobs` jobs. `starvation` applies to all but the base.
    """
    jobs, where = trace_and_cluster(trace, cluster)
    span = window_of(jobs, window)
    placement = placement or RULES[backfill].placement
    (first,) = contenders_of([base], backfill)
    given = [replace(c, policy=guarded(c.policy, starvation)) for c in contenders_of(policies, backfill)]
    ready = settle(jobs, where, first, given, span, backfill, placement, tune=tune, seed=seed, on_progress=on_progress)
    found = compare(
        jobs,
        where,
        ready.contenders,
        base=ready.base,
        replicates=replicates,
        window=span,
        windows=PairedWindows(windows, window_jobs) if windows else None,
        placement=placement,
        weights=ready.weights,
        seed=seed,
        on_progress=on_progress,
    )
    return Evaluation(ready.base.policy.name, tuple(found), ready.weights, ready.styles)
