"""The replays as the report names them: label, baseline, and which are out of reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slurm_rl.report.inputs import ReportedRun


def labels(runs: Sequence[ReportedRun]) -> list[str]:
    """A policy's name, with its backfill where that is not the common one, as on the command line."""
    common = Counter(r.backfill for r in runs).most_common(1)[0][0]
    return [r.policy if r.backfill == common else f"{r.policy}+{r.backfill}" for r in runs]


def baseline(runs: Sequence[ReportedRun]) -> int:
    """The first `multifactor`, Slurm's own order; without it, the first replay."""
    return next((i for i, r in enumerate(runs) if r.policy == "multifactor"), 0)


def unreachable(run: ReportedRun) -> bool:
    """Whether a policy knows what no scheduler can know."""
    return "@oracle" in run.policy


def winner(runs: Sequence[ReportedRun], figure: str = "mean_bsld") -> int | None:
    """The reachable replay with the least figure; None if none has it."""
    known = [(v, i) for i, r in enumerate(runs) if not unreachable(r) and (v := r.metrics[figure]) is not None]
    return min(known)[1] if known else None
