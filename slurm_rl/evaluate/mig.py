"""Which MIG layout would have served the jobs of a trace best: replays with some nodes' GPUs cut into slices.

A job of one GPU may go to a slice that has the memory it is known to have used, and on which it would have ended within
its limit. A slice slows a job down only as far as it kept more of the GPU busy than the slice has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.domain.gres import slice_of
from slurm_rl.errors import InputError
from slurm_rl.evaluate.paired import replicate
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.build import Speeds, build
from slurm_rl.traces.trace import Labels, Trace
from slurm_rl_sim.replay import Contender, Prepared, prepare, replay
from slurm_rl_sim.workload import requests_of

COMPARED = ("mean_jct", "mean_wait", "p99_wait", "mean_bsld")
_BUSY = (0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)  # classes of jobs by the share of a GPU's time that they kept it busy
_RATHER = 1e-6  # by which a slice that costs a job nothing is preferred to a whole GPU
# Memory of a whole GPU in GB, and of each profile: compute units -> (units of memory, GB).
_CUTTABLE: dict[str, tuple[int, dict[int, float]]] = {
    "A100": (40, {1: 5, 2: 10, 3: 20}),
    "A800": (80, {1: 10, 2: 20, 3: 40}),
    "H100": (80, {1: 10, 2: 20, 3: 40}),
    "H800": (80, {1: 10, 2: 20, 3: 40}),
    "H200": (141, {1: 18, 2: 35, 3: 71}),
    "A30": (24, {1: 6, 2: 12}),
}
_LAYOUTS = ((1, 1, 1, 1, 1, 1, 1), (2, 2, 2, 1), (3, 3), (3, 2, 1, 1))  # of compute units; an A30 has four
_LAYOUTS_A30 = ((1, 1, 1, 1), (2, 2), (2, 1, 1))
_SHARES = (0.125, 0.25, 0.5)  # of a class's nodes that are cut


@dataclass(frozen=True, slots=True)
class MigLayout:
    """A change: so many nodes of a class with each GPU cut into these slices."""

    type: str
    partition: str
    row: int  # of the class in the cluster file, from 1
    nodes: int
    of: int
    slices: tuple[tuple[str, int], ...]

    @property
    def told(self) -> str:
        cut = " + ".join(f"{count} {name}" for name, count in self.slices)
        return f"{self.nodes} of {self.of} {self.type} nodes, each GPU as {cut}"


@dataclass(frozen=True, slots=True)
class LayoutAdvice:
    """A layout and what it would have done: figures, and ratios to the cluster as it is, with 95% intervals."""

    layout: MigLayout
    figures: dict[str, float]
    ratio: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    on_slices: float  # share of the jobs of one GPU that may use some slice

    def as_value(self) -> dict[str, Any]:
        value = {"layout": self.layout.told, "class": self.layout.row, "nodes": self.layout.nodes}
        value |= {"slices": dict(self.layout.slices), "metrics": self.figures, "on_slices": self.on_slices}
        return value | {"ratio": self.ratio, "low": self.low, "high": self.high, "worth_it": self.worth_it}

    @property
    def worth_it(self) -> bool:
        """Whether mean JCT falls beyond chance, and the 99th percentile of waits does not rise so."""
        return self.high["mean_jct"] < 1.0 and self.low["p99_wait"] <= 1.0


def profiles(gpu_type: str) -> dict[int, float]:
    """GB of each profile of a GPU by its compute units; none if it cannot be cut."""
    name = gpu_type.upper()
    if slice_of(gpu_type) is not None:
        return {}
    for known, (whole, each) in _CUTTABLE.items():
        if name.startswith(known):
            double = 2.0 if whole == 40 and "80" in name.removeprefix(known) else 1.0
            return {units: gb * double for units, gb in each.items()}
    return {}


def layouts(cluster: Cluster) -> list[MigLayout]:
    """What could be cut: each class of whole GPUs that know MIG, some of its nodes, in each way."""
    found = []
    for row, c in enumerate(cluster.classes, 1):
        known = profiles(c.gpu_type) if c.gpus and not c.gres else {}
        ways = _LAYOUTS_A30 if c.gpu_type.upper().startswith("A30") else _LAYOUTS
        for units in ways if known else ():
            if len(units) * c.gpus > 64:
                continue  # more devices than a node may have
            names = [f"{c.gpu_type}_{u}g.{known[u]:g}gb" for u in units]
            slices = tuple((name, names.count(name)) for name in dict.fromkeys(names))
            counts = sorted({max(1, round(share * c.count)) for share in _SHARES})
            found += [MigLayout(c.gpu_type, c.partition, row, n, c.count, slices) for n in counts if n < c.count]
    if not found:
        raise InputError(
            f"no node class of cluster {cluster.name} has whole GPUs that MIG can cut, and more than one node",
            remedy=f"MIG is known of {', '.join(_CUTTABLE)}",
        )
    return found


def cut(cluster: Cluster, layout: MigLayout) -> Cluster:
    """The cluster with the layout's nodes behind the others of their class."""
    classes: list[NodeClass] = []
    for row, c in enumerate(cluster.classes, 1):
        if row != layout.row:
            classes.append(c)
            continue
        gres = tuple((f"gpu:{name}", count * c.gpus) for name, count in layout.slices)
        classes += [replace(c, count=c.count - layout.nodes), replace(c, count=layout.nodes, gres=gres)]
    return Cluster(cluster.name, tuple(classes))


def memory_needs(trace: Trace, headroom: float) -> Array:
    """GB that each job needs on one GPU, NaN where nobody measured it."""
    known = trace.measured.get("gpu_mem_gb")
    if known is None or np.isnan(known).all():
        raise InputError(
            "says of no job how much GPU memory it used, so that nobody knows which would fit on a slice",
            file=trace.name,
            field="gpu_mem_gb",
            remedy="let node agents measure (docs/telemetry.md) and use `slurm-rl traces from-slurm --telemetry`",
        )
    return known * headroom


def advise(
    trace: Trace,
    cluster: Cluster,
    contender: Contender,
    *,
    replicates: int = 3,
    headroom: float = 1.1,
    placement: str = "greedy",
    seed: int = 0,
    chosen: Sequence[MigLayout] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> tuple[dict[str, float], list[LayoutAdvice]]:
    """Figures of the cluster as it is, and every layout with its gain, the best first."""
    memory_needs(trace, headroom)
    candidates = list(layouts(cluster) if chosen is None else chosen)
    before: list[dict[str, float]] = []
    after: list[list[dict[str, float]]] = [[] for _ in candidates]
    eligible = [0.0] * len(candidates)
    for number in range(replicates):
        prepared = prepare(replicate(trace, number, seed), cluster, seed=seed)
        before.append(_figures(prepared, contender, placement))
        for k, layout in enumerate(candidates):
            sliced, eligible[k] = on_slices(prepared, layout, memory_needs(prepared.trace, headroom))
            after[k].append(_figures(sliced, contender, placement))
            if on_progress is not None:
                on_progress("layouts", (number * len(candidates) + k + 1) / (replicates * len(candidates)))
    found = [_advice(*row, before) for row in zip(candidates, after, eligible, strict=True)]
    means = {name: float(np.mean([b[name] for b in before])) for name in COMPARED}
    return means, sorted(found, key=lambda a: a.ratio["mean_jct"])


def on_slices(prepared: Prepared, layout: MigLayout, needs: Array) -> tuple[Prepared, float]:
    """The same jobs on the cluster with a layout, and the share of jobs of one GPU that may use a slice."""
    trace, old = prepared.trace, prepared.cluster
    cluster = cut(old, layout)
    parent = next(c for c in old.classes if c.gpu_type == layout.type)
    share = {name: part.compute for name, _ in layout.slices if (part := slice_of(name)) is not None}
    memory = {name: part.mem_gb for name, _ in layout.slices if (part := slice_of(name)) is not None}
    busy = trace.measured.get("gpu_util", np.full(len(trace), 100.0)) / 100.0
    kind = np.searchsorted(_BUSY, np.where(np.isnan(busy), 1.0, np.clip(busy, 0.0, 1.0)))
    kind = np.minimum(kind, len(_BUSY) - 1)
    whole = old.gpu_types
    asked, names = trace.gpu_type.strings(), []
    # A run time belongs to the type that a row names; where it names several, to speed 1.
    work = prepared.workload.reference_speed * trace.run_time
    single = trace.num_gpus == 1
    may = 0
    for j in range(len(trace)):
        accepted = [t for t in asked[j].split("|") if t] or list(whole)
        if single[j] and layout.type in accepted and not math.isnan(needs[j]):
            for name, gb in memory.items():
                speed = parent.speed * min(1.0, share[name] / _BUSY[kind[j]])
                if needs[j] <= gb and work[j] / speed <= max(trace.time_limit[j], trace.run_time[j]):
                    accepted.append(name)
            may += any(name in accepted for name in memory)
        names.append("|".join(accepted) if trace.num_gpus[j] > 0 else "")
    classes = tuple(
        {name: parent.speed * min(1.0, share[name] / most) * (1.0 + _RATHER) for name in share} for most in _BUSY
    )
    speeds = Speeds({}, classes, kind.astype(np.int64))
    speed_of = {c.gpu_type: c.speed for c in old.classes}
    run = trace.run_time.copy()
    for j in np.flatnonzero([name != was for name, was in zip(names, asked, strict=True)]).tolist():
        run[j] = round(work[j] / speed_of.get(names[j], 1.0))
    changed = replace(trace, gpu_type=Labels.of(names), run_time=run)
    workload = build(requests_of(changed), cluster, speeds=speeds)
    return Prepared(changed, cluster, workload, prepared.measured), may / max(int(single.sum()), 1)


def _figures(prepared: Prepared, contender: Contender, placement: str) -> dict[str, float]:
    (run,) = replay(prepared, [contender], placement=placement)
    return {name: float(run.metrics[name] or 0.0) for name in (*COMPARED, "killed", "rejected")}


def _advice(
    layout: MigLayout, runs: list[dict[str, float]], may: float, before: list[dict[str, float]]
) -> LayoutAdvice:
    from scipy.stats import t as student

    ratio, low, high = {}, {}, {}
    for name in COMPARED:
        logs = np.array([math.log(max(a[name], 1e-9) / max(b[name], 1e-9)) for a, b in zip(runs, before, strict=True)])
        half = 0.0
        if len(logs) > 1:
            half = float(student.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
        middle = float(logs.mean())
        ratio[name], low[name], high[name] = (math.exp(x) for x in (middle, middle - half, middle + half))
    figures = {name: float(np.mean([r[name] for r in runs])) for name in runs[0]}
    return LayoutAdvice(layout, figures, ratio, low, high, may)
