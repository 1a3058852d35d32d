"""`bench robust`: the same schedulers on distorted workloads, against their own undistorted runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurm_rl.bench.schedulers import LIMIT, reachable, runs
from slurm_rl.bench.standings import by_scheduler, cell, looks_of, percent, shown
from slurm_rl.bench.statistics import Interval, mean, ratio
from slurm_rl.bench.suite import Drawing, Findings, PageTable, Row, Settings, Unit
from slurm_rl.domain.cluster import Cluster
from slurm_rl.report.charts import Axis
from slurm_rl.report.intervals import IntervalBar, draw_bars
from slurm_rl.report.radar import draw_radar
from slurm_rl.report.text import plural
from slurm_rl.traces.arrivals import DAY
from slurm_rl.traces.generate import generate
from slurm_rl.traces.perturb import Step, perturb
from slurm_rl.traces.regimes import REGIMES, regime
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import prepare
from slurm_rl_sim.simulation import NodeEvents

# Eight regimes of 16 GPUs that are neither idle nor drowned, each distorted in twenty ways: 160 scenarios.
BASES = tuple(f"{shape}-x{x}-g16" for shape in ("base", "bursty", "diurnal", "shifted") for x in (1, 2))
LEVELS: dict[str, tuple[float, ...]] = {
    "arrival-noise": (0.05, 0.10, 0.15, 0.20),  # of the gaps between submissions
    "duration": (0.2, 0.4, 0.6, 0.8),  # spread of the logarithm of run times
    "phase-shift": (0.25, 0.5, 0.75),  # of the workload's length
    "burst": (1.5, 2.0, 2.5, 3.0),  # times as fast at the start of each hour
    "capacity-dip": (0.25, 0.5),  # of the nodes, four times for a sixteenth of the length
    "drift": (0.25, 0.5, 1.0),  # growth of run times from the first job to the last
}
EXPLODED, CROWD = (
    2.0,
    0.05,
)  # a queue explodes above this multiple of the clean run's, with this share of all jobs in it
_GPUS_A_NODE = 2
_KEPT = ("avg_jct", "p95_jct", "slowdown", "sla_met", "queue_len_max", "utilization", "energy", "fairness_jain",
         "mixed", "oracle_gap", "best_fixed_gap")  # fmt: skip


def scenarios() -> list[dict[str, str | float]]:
    """The manifest: 160 of them."""
    return [
        {"scenario": f"{base}+{kind}={level:g}", "regime": base, "kind": kind, "level": level}
        for base in BASES
        for kind, levels in LEVELS.items()
        for level in levels
    ]


def plan(settings: Settings) -> list[Unit]:
    """The clean runs, then the scenarios."""
    clean: list[dict[str, str | float]] = [
        {"scenario": f"{b}+clean", "regime": b, "kind": "clean", "level": 0.0} for b in BASES
    ]
    seeds = range(settings["seeds"])
    return [Unit(f"{s['scenario']}/{seed}", s | {"seed": seed}) for s in (*clean, *scenarios()) for seed in seeds]


def workload(name: str, kind: str, level: float, seed: int, jobs: int) -> tuple[Trace, Cluster, NodeEvents | None]:
    """A scenario's jobs and cluster (nodes of two GPUs: some can go while others stay), and nodes that go away."""
    spec, cluster = regime(name, jobs=jobs, seed=seed)
    (whole,) = cluster.classes
    part = whole.gpus * whole.count // _GPUS_A_NODE
    share = _GPUS_A_NODE / whole.gpus
    node = replace(
        whole, count=part, gpus=_GPUS_A_NODE, cpus=round((whole.cpus or 0) * share), mem_gb=(whole.mem_gb or 0) * share,
        watts_idle=whole.watts_idle * share, watts_busy=whole.watts_busy * share,
    )  # fmt: skip
    cluster = Cluster(cluster.name, (node,))
    trace = generate(spec, cluster)
    first, last = trace.span()
    if kind == "capacity-dip":
        return trace, cluster, _dips(cluster, first, last - first, level, seed)
    if kind != "clean":
        scale = (last - first) / DAY if kind == "phase-shift" else 1.0
        trace = perturb(trace, [Step(kind, level * scale)], seed=seed)
    return trace, cluster, None


def _dips(cluster: Cluster, first: int, length: int, level: float, seed: int) -> NodeEvents:
    dice = np.random.default_rng([seed, 23])
    rows = []
    for dip in range(4):
        begin = first + length * (2 * dip + 1) // 8
        gone = dice.choice(cluster.nodes, size=round(level * cluster.nodes), replace=False)
        rows += [(begin, n, 0) for n in gone] + [(begin + length // 16, n, 1) for n in gone]
    time, node, up = zip(*sorted(rows), strict=True)
    return NodeEvents(np.array(time, np.int64), np.array(node, np.int32), np.array(up, np.int8))


def run(unit: Unit, settings: Settings) -> list[Row]:
    """One row a scheduler."""
    u = unit.what
    trace, cluster, events = workload(u["regime"], u["kind"], u["level"], u["seed"], settings["jobs"])
    prepared = prepare(trace, cluster, seed=u["seed"])
    shape, intensity, gpus = REGIMES[u["regime"]]
    first = {k: u[k] for k in ("scenario", "regime", "kind", "level", "seed")}
    first |= {"workload_shape": shape, "intensity": intensity, "gpu_count": gpus}
    return [
        first | {"scheduler": row["scheduler"], "jobs": row["jobs"]} | {k: row[k] for k in _KEPT}
        for row in runs(prepared, settings["policy"], events)
    ]


def _with_deltas(rows: Sequence[Row]) -> list[Row]:
    """Distorted runs with their changes against the clean run of the same regime, seed and scheduler."""
    clean = {(r["regime"], r["seed"], r["scheduler"]): r for r in rows if r["kind"] == "clean"}
    spread: dict[tuple[str, str], list[float]] = {}
    for r in rows:
        spread.setdefault((r["scenario"], r["scheduler"]), []).append(r["avg_jct"])
    found = []
    for r in rows:
        if r["kind"] == "clean":
            continue
        own = clean[r["regime"], r["seed"], r["scheduler"]]
        each = spread[r["scenario"], r["scheduler"]]
        crowded = r["queue_len_max"] >= CROWD * r["jobs"]
        found.append(
            r
            | {f"delta_{k}": r[k] / own[k] - 1.0 for k in ("avg_jct", "p95_jct", "slowdown", "mixed")}
            | {"delta_sla_met": None if r["sla_met"] is None else r["sla_met"] - own["sla_met"]}
            | {"clean_queue_len_max": own["queue_len_max"]}
            | {"queue_explosion": int(crowded and r["queue_len_max"] > EXPLODED * max(own["queue_len_max"], 1))}
            | {"seed_variance": float(np.std(each, ddof=1) / np.mean(each)) if len(each) > 1 else None}
        )
    return found


def _against_clean(rows: Sequence[Row], column: str = "avg_jct") -> Interval:
    return ratio([1.0 + r[f"delta_{column}"] for r in rows], [1.0] * len(rows), [r["regime"] for r in rows])


def find(rows: Sequence[Row], settings: Settings) -> Findings:
    """Whom which distortion hurts, and whether the order of schedulers changes."""
    changed = _with_deltas(rows)
    dirty, clean = by_scheduler(changed), by_scheduler([r for r in rows if r["kind"] == "clean"])
    names = [n for n in dirty if reachable(n)]
    kinds = list(LEVELS)
    hurt = {n: _against_clean(dirty[n]) for n in dirty}
    by_kind = {n: {k: _against_clean([r for r in dirty[n] if r["kind"] == k]) for k in kinds} for n in dirty}
    worst = max(kinds, key=lambda k: float(np.mean([math.log(by_kind[n][k].value) for n in names])))
    calm, tossed = min(names, key=lambda n: hurt[n].value), max(names, key=lambda n: hurt[n].value)
    explosions = {n: sum(r["queue_explosion"] for r in dirty[n]) for n in dirty}
    summary = [
        f"{len(rows):,} runs: {len(scenarios())} scenarios and {len(BASES)} clean regimes × "
        f"{plural(settings['seeds'], 'seed')} × {len(dirty)} schedulers, {settings['jobs']:,} jobs each. Changes are "
        "against the clean run of the same scheduler, regime and seed; intervals draw whole regimes.",
        f"Least disturbed: {calm}, whose mean completion time becomes ×{cell(hurt[calm])}; most: {tossed}, "
        f"×{cell(hurt[tossed])}. Who is already slow when nothing happens has less to lose, so this alone is no merit.",
        f"The distortion that hurts most is {worst}.",
    ]
    firsts = {}
    for kind in ("clean", *kinds):
        pool = clean if kind == "clean" else {n: [r for r in dirty[n] if r["kind"] == kind] for n in dirty}
        score = {n: float(np.mean([math.log(r["mixed"]) for r in pool[n]])) for n in names}
        first, second = sorted(names, key=lambda n: score[n])[:2] if len(names) > 1 else (names[0], names[0])
        lead = ratio([r["mixed"] for r in pool[first]], [r["mixed"] for r in pool[second]],
                     [r["regime"] for r in pool[first]])  # fmt: skip
        firsts[kind] = (first, second, lead)
    same = [k for k in kinds if firsts[k][0] == firsts["clean"][0]]
    summary.append(
        f"Mixed objective: {firsts['clean'][0]} is first on the clean regimes, and still first under "
        f"{', '.join(same) if same else 'none of the distortions'}"
        + ("." if len(same) == len(kinds) else "; under "
           + ", ".join(f"{k} it is {firsts[k][0]}" for k in kinds if k not in same) + ".")
    )  # fmt: skip
    undecided = [k for k in kinds if firsts[k][2].high >= 1.0]
    if undecided:
        summary.append(f"Nobody leads beyond chance under {', '.join(undecided)}.")
    total = sum(len(v) for n, v in dirty.items() if n in names)
    most = max(names, key=lambda n: explosions[n])
    summary.append(
        f"Queue explosions (longest queue above {EXPLODED:g} times that of the clean run, and at least {CROWD:.0%} of "
        f"all jobs in it): {sum(explosions[n] for n in names):,} of {total:,} runs; most under {most} "
        f"({explosions[most]})."
    )
    table = PageTable(
        "Mean completion time under a distortion, as a multiple of the clean run's",
        ("scheduler", "all", *kinds, "queue explosions", "spread over seeds"),
        [[n, cell(hurt[n]), *(cell(by_kind[n][k]) for k in kinds), f"{explosions[n]} of {len(dirty[n])}",
          _spread(dirty[n])] for n in sorted(dirty, key=lambda n: hurt[n].value)],
        "Spread: mean coefficient of variation of a scenario's mean completion time over seeds.",
    )  # fmt: skip
    leaders = PageTable(
        "First under each distortion, mixed objective", ("distortion", "first", "second", "ahead by", "clear"),
        [[k, f, s, percent(lead), "yes" if lead.high < 1 else "no"] for k, (f, s, lead) in firsts.items()],
    )  # fmt: skip
    figures = {
        "runs": len(rows), "scenarios": len(scenarios()), "explosions": explosions,
        "against_clean": {n: v.as_list() for n, v in hurt.items()},
        "first": {k: {"first": f, "second": s, "ratio": lead.as_list()} for k, (f, s, lead) in firsts.items()},
    }  # fmt: skip
    files: dict[str, Sequence[Row]] = {"robustness_metrics.csv": changed, "scenarios.csv": scenarios()}
    return Findings("Robust: schedulers on 160 distorted workloads", summary, figures, (leaders, table),
                    _drawings(dirty, by_kind, hurt), files)  # fmt: skip


def _spread(rows: Sequence[Row]) -> str:
    known = [r["seed_variance"] for r in rows if r["seed_variance"] is not None]
    return f"{mean(known).value:.2f}" if known else "–"


def _drawings(
    dirty: dict[str, list[Row]], by_kind: dict[str, dict[str, Interval]], hurt: dict[str, Interval]
) -> list[Drawing]:
    names = shown(dirty)
    radar = draw_radar(
        "Completion time against the clean run", list(LEVELS),
        [[by_kind[n][k].value for k in LEVELS] for n in names], looks_of(names),
    )  # fmt: skip
    order = sorted(hurt, key=lambda n: hurt[n].value)
    bars = [IntervalBar(n, hurt[n].value, hurt[n].low, hurt[n].high, i, n == LIMIT) for i, n in enumerate(order)]
    return [
        Drawing("robustness_radar", "Mean completion time as a multiple of the clean run's.", *radar),
        Drawing("robustness", "Over all distortions, with 95% intervals.",
                *draw_bars("Against the clean run", bars, Axis("multiple of the clean run", "count"), 1.0)),
    ]  # fmt: skip
