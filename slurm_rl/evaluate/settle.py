"""Tunes weights and chooses styles on the time before a window, before policies are compared in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_rl.domain.cluster import Cluster
from slurm_rl.evaluate.fit import fit
from slurm_rl.evaluate.paired import before, tuned_weights
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import Contender, Progress, prepare


@dataclass(frozen=True)
class SettledContenders:
    """The base and the contenders as they enter a comparison; `early` is the time before it, None if there is none."""

    base: Contender
    contenders: tuple[Contender, ...]
    weights: dict[str, float] | None  # multifactor's, as tuned
    styles: dict[str, str]  # of models, as fitted
    early: Trace | None


def settle(
    trace: Trace,
    cluster: Cluster,
    base: Contender,
    contenders: Sequence[Contender],
    window: tuple[int, int] | None,
    backfill: str,
    placement: str,
    *,
    tune: bool = True,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> SettledContenders:
    """Tunes multifactor and fits models on the jobs before the window; if there are none, all stay as they are."""
    early = before(trace, window)
    if early is None or not tune:
        return SettledContenders(base, tuple(contenders), None, {}, early)
    weights = tuned_weights(prepare(early, cluster, seed=seed), backfill, placement)
    styles: dict[str, str] = {}
    fitted: dict[Contender, Contender] = {}
    for one in dict.fromkeys([base, *contenders]):
        if one.policy.styles:
            chosen = fit(one.policy, early, cluster, one.backfill, placement, seed=seed, on_progress=on_progress)
            own = "" if one.backfill == backfill else f"+{one.backfill}"
            styles[one.policy.name + own] = chosen.style
            fitted[one] = replace(one, policy=chosen.policy)
    return SettledContenders(
        fitted.get(base, base), tuple(fitted.get(c, c) for c in contenders), weights, styles, early
    )
