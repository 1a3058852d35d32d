"""The hidden layers' inputs and costs on a workload: figures of docs/learning.md.

slurm-rl study hidden [WORKLOAD,…] [BACKFILL] [REPLICATES]

First, features far from what training saw (in standard deviations of training). Then the shipped model as trained
without the bounds of sizes, and with hidden layers blind to groups of features, as ratios to the model: what is blind
here is the encoder or the context, the linear path sees everything. Workloads are those of `study policy`, machines of
`traces generate`, and `ricc@DAY`: eight days of RICC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from slurm_rl.domain.cluster import Cluster
from slurm_rl.evaluate.fit import FIGURES
from slurm_rl.evaluate.goals import price
from slurm_rl.evaluate.paired import replicate
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.checkpoint import Model, find_model, flatten, load_model, unflatten
from slurm_rl.policy.features import JOB_COUNT, JOB_FEATURES, POOL_FEATURES
from slurm_rl.policy.network import HIDDEN, unbounded
from slurm_rl.policy.registry import PolicySpec, learned
from slurm_rl.studies.policy import stretches, workload
from slurm_rl.traces.machines import MACHINES, machine
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import Contender, Prepared, prepare, replay, window_of
from slurm_rl_sim.simulation import ReplayState

FAR = 4.0  # standard deviations of training
SHOWN = FIGURES | {"users": "user_bsld"}
_TURNS, _ROWS = 400_000, 2_000_000
GROUPS: dict[str, tuple[str, ...]] = {
    "counts of jobs": ("running_size", "running_like", "waiting_size", "waiting_like", "seen"),
    "elapsed times": ("elapsed_size", "elapsed_like", "latest_size", "latest_like", "user_level"),
    "size": ("size", "pool_share", "units"),
    "room": ("ways", "tight", "spare"),
    "user": ("fairshare", "user_held", "user_queue", "position"),
    "age": ("age", "age_ratio", "age_drain"),
    "estimate": ("estimate", "spread", "inverse", "limit"),
}


def variants(model: Model) -> dict[str, Array]:
    """Networks whose hidden layers are blind to something, by what that is."""
    tensors = unflatten(model.net)
    found = {"as trained": tensors, "sizes unbounded": tensors | unbounded()}
    found |= {"no hidden layers": tensors | {"out": np.zeros_like(tensors["out"])}}
    for name, features in GROUPS.items():
        encode = tensors["encode"].copy()
        encode[[JOB_FEATURES.index(f) for f in features]] = 0.0
        found[f"without {name}"] = tensors | {"encode": encode}
    gather = tensors["gather"].copy()
    gather[HIDDEN:] = 0.0
    found["without the pool"] = tensors | {"gather": gather}
    found["no context"] = tensors | {"inform": np.zeros_like(tensors["inform"])}
    return {name: flatten(parts) for name, parts in found.items()}


def far(model: Model, policy: PolicySpec, prepared: Prepared, backfill: str) -> dict[str, tuple[float, float]]:
    """By feature: the share of rows beyond FAR deviations of training, and the 99th percentile of their distance."""
    simulation = ReplayState(prepared.workload, prepared.trace.run_time, policy, backfill=backfill)
    simulation.tape(_ROWS, _TURNS)
    simulation.run()
    tape = simulation.world["tape"][: int(simulation.world["taped"])]
    tensors = unflatten(model.net)
    found = {}
    for names, first, kind in ((JOB_FEATURES, 0, "job"), (POOL_FEATURES, JOB_COUNT, "pool")):
        rows = tape[:, first : first + len(names)]
        z = np.abs((rows - tensors[f"{kind}_shift"]) * tensors[f"{kind}_scale"])
        for i, name in enumerate(names):
            found[name] = (float((z[:, i] > FAR).mean()), float(np.percentile(z[:, i], 99)))
    return found


def worth(
    nets: Mapping[str, Array], policy: PolicySpec, cases: list[Prepared], backfill: str
) -> dict[str, dict[str, float]]:
    """Each network's figures as logarithms of ratios to the first one's, averaged over the cases."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in nets}
    for case in cases:
        for name, net in nets.items():
            (run,) = replay(case, [Contender(replace(policy, net=net), backfill)])
            rows[name].append({k: math.log(float(run.metrics[m] or 0.0) + 1.0) for k, m in SHOWN.items()})
    first = next(iter(nets))
    return {
        name: {k: float(np.mean([a[k] - b[k] for a, b in zip(own, rows[first], strict=True)])) for k in SHOWN}
        for name, own in rows.items()
    }


def _case(name: str) -> tuple[Trace, Cluster, str]:
    if name.startswith("ricc@"):
        _, trace, cluster, share = next(stretches(int(name.removeprefix("ricc@"))))
        return trace, cluster, share
    kind, _, seed = name.partition("#")
    if kind in MACHINES:
        return *machine(kind, jobs=2000 if kind == "capability" else None, seed=int(seed or 0)), "0.3:1"
    return workload(name)


def main(*given: str) -> None:
    names, backfill, replicates = (list(given) + ["ricc,venus,hetero", "easy", "2"][len(given) :])[:3]
    model = load_model(find_model("default"))
    policy = replace(learned(model), styles={})
    nets = variants(model)
    for name in names.split(","):
        trace, cluster, share = _case(name)
        window = window_of(trace, share)
        cases = [prepare(replicate(trace, n, 0), cluster, window=window) for n in range(int(replicates))]
        found = far(model, policy, cases[0], backfill)
        told = [f"{f} {part:.0%} (p99 {p99:.1f})" for f, (part, p99) in found.items() if part > 0.01 or p99 > FAR]
        print(f"\n{name}, {backfill}: beyond {FAR:g} deviations of training: {', '.join(told) or 'nothing'}")
        for label, row in worth(nets, policy, cases, backfill).items():
            figures = "  ".join(f"{k} {math.exp(v):.3f}" for k, v in row.items())
            print(f"  {label:<26} {figures}  goals {math.exp(price(row)):.3f}", flush=True)
