"""Chooses the style of a model for a site by replays of its own past, as multifactor's weights are tuned.

Sites differ in what pays. Where gangs are a large part of the pool and limits are loose, it pays to let them start
early; on a wide machine for jobs of every size, the small ones. A model's manifest has a style for each, a few changes
of its linear path and its cap. Replays are chaotic: of the styles that are behind the best one by no more than the
standard error of that difference, the one with the shortest longest wait is taken, and the model stays as trained where
that would bring little.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from slurm_rl.domain.cluster import Cluster
from slurm_rl.evaluate.goals import GOALS, price
from slurm_rl.evaluate.paired import replicate
from slurm_rl.policy.checkpoint import STARVE_DRAIN, Model, save_model, unflatten
from slurm_rl.policy.registry import PolicySpec, in_style
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import Contender, Prepared, prepare, replay

AS_TRAINED = "as trained"
FIGURES = {"bsld": "mean_bsld", "wait": "mean_wait", "p99": "p99_wait", "max": "max_wait"}
_REPLICATES = 12
# To replace the model as trained, a style must be so much better, in logarithms, beyond one standard error …
_GAIN = 0.03
_SHORTER = 0.1  # … or, where it is as good, have a longest wait that is so much shorter


@dataclass(frozen=True, slots=True)
class Fit:
    """The chosen style, the policy in it, and each style's ratio to the model as it was trained."""

    style: str
    policy: PolicySpec
    ratios: Mapping[str, float]


def fit(
    policy: PolicySpec,
    past: Trace,
    cluster: Cluster,
    backfill: str,
    placement: str | None = None,
    *,
    replicates: int = _REPLICATES,
    seed: int = 0,
    on_progress: Callable[[str, float], None] | None = None,
) -> Fit:
    """Replays the past under a model's styles; the one with the best goals (slowdown, wait, tails) is chosen."""
    choices = {AS_TRAINED: policy} | {name: in_style(policy, name) for name in policy.styles}
    if len(choices) == 1:
        return Fit(AS_TRAINED, policy, {AS_TRAINED: 1.0})
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in choices}

    def figures(case: Prepared, choice: PolicySpec) -> dict[str, float]:
        metrics = replay(case, [Contender(choice, backfill)], placement=placement)[0].metrics
        return {k: math.log(float(metrics[name] or 0.0) + 1.0) for k, name in FIGURES.items()}

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as threads:
        for number in range(replicates):
            case = prepare(replicate(past, number, seed), cluster, seed=seed)
            found = threads.map(partial(figures, case), choices.values())
            for own, row in zip(rows.values(), found, strict=True):
                own.append(row)
            if on_progress is not None:
                on_progress("fitting", (number + 1) / replicates)
    prices = {
        name: np.array([
            price({k: mine[k] - first[k] for k in GOALS}) for mine, first in zip(own, rows[AS_TRAINED], strict=True)
        ])
        for name, own in rows.items()
    }  # fmt: skip
    mean = {name: float(p.mean()) for name, p in prices.items()}
    best = min(mean, key=lambda name: mean[name])
    error = {name: float((p - prices[best]).std(ddof=1)) / math.sqrt(replicates) for name, p in prices.items()}
    good = [name for name in choices if mean[name] <= mean[best] + error[name] + _GAIN * (name == AS_TRAINED)]
    longest = {name: float(np.mean([r["max"] for r in rows[name]])) for name in good}
    chosen = min(good, key=lambda name: longest[name] - _SHORTER * (name == AS_TRAINED))
    return Fit(chosen, choices[chosen], {name: math.exp(value) for name, value in mean.items()})


def save_fitted(model: Model, found: Fit, path: Path) -> Model:
    """Writes the model in its chosen style: a model as any other, with that style's weights and no styles left."""
    manifest = {k: v for k, v in model.manifest.items() if k not in ("policy", "features", "weights", "styles")}
    manifest["fitted"] = {"style": found.style, "ratios": {k: round(v, 4) for k, v in found.ratios.items()}}
    policy = model.policy | {STARVE_DRAIN: found.policy.starve_drain}
    return save_model(path, unflatten(model.net if found.policy.net is None else found.policy.net), manifest, **policy)
