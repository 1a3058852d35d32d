"""`bench packing`: fills a cluster until nothing more fits, by placements, by FGD, and by agents that may skip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from slurm_rl.bench import pods
from slurm_rl.bench.pods import Filling, PodNodes
from slurm_rl.bench.statistics import Interval, difference, mean
from slurm_rl.bench.suite import Drawing, Findings, PageTable, Row, Settings, Unit
from slurm_rl.kernel.arrays import MIX, Array
from slurm_rl.place.plan import Planner, PlannerSettings
from slurm_rl.place.problem import Weights
from slurm_rl.policy.registry import parse_policy
from slurm_rl.report.charts import Axis
from slurm_rl.report.intervals import IntervalBar, draw_bars
from slurm_rl.report.text import plural
from slurm_rl_sim.replay import prepare
from slurm_rl_sim.simulation import ReplayState

# What fills: its name, and the placement of the engine behind it.
PLACED = {
    "round-robin": "round-robin", "first-fit": "first-fit", "binpack": "best-fit", "spread": "spread",
    "dot-product": "dot-product", "fgd": "fgd", "fgd (last 64 pods)": "fgd", "mip+blocked": "mip",
}  # fmt: skip
SKIP_RULE, AGENT, BEST = "fgd+skip rule", "ppo+skip", "fgd"
TRAININGS = 3  # agents, each of a seed of its own
_BLOCKED = 60.0  # seconds: the weight of a free GPU that is of no use
_FEW = {("openb", "mip+blocked"): 2}  # seeds of what takes minutes each
_BATCH = 64  # pods that the programme places together
_HEAVY = 1.5  # times the free CPUs of a free GPU: the rule skips pods above that
_AIMS = {
    "gpu_allocation": "GPUs given out", "cpu_utilization": "CPUs given out", "memory_utilization": "memory given out",
    "success_rate": "pods placed",
}  # fmt: skip


def plan(settings: Settings) -> list[Unit]:
    """A cluster, a way to fill it and a seed; agents fill all seeds after one training."""
    if settings["traces"] is not None:
        pods.openb_files(settings["traces"])
    units = []
    for where in _places(settings):
        for seed in range(settings["seeds"]):
            units += [Unit(f"{where}/{by}/{seed}", {"where": where, "by": by, "seed": seed})
                      for by in (*PLACED, SKIP_RULE) if seed < _FEW.get((where, by), seed + 1)]  # fmt: skip
        units += [Unit(f"{where}/{AGENT}/{t}", {"where": where, "by": AGENT, "seed": t}) for t in range(TRAININGS)]
    return units


def _places(settings: Settings) -> list[str]:
    return ["generated", *(["openb"] if settings["traces"] is not None else [])]


@lru_cache(maxsize=2)
def _filling(where: str, seed: int, folder: str | None) -> Filling:
    return pods.generated(seed) if where == "generated" else pods.openb(str(folder), seed)


def run(unit: Unit, settings: Settings) -> list[Row]:
    """A row for each seed that was filled."""
    where, by, seed = (unit.what[k] for k in ("where", "by", "seed"))
    if by == AGENT:
        return _by_agent(where, seed, settings)
    filling = _filling(where, seed, settings["traces"])
    placed = _by_rule(filling) if by == SKIP_RULE else _by_placement(filling, by)
    return [_row(filling, by, seed, placed)]


def _row(filling: Filling, by: str, seed: int, placed: Array, training: int | None = None) -> Row:
    cluster = filling.cluster
    asks = filling.asks()[placed].sum(axis=0) if placed.any() else np.zeros(4)
    cpus = sum(c.count * (c.cpus or 0) for c in cluster.classes)
    mem = sum(c.count * (c.mem_gb or 0) for c in cluster.classes)
    refused = np.flatnonzero(~placed)
    before = filling.gpus[: int(refused[0])].sum() if len(refused) else filling.gpus.sum()
    return {
        "cluster": filling.name,
        "method": by,
        "seed": seed,
        "training": training,
        "nodes": cluster.nodes,
        "gpus": cluster.gpus,
        "pods": len(filling),
        "gpu_allocation": float((asks[2] + asks[3] / pods.MILLI) / cluster.gpus),
        "cpu_utilization": float(asks[0] / cpus),
        "memory_utilization": float(asks[1] / 1024 / mem),
        "success_rate": float(placed.mean()),
        "gpu_pods_placed": float(placed[filling.gpus > 0].mean()),
        "first_refusal": float(before / cluster.gpus),
    }


def _by_placement(filling: Filling, by: str) -> Array:
    """Which pods the engine starts, one a second, each where the placement puts it."""
    together = _BATCH if PLACED[by] == "mip" else 1  # a programme of one pod has nothing to choose
    # Who was refused stays refused, since nobody leaves: a programme looks at those who came last.
    prepared = prepare(filling.trace(together), filling.cluster)
    planner = Planner(PlannerSettings(weights=Weights(blocked=_BLOCKED)))
    simulation = ReplayState(
        prepared.workload, prepared.trace.run_time, parse_policy("lcfs" if together > 1 else "fcfs"),
        backfill="firstfit", placement=PLACED[by], planner=planner,
    )  # fmt: skip
    if by == BEST:  # as published: what pods usually ask for is known
        simulation.world["mix"], simulation.world["weighs"] = _known_mix(filling, simulation.world["requests"]), 2
    simulation.run(len(filling))
    started: Array = simulation.world["live"]["start"] >= 0
    return started


def _known_mix(filling: Filling, requests: Array) -> Array:
    rows = filling.mix()
    found = np.zeros(len(rows), dtype=MIX)
    for i, (portion, cpus, mem, whole, share) in enumerate(rows.tolist()):
        match = (requests["cpu"] == cpus) & (requests["mem"] == mem) & (requests["gpu"] == whole)
        found["portion"][i], found["request"][i] = portion, int(np.argmax(match & (requests["share"] == share)))
    return found


def _by_rule(filling: Filling) -> Array:
    """FGD that skips a pod with more CPUs for each GPU than 1.5 times what is free for each free GPU: one line."""
    nodes = PodNodes(filling.cluster, filling.mix())
    choice, grown = np.zeros(1, dtype=np.int64), np.zeros(1)
    placed = np.zeros(len(filling), dtype=bool)
    on_cpu_nodes = nodes.size[:, 2] == 0
    for i, ask in pods.walk(filling):
        if not nodes.best(ask, choice, grown):
            continue
        gpus = ask[2] + ask[3] / pods.MILLI
        cpus, _, idle = nodes.free
        cpus -= float(nodes.cpus[on_cpu_nodes].sum())
        there = bool(on_cpu_nodes[choice[0]])
        if not there and idle > 0 and ask[0] > _HEAVY * max(gpus, 0.1) * cpus / idle:
            continue
        nodes.put(int(choice[0]), ask)
        placed[i] = True
    return placed


def _by_agent(where: str, training: int, settings: Settings) -> list[Row]:
    """Trains on small clusters and other orders, then fills every seed's cluster."""
    import torch

    from slurm_rl.bench.packing_agent import Recipe, fill, train

    torch.set_num_threads(1)
    folder = settings["traces"]
    make = (lambda s: pods.generated(s, 16)) if where == "generated" else (lambda s: _small_openb(str(folder), s))
    net, curve = train(make, Recipe(steps=settings["steps"]), training)
    rows = []
    for seed in range(settings["seeds"]):
        filling = _filling(where, seed, folder)
        rows.append(_row(filling, AGENT, seed, fill(net, filling)[0], training) | {"_curve": curve})
    return rows


@lru_cache(maxsize=1)
def _openb_once(folder: str) -> tuple[Any, Any, Any]:
    whole = pods.openb(folder, 0)
    asked = np.column_stack([whole.cpus, whole.mem, whole.gpus])
    kinds, count = np.unique(asked, axis=0, return_counts=True)
    return whole.cluster, kinds, count.astype(float)


def _small_openb(folder: str, seed: int) -> Filling:
    cluster, kinds, count = _openb_once(folder)
    part = pods._part(cluster, 48, seed)
    fits = kinds[:, 2] <= max(c.gpus for c in part.classes)
    return pods.until_asked("openb", part, kinds[fits], count[fits], 1.3, seed)


def find(rows: Sequence[Row], settings: Settings) -> Findings:
    """Who gives out most GPUs, by how much, and at whose cost."""
    summary = [
        "Pods come one by one and never end, until they have asked for 1.5 (generated) or 1.3 times (openb) all GPUs: "
        f"at the end nothing more fits. {plural(settings['seeds'], 'seed')}, each with an order of its own that every "
        "method meets; intervals are 95%, over seeds. mip+blocked places 64 pods at a time, all others one by one "
        f"({', '.join(f'{m} on {w}: {n} seeds' for (w, m), n in _FEW.items())}).",
        f"{AGENT} was trained on clusters of 16 (generated) or 48 nodes (openb) and other orders, "
        f"{settings['steps']:,} pods, {TRAININGS} trainings; it may skip a pod that fits. So may {SKIP_RULE}, which "
        f"refuses pods with more than {_HEAVY:g} times the free CPUs of a free GPU.",
    ]
    tables, drawings, figures = [], [], {}
    for where in dict.fromkeys(r["cluster"] for r in rows):
        mine = [r for r in rows if r["cluster"] == where]
        by = {m: _means(mine, m) for m in dict.fromkeys(r["method"] for r in mine)}
        leads = {m: _against(by, m) for m in by}
        order = sorted(by, key=lambda m: -leads[m].value)
        table = [[m, *(_share([v[a] for v in by[m].values()]) for a in _AIMS), f"{100 * leads[m].value:+.2f} points "
                  f"({100 * leads[m].low:+.2f} to {100 * leads[m].high:+.2f})"] for m in order]  # fmt: skip
        tables.append(PageTable(f"Filled: {where}", ("method", *_AIMS.values(), f"GPUs against {BEST}"), table))
        summary += _said(where, by, leads, order)
        figures[where] = {m: {"gpu_allocation": mean([v["gpu_allocation"] for v in by[m].values()]).as_list(),
                              "against_fgd": leads[m].as_list()} for m in order}  # fmt: skip
        bars = []
        for i, m in enumerate(order):
            own = mean([v["gpu_allocation"] for v in by[m].values()])
            bars.append(IntervalBar(m, own.value, own.low, own.high, i))
        picture = draw_bars(f"GPUs given out: {where}", bars, Axis("of all GPUs", "share"))
        drawings.append(Drawing(f"gpu_allocation_{where}", f"GPUs given out at the end, {where}.", *picture))
    drawings += _curves(rows)
    clean = [{k: v for k, v in r.items() if not k.startswith("_")} for r in rows]
    return Findings("Packing: filling a cluster until nothing fits", summary, figures, tables, drawings,
                    {"packing_metrics.csv": clean})  # fmt: skip


def _means(rows: Sequence[Row], method: str) -> dict[int, dict[str, float]]:
    """By seed: figures, over trainings where there are several."""
    found: dict[int, list[Row]] = {}
    for r in rows:
        if r["method"] == method:
            found.setdefault(r["seed"], []).append(r)
    return {seed: {a: float(np.mean([r[a] for r in some])) for a in _AIMS} for seed, some in found.items()}


def _against(by: dict[str, dict[int, dict[str, float]]], method: str) -> Interval:
    mine, theirs = by[method], by[BEST]
    return difference([v["gpu_allocation"] for v in mine.values()], [theirs[s]["gpu_allocation"] for s in mine])


def _share(values: Sequence[float]) -> str:
    found = mean(values)
    return f"{100 * found.value:.1f}% ({100 * found.low:.1f}–{100 * found.high:.1f})"


def _said(where: str, by: dict[str, Any], leads: dict[str, Interval], order: Sequence[str]) -> list[str]:
    first = order[0]
    own = mean([v["gpu_allocation"] for v in by[first].values()])
    said = [f"{where}: {first} gives out most GPUs, {100 * own.value:.1f}%; "
            + (f"{100 * leads[first].value:.2f} points above {BEST} ({100 * leads[first].low:.2f} to "
               f"{100 * leads[first].high:.2f})." if first != BEST else f"nobody is ahead of {BEST}.")]  # fmt: skip
    lead = leads[AGENT]
    verdict = "ahead of" if lead.low > 0 else "behind" if lead.high < 0 else "level with"
    placed = {m: float(np.mean([v["success_rate"] for v in by[m].values()])) for m in (AGENT, BEST)}
    said.append(
        f"{where}: {AGENT} is {verdict} {BEST} by {100 * lead.value:+.2f} points of GPUs ({100 * lead.low:+.2f} to "
        f"{100 * lead.high:+.2f}), and places {100 * placed[AGENT]:.1f}% of pods against {100 * placed[BEST]:.1f}%."
    )
    return said


def _curves(rows: Sequence[Row]) -> list[Drawing]:
    from slurm_rl.bench.curves import draw_curves

    found = []
    for where in dict.fromkeys(r["cluster"] for r in rows):
        known = {r["training"]: r["_curve"] for r in rows if r["cluster"] == where and r.get("_curve")}
        lines = {f"training {t}": [(float(x), float(y)) for x, y in c if math.isfinite(y)] for t, c in known.items()}
        if lines:
            found.append(draw_curves(f"packing_curve_{where}", f"Training on {where}", "pods shown",
                                     "GPUs given out", "share", lines))  # fmt: skip
    return found
