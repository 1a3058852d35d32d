"""`bench agents`: learning algorithms at equal budgets, of jobs played and of time, tested on real traces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_rl.bench.curves import draw_curves
from slurm_rl.bench.schedulers import BASE, LIMIT, available, contender_of, measured
from slurm_rl.bench.standings import cell
from slurm_rl.bench.statistics import Interval, ratio
from slurm_rl.bench.suite import Drawing, Findings, PageTable, Row, Settings, Unit
from slurm_rl.bench.training import JOBS, SCENES, Variant, iterations, public_traces, real_workloads, trained, windows
from slurm_rl.report.charts import Axis
from slurm_rl.report.intervals import IntervalBar, draw_bars
from slurm_rl.report.text import duration, plural
from slurm_rl_sim.replay import Contender, prepare, replay

LEARNERS = ("ppo", "reinforce", "d3qn", "sac", "metadqn")
# Beside them: rules, the shipped model, bandits that learn while they replay, and the limit.
BESIDE = (BASE, "sjf-age@user", "saf@user", "rl:default", "bandit:egreedy", "bandit:exp3", "bandit:linucb", LIMIT)
_SCORES = "metadqn is judged on other workloads and by other figures: compare its course, not its height."
_WINDOWS = 4  # stretches of each trace
_AIMS = {"slowdown": "mean bounded slowdown", "avg_wait": "mean wait", "p99_wait": "p99 wait"}


def plan(settings: Settings) -> list[Unit]:
    """An algorithm, a budget and a seed; and those that need no training."""
    if settings["traces"] is not None:
        public_traces(settings["traces"])
    seeds = range(settings["seeds"])
    units = [Unit("beside", {"beside": True})]
    budgets = ["jobs", *(["time"] if settings["seconds"] else [])]
    units += [Unit(f"{a}/{b}/{s}", {"algorithm": a, "budget": b, "seed": s})
              for s in seeds for b in budgets for a in LEARNERS]  # fmt: skip
    return units


def run(unit: Unit, settings: Settings) -> list[Row]:
    """Trains, then replays each stretch of each trace; a budget of time depends on the machine, others do not."""
    u = unit.what
    if "beside" in u:
        names = available(BESIDE)[0]
        return [
            row
            for name in names
            for row in _tested({"agent": name, "budget": "none", "seed": 0}, contender_of(name), settings)
        ]
    seconds = float(settings["seconds"]) if u["budget"] == "time" else 0.0
    # A choice of policies learns elsewhere from regimes; here from the same workloads as the others.
    variant = Variant(u["algorithm"], options={"sites": 1.0} if u["algorithm"] == "metadqn" else {})
    policy, curve = trained(variant, u["seed"], steps=settings["steps"], seconds=seconds)
    first = {"agent": u["algorithm"], "budget": u["budget"], "seed": u["seed"]}
    rows = _tested(first, Contender(policy, "easy"), settings)
    rows[0]["_curve"] = curve
    return rows


def _tested(first: Row, contender: Contender, settings: Settings) -> list[Row]:
    rows = []
    for name, k, trace, cluster, span in windows(real_workloads(settings["traces"]), _WINDOWS, settings["jobs"]):
        found = replay(prepare(trace, cluster, window=span), [contender])[0]
        figures = {key: value for key, value in measured(found).items() if not key.startswith("_")}
        rows.append(first | {"trace": name, "window": k} | figures)
    return rows


def _paired(rows: Sequence[Row], agent: str, budget: str, column: str) -> Interval:
    """Ratios to the base on the same stretches; stretches are drawn, and all trainings of an agent with them."""
    base = {(r["trace"], r["window"]): r[column] for r in rows if r["agent"] == BASE}
    mine = [r for r in rows if r["agent"] == agent and r["budget"] == budget]
    where = [(r["trace"], r["window"]) for r in mine]
    return ratio([r[column] + 1e-3 for r in mine], [base[w] + 1e-3 for w in where], where)


def find(rows: Sequence[Row], settings: Settings) -> Findings:
    """Who learns most from the same budget, and who gains by it on traces that nobody trained on."""
    agents = list(dict.fromkeys((r["agent"], r["budget"]) for r in rows))
    score = {pair: _paired(rows, *pair, "slowdown") for pair in agents}
    order = sorted(agents, key=lambda p: score[p].value)
    traces = list(dict.fromkeys(r["trace"] for r in rows))
    curves = {(r["agent"], r["budget"], r["seed"]): r["_curve"] for r in rows if r.get("_curve")}
    took = {p: max((c[-1][1] for k, c in curves.items() if k[:2] == p), default=0.0) for p in agents}
    summary = [
        f"{plural(len(LEARNERS), 'algorithm')} × {plural(settings['seeds'], 'seed')}, each trained from nothing on the "
        f"same generated workloads: {iterations(settings['steps'])} iterations of {SCENES} workloads of {JOBS} jobs"
        + (f", and again for {duration(settings['seconds'])} each" if settings["seconds"] else "")
        + f". Tested on {plural(_WINDOWS, 'stretch').replace('stretchs', 'stretches')} of {settings['jobs']:,} jobs of "
        f"{', '.join(traces)}, which nobody was trained on; ratios are to {BASE} on the same stretch.",
    ]
    learners = [p for p in order if p[0] in LEARNERS]
    for budget in dict.fromkeys(b for _, b in learners):
        first, second = [p for p in learners if p[1] == budget][:2]
        lead = _lead(rows, first, second)
        what = "jobs played" if budget == "jobs" else "time"
        if lead.high < 1:
            said = (
                f"{first[0]} learns best, slowdown ×{cell(score[first])} of {BASE}, ahead of {second[0]} beyond chance"
            )
        else:
            said = (f"nobody is ahead beyond chance; {first[0]} comes first, slowdown ×{cell(score[first])} of {BASE}, "
                    f"then {second[0]}")  # fmt: skip
        summary.append(f"At equal {what}: {said} (×{cell(lead)}).")
    best = learners[0]
    for name in ("rl:default", "sjf-age@user"):
        if (name, "none") in score:
            lead = _lead(rows, best, (name, "none"))
            verdict = "ahead of" if lead.high < 1 else "behind" if lead.low > 1 else "level with"
            summary.append(f"The best of them is {verdict} {name} (×{cell(lead)}).")
    bandits = [p for p in order if p[0].startswith("bandit:")]
    if bandits:
        summary.append(f"Of the bandits, which learn while they replay, {bandits[0][0]} is first: "
                       f"×{cell(score[bandits[0]])} of {BASE}.")  # fmt: skip
    summary += [
        _unlearned(curves),
        "metadqn and the bandits order no jobs: they choose among nine policies, one of which, rl:default, was trained "
        "for longer than any of these.",
    ]
    table = PageTable(
        "On real traces", ("agent", "budget", *_AIMS.values(), *traces, "longest training"),
        [[a, b, *(cell(_paired(rows, a, b, c)) for c in _AIMS),
          *(cell(_paired([r for r in rows if r["trace"] == t], a, b, "slowdown")) for t in traces),
          duration(took[a, b]) if took[a, b] else "–"] for a, b in order],
        f"Ratios to {BASE}, below 1 is better; columns of traces: mean bounded slowdown.",
    )  # fmt: skip
    bars = [IntervalBar(a if b == "none" else f"{a} ({b})", score[a, b].value, score[a, b].low, score[a, b].high, i,
                        a == LIMIT)
            for i, (a, b) in enumerate(order)]  # fmt: skip
    drawings = [
        *_curves(curves),
        Drawing("agents", f"Mean bounded slowdown on real traces, as a ratio to {BASE}.",
                *draw_bars("Agents on real traces", bars, Axis(f"ratio to {BASE}", "count"), 1.0)),
    ]  # fmt: skip
    lines = [{"agent": a, "budget": b, "seed": s, "jobs_played": x, "seconds": t, "validation": y}
             for (a, b, s), c in curves.items() for x, t, y in c]  # fmt: skip
    figures = {"slowdown": {f"{a}/{b}": v.as_list() for (a, b), v in score.items()}}
    clean = [{k: v for k, v in r.items() if not k.startswith("_")} for r in rows]
    return Findings("Agents: algorithms at equal budgets", summary, figures, (table,), drawings,
                    {"agents_metrics.csv": clean, "learning_curves.csv": lines})  # fmt: skip


def _lead(rows: Sequence[Row], mine: tuple[str, str], other: tuple[str, str]) -> Interval:
    """The ratio of two agents' slowdowns, stretch by stretch, over the means of their trainings."""

    def logs(pair: tuple[str, str]) -> dict[tuple[str, int], float]:
        found: dict[tuple[str, int], list[float]] = {}
        for r in rows:
            if (r["agent"], r["budget"]) == pair:
                found.setdefault((r["trace"], r["window"]), []).append(math.log(r["slowdown"]))
        return {k: math.exp(sum(v) / len(v)) for k, v in found.items()}

    a, b = logs(mine), logs(other)
    return ratio([a[k] for k in a], [b[k] for k in a])


def _unlearned(curves: Mapping[tuple[str, str, int], list[Any]]) -> str:
    """How many trainings of each algorithm never got better on validation than they began."""
    kept: dict[str, list[bool]] = {}
    for (agent, _, _), curve in curves.items():
        kept.setdefault(agent, []).append(min(y for *_, y in curve) >= curve[0][2])
    told = ", ".join(f"{a} {sum(k)} of {len(k)}" for a, k in kept.items())
    return (
        f"Trainings whose best network by validation is the one they began with, so that nothing was learned: {told}."
    )


def _curves(curves: dict[tuple[str, str, int], list[Any]]) -> list[Drawing]:
    """Validation scores by jobs played and by seconds, a line an algorithm: the mean over its seeds."""
    made = []
    for budget, at, axis in (("jobs", 0, "jobs played"), ("jobs", 1, "seconds"), ("time", 1, "seconds")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for a in dict.fromkeys(k[0] for k in curves):
            own = [c for k, c in curves.items() if k[:2] == (a, budget)]
            if own:
                length = min(len(c) for c in own)
                lines[a] = [
                    (sum(c[i][at] for c in own) / len(own), sum(c[i][2] for c in own) / len(own)) for i in range(length)
                ]
        if lines:
            name = f"learning_curves_{budget}" + ("" if (budget, at) != ("jobs", 1) else "_seconds")
            score = "validation score (less is better)"
            made.append(draw_curves(name, "Learning curves", axis, score, "count", lines, _SCORES))
    return made
