"""The output gate: the one rule by which scores that compiled policies did not make may order a queue."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.arrays import Array


def objection(scores: Array | None, rows: Array) -> tuple[str, str]:
    """Why scores are of no use for jobs with these rows of the table `jobs`: a kind and a sentence; ("", ""): they are.

    There must be a finite score for each job, and not the same one for jobs whose requests or limits differ.
    """
    jobs = len(rows)
    if scores is None:
        return "shape", "gave no numbers"
    if scores.shape != (jobs,):
        return "shape", f"gave scores of shape {list(scores.shape)}, the queue has {jobs} jobs"
    if not np.isfinite(scores).all():
        return "not finite", f"{int((~np.isfinite(scores)).sum())} of {jobs} scores are not finite"
    if jobs > 1 and float(np.ptp(scores)) == 0.0 and not _alike(rows):
        return "all the same", f"gave {jobs} jobs the same score"
    return "", ""


def usable(scores: Array, rows: Array) -> bool:
    """Whether `objection` has none."""
    return not objection(scores, rows)[0]


def _alike(rows: Array) -> bool:
    return all(len(np.unique(rows[name])) == 1 for name in ("limit", "request"))
