"""The standing table: the model, its lane, its promise and `auto` against a tuned multifactor; figures of docs/auto.md.

slurm-rl study standing [BACKFILL] [REPLICATES] [WORKLOAD,…]
slurm-rl study standing machines [BACKFILL] [REPLICATES] [MACHINE[#SEED],…]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_rl.domain.cluster import Cluster
from slurm_rl.domain.promise import parse_promise
from slurm_rl.evaluate.auto import Auto, auto, replay_auto
from slurm_rl.evaluate.fit import fit
from slurm_rl.evaluate.paired import PolicyFigures, before, compare, tuned_weights
from slurm_rl.evaluate.promise import own_run, supervised
from slurm_rl.policy.registry import PolicySpec, parse_policy, with_lane
from slurm_rl.studies.policy import workload
from slurm_rl.traces.machines import MACHINES, machine
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import Contender, Prepared, Run, parse_contenders, prepare, window_of

PROMISE = "p99 <= 1.1 x, longest <= 1.5 x"
HEURISTICS = ("sjf-age@user", "saf@user", "wfp3@user")
WORKLOADS = ("venus", "venus-no-limits", "hetero", "itp", "ricc")
SHOWN = {"BSLD": "mean_bsld", "wait": "mean_wait", "p99": "p99_wait", "max": "max_wait", "users": "user_bsld"}
_FITS = 4  # replays of the past under each style
FITTED, LANE, KEPT, AUTO = "rl:default, fitted", "rl:default, lane", "rl:default, promise", "auto"


@dataclass(frozen=True, slots=True)
class DecidedBefore:
    """What the time before the window decided: weights, a model in its style, and auto's choices."""

    weights: dict[str, float] | None
    model: PolicySpec
    style: str
    chosen: Auto


def settle(early: Trace, cluster: Cluster, backfill: str, *, tune: bool) -> DecidedBefore:
    """Tunes Slurm's own order, fits the model and lets `auto` choose, all on the past; auto has the tuned weights."""
    weights = tuned_weights(prepare(early, cluster), backfill) if tune else None
    model = parse_policy("rl:default")
    fitted = fit(model, early, cluster, backfill, replicates=_FITS)
    chosen = auto(early, cluster, backfill, model=model, weights=weights, tune=not tune)
    return DecidedBefore(weights, replace(fitted.policy, styles={}), fitted.style, chosen)


def compared(
    trace: Trace, cluster: Cluster, share: str, backfill: str, replicates: int, *, tune: bool = True
) -> tuple[DecidedBefore, list[PolicyFigures]]:
    """Every row of the table on one workload, as ratios to Slurm's own order with tuned weights."""
    window = window_of(trace, share)
    early = before(trace, window)
    assert early is not None
    found = settle(early, cluster, backfill, tune=tune)
    promise = parse_promise(PROMISE)

    def kept(prepared: Prepared) -> Run:
        own = own_run(prepared, backfill, weights=found.weights).result
        return supervised(prepared, Contender(found.model, backfill), promise, own, weights=found.weights).run

    own_way: dict[str, Callable[[Prepared], Run]] = {
        KEPT: kept,
        AUTO: lambda prepared: replay_auto(prepared, found.chosen, backfill),
    }
    rows = {
        FITTED: found.model,
        LANE: with_lane(found.model),
        KEPT: found.model,
        AUTO: parse_policy("multifactor"),
    }
    contenders = [Contender(replace(policy, name=name), backfill) for name, policy in rows.items()]
    contenders += parse_contenders(HEURISTICS, backfill)
    (base,) = parse_contenders("multifactor", backfill)
    standings = compare(
        trace,
        cluster,
        contenders,
        base=base,
        replicates=replicates,
        window=window,
        weights=found.weights,
        own_way=own_way,
    )
    return found, standings


def _machines(names: Sequence[str]) -> Iterator[tuple[str, Trace, Cluster, str]]:
    """Generated machines, `NAME` or `NAME#SEED`; of the capability machine 2,000 jobs."""
    for name in names:
        kind, _, seed = name.partition("#")
        trace, cluster = machine(kind, jobs=2000 if kind == "capability" else None, seed=int(seed or 0))
        yield name, trace, cluster, "0.3:1"


def table(
    cases: Iterator[tuple[str, Trace, Cluster, str]], backfill: str, replicates: int, *, tune: bool
) -> dict[str, list[list[float]]]:
    """Prints each workload's rows and the geometric means over all; by row, the logarithms of each workload."""
    logs: dict[str, list[list[float]]] = {}
    names = []
    base = "multifactor, tuned before the window" if tune else "multifactor, untuned"
    for name, trace, cluster, share in cases:
        found, standings = compared(trace, cluster, share, backfill, replicates, tune=tune)
        names.append(name)
        chosen = ", ".join(dict.fromkeys(found.chosen.chosen.values()))
        print(f"\n{name}, {backfill}, {replicates} replicates; ratios to {base}")
        print(f"  style {found.style}; auto chose {chosen}")
        best = {k: min(s.ratio[SHOWN[k]] for s in standings if s.policy in HEURISTICS) for k in ("BSLD", "wait")}
        own = next(s for s in standings if s.policy == AUTO)
        behind = ", ".join(f"{k} {own.ratio[SHOWN[k]] / value - 1.0:+.0%}" for k, value in best.items())
        print(f"  auto to the best heuristic of each: {behind}")
        for s in standings[1:]:
            print(f"  {s.policy:<20} " + "  ".join(_cell(said, s, key) for said, key in SHOWN.items()), flush=True)
            logs.setdefault(s.policy, []).append([math.log(max(s.ratio[key], 1e-9)) for key in SHOWN.values()])
    print(f"\ngeometric means over {', '.join(names)}, {backfill}; in brackets the largest of any")
    for label, rows in logs.items():
        means, most = np.exp(np.mean(rows, axis=0)), np.exp(np.max(rows, axis=0))
        cells = zip(SHOWN, means, most, strict=True)
        print(f"  {label:<20} " + "  ".join(f"{said} {mean:.3f} ({top:.2f})" for said, mean, top in cells), flush=True)
    return logs


def _cell(said: str, figures: PolicyFigures, key: str) -> str:
    return f"{said} {figures.ratio[key]:.3f} [{figures.low[key]:.2f}, {figures.high[key]:.2f}]"


def main(*given: str) -> None:
    rest = list(given)
    generated = bool(rest) and rest[0] == "machines"
    rest = rest[1:] if generated else rest
    backfill, replicates = (rest + ["easy", "3"][len(rest) :])[:2]
    names = rest[2].split(",") if len(rest) > 2 else list(MACHINES if generated else WORKLOADS)
    cases = _machines(names) if generated else ((name, *workload(name)) for name in names)
    table(cases, backfill, int(replicates), tune=not generated)
