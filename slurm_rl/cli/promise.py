"""`replay --promise`: each policy with and without its supervisor, and the largest losses of each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm_rl_sim.replay import Contender, Prepared, Run


def keep_promise(
    prepared: Prepared,
    contenders: list[Contender],
    backfill: str,
    text: str,
    runs: list[Run],
    placement: str,
    influence: float,
    weights: dict[str, float] | None,
) -> dict[str, Any]:
    """Adds a supervised run for each policy but Slurm's own order; by policy, what the promise cost and saved."""
    import numpy as np

    from slurm_rl.domain.promise import parse_promise
    from slurm_rl.evaluate.auto import pool_of_jobs, pools
    from slurm_rl.evaluate.promise import own_run, supervised, worst
    from slurm_rl.policy.catalogue import MULTIFACTOR

    promise = parse_promise(text, "--promise")
    own = own_run(prepared, backfill, placement, weights).result
    trace = prepared.trace
    kinds = {"partition": pool_of_jobs(prepared), "user": trace.user.codes.astype(np.int64)}
    names = {"partition": [",".join(p) for p in pools(prepared.cluster)], "user": trace.user.names}
    told: dict[str, Any] = {}
    for contender, plain in zip(contenders, list(runs), strict=False):
        if contender.policy.code == MULTIFACTOR:
            continue
        options: dict[str, Any] = {"placement": placement, "influence": influence, "weights": weights}
        kept = supervised(prepared, contender, promise, own, **options)
        runs.append(replace(kept.run, peak_rss_mb=plain.peak_rss_mb))
        without, with_it = (float(r.metrics["mean_bsld"] or 0.0) for r in (plain, kept.run))
        told[contender.policy.name] = {
            "promise": str(promise),
            "without": worst(plain.result, own, kinds, names),
            "with": worst(kept.run.result, own, kinds, names),
            "withheld": kept.withheld,
            "lowered": kept.lowered,
            "bsld_cost": with_it / max(without, 1e-9) - 1.0,
        }
    return told


def told_promise(kept: dict[str, Any]) -> str:
    """What the promise changed, in lines of at most 80 characters."""
    lines = []
    for policy, found in kept.items():
        lines.append(f"{policy}, promise {found['promise']}:"[:80])
        cost = f"BSLD {found['bsld_cost']:+.1%}; influence withheld {found['withheld']:.0%} of the time"
        lines.append(f"  {cost}, lowered {found['lowered']} times"[:80])
        for what, row in found["without"].items():
            after = found["with"].get(what)
            then = f"{after['ratio']:.2f} × ({after['name']:.18})" if after else "-"
            lines.append(f"  worst {what}: {row['ratio']:.2f} × ({row['name']:.18}) → {then}"[:80])
    return "\n".join(lines)
