"""`bench ablate`: retrains an agent without a part, and compares both on the same workloads."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_rl.bench.schedulers import BASE, contender_of, measured, mixed
from slurm_rl.bench.standings import cell
from slurm_rl.bench.statistics import Interval, ratio
from slurm_rl.bench.suite import Drawing, Findings, PageTable, Row, Settings, Unit
from slurm_rl.bench.training import JOBS, SCENES, Variant, iterations, trained
from slurm_rl.report.charts import Axis
from slurm_rl.report.intervals import IntervalBar, draw_bars
from slurm_rl.report.text import plural
from slurm_rl.traces.generate import generate
from slurm_rl.traces.regimes import REGIMES, regime
from slurm_rl_sim.replay import Contender, prepare, replay

# Of each agent: the whole, and the same without one part.
VARIANTS: dict[str, tuple[Variant, ...]] = {
    "metadqn": (
        Variant("metadqn", "whole"),
        Variant("metadqn", "regime features", {"regime": 0}),
        Variant("metadqn", "replay balancing", {"balance": 0}),
        Variant("metadqn", "deadline penalty", {"deadline": 0}),
        Variant("metadqn", "energy term", {"energy": 0}),
        Variant("metadqn", "target network", {"target": 0}),
        Variant("metadqn", "job age", {"age": 0}),
        Variant("metadqn", "paired trials", {"paired": 0}),
    ),
    "ppo": (
        Variant("ppo", "whole", prepared=True),
        Variant("ppo", "attention", without=("attention",), prepared=True),
        Variant("ppo", "hidden layers", without=("hidden",), prepared=True),
        Variant("ppo", "pool context", without=("context",), prepared=True),
        Variant("ppo", "history", without=("history",), prepared=True),
        Variant("ppo", "spread of estimates", without=("spread",), prepared=True),
        Variant("ppo", "entropy bonus", {"entropy": 0.0}, prepared=True),
        Variant("ppo", "lessons and search"),
    ),
}
# Workloads that nobody is trained on: a regime of every shape and intensity, seeds far from those of trainings.
TESTED = tuple(name for name in REGIMES if name.endswith("g8"))
_SEED = 700_000
_AIMS = {"mixed": "mixed objective", "slowdown": "mean bounded slowdown", "avg_jct": "mean completion time"}


def plan(settings: Settings) -> list[Unit]:
    """A variant and a seed."""
    return [
        Unit(f"{agent}/{v.name}/{seed}", {"agent": agent, "variant": v.name, "seed": seed})
        for seed in range(settings["seeds"])
        for agent, variants in VARIANTS.items()
        for v in variants
    ]


def run(unit: Unit, settings: Settings) -> list[Row]:
    """Trains the variant, then a row for each workload."""
    agent, name, seed = (unit.what[k] for k in ("agent", "variant", "seed"))
    variant = next(v for v in VARIANTS[agent] if v.name == name)
    policy, curve = trained(variant, seed, steps=settings["steps"])
    rows = []
    for where in TESTED:
        spec, cluster = regime(where, jobs=settings["jobs"], seed=_SEED + seed)
        prepared = prepare(generate(spec, cluster), cluster, seed=seed)
        base = measured(replay(prepared, [contender_of(BASE)])[0])
        own = measured(replay(prepared, [Contender(policy, "easy")])[0])
        shape, intensity, gpus = REGIMES[where]
        rows.append({
            "agent": agent, "removed": "nothing" if name == "whole" else name, "seed": seed, "regime": where,
            "workload_shape": shape, "intensity": intensity, "gpu_count": gpus,
            **{k: own[k] for k in ("avg_jct", "p95_jct", "slowdown", "sla_met", "energy", "fairness_jain")},
            "mixed": mixed(own, base), "validation": min(y for *_, y in curve),
        })  # fmt: skip
    return rows


def _against_whole(rows: Sequence[Row], agent: str, removed: str, column: str) -> Interval:
    """The variant's cost as a multiple of the whole agent's, of the same seed on the same workload; regimes are drawn
    together with trainings."""
    whole = {(r["seed"], r["regime"]): r[column] for r in rows if r["agent"] == agent and r["removed"] == "nothing"}
    mine = [r for r in rows if r["agent"] == agent and r["removed"] == removed]
    pairs = [(r[column], whole[r["seed"], r["regime"]]) for r in mine]
    return ratio([a for a, _ in pairs], [b for _, b in pairs], [r["seed"] for r in mine])


def find(rows: Sequence[Row], settings: Settings) -> Findings:
    """What a part is worth: how much worse the agent is that never had it."""
    seeds = plural(settings["seeds"], "training")
    summary = [
        f"Each variant was trained anew {settings['seeds']} times, {iterations(settings['steps'])} iterations of "
        f"{SCENES} workloads of {JOBS} jobs, and tested on {len(TESTED)} regimes under workloads of its own. Ratios "
        "are to the whole agent of the same seed on the same workload: above 1, the part is worth something. Intervals "
        f"are 95% and draw trainings: of {seeds}, they are wide.",
    ]
    tables, drawings, figures, deltas = [], [], {}, []
    for agent, variants in VARIANTS.items():
        found = {v.name: {a: _against_whole(rows, agent, v.name, a) for a in _AIMS} for v in variants[1:]}
        order = sorted(found, key=lambda n: -found[n]["mixed"].value)
        needed = [n for n in order if found[n]["mixed"].low > 1.0]
        harmful = [n for n in order if found[n]["mixed"].high < 1.0]
        summary.append(
            f"{agent}: " + (f"worse beyond chance without {', '.join(needed)}" if needed else
                            "no part's removal makes it worse beyond chance")
            + (f"; better without {', '.join(harmful)}." if harmful else ".")
        )  # fmt: skip
        tables.append(PageTable(f"{agent} without a part", ("removed", *_AIMS.values()),
                            [[n, *(cell(found[n][a], 3) for a in _AIMS)] for n in order]))  # fmt: skip
        bars = [IntervalBar(n, found[n]["mixed"].value, found[n]["mixed"].low, found[n]["mixed"].high, i)
                for i, n in enumerate(order)]  # fmt: skip
        picture = draw_bars(f"Ablation of {agent}", bars, Axis("ratio to the whole", "count"), 1.0)
        caption = f"{agent} without a part: mixed objective against the whole."
        drawings.append(Drawing(f"ablation_{agent}", caption, *picture))
        figures[agent] = {n: found[n]["mixed"].as_list() for n in order}
        deltas += [{"agent": agent, "removed": n, "seeds": settings["seeds"],
                    **{f"{a}_{k}": v for a in _AIMS for k, v in zip(("ratio", "low", "high"),
                       found[n][a].as_list(), strict=True)}} for n in order]  # fmt: skip
    return Findings("Ablate: agents retrained without a part", summary, figures, tables, drawings,
                    {"ablation_metrics.csv": deltas, "ablation_runs.csv": rows})  # fmt: skip
