"""The shipped model against a tuned multifactor and the heuristics on four workloads: the figures of docs/learning.md.

slurm-rl study policy table BACKFILL [REPLICATES] [WORKLOAD,…]
slurm-rl study policy development [BACKFILL] [REPLICATES] [MODEL[:SIZE],…] [TRACES]
slurm-rl study policy stretches [BACKFILL] [REPLICATES] [MODEL[:SIZE],…] [TRACES]
slurm-rl study policy styles [BACKFILL] [SEEDS]
slurm-rl study policy hindsight [BACKFILL] [REPLICATES] [WORKLOAD,…]
slurm-rl study policy controls [SCENES]
slurm-rl study policy ablations [PART,…] [SCENES] [GENERATIONS]
slurm-rl study policy estimator [WORKLOAD,…]
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from slurm_rl.domain.cluster import Cluster, NodeClass, read_cluster
from slurm_rl.errors import unknown_name
from slurm_rl.evaluate.fit import FIGURES, fit
from slurm_rl.evaluate.goals import GOALS, price
from slurm_rl.evaluate.paired import OPPONENTS, before, compare, gap_closed, replicate, tuned_weights
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.checkpoint import Model, find_model, flatten, load_model, unflatten
from slurm_rl.policy.features import JOB_COUNT, JOB_FEATURES, POOL_COUNT
from slurm_rl.policy.registry import PolicySpec, in_style, learned, parse_policy
from slurm_rl.studies.places import bundled, public
from slurm_rl.traces.generate import WorkloadSpec, generate
from slurm_rl.traces.limits import typed_limits
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Labels, Trace
from slurm_rl.train.module import PARTS, QueueNet
from slurm_rl.train.recipe import STYLES, first_part
from slurm_rl.train.rollout import SHORT_CAP, Reference, log_ratios
from slurm_rl.train.scenes import SceneSource, TrainingScene
from slurm_rl.train.settings import SearchSettings, Settings
from slurm_rl.train.trainer import Trainer
from slurm_rl_sim.replay import Contender, find_cluster, parse_contenders, prepare, replay, window_of
from slurm_rl_sim.simulation import ReplayState

DAY = 86_400
SHOWN = ("mean_wait", "p99_wait", "max_wait", "user_bsld", "geomean_bsld")
WORKLOADS = ("venus", "hetero", "itp", "ricc")
# The two that are shipped, and others that were tried beside them.
MORE_STYLES = STYLES | {
    "cap 3": {"starve_drain": 3.0},
    "narrow, cap 2": STYLES["narrow"] | {"starve_drain": 2.0},
    "age 1.6": {"age": 1.6},
    "age 3.2": {"age": 3.2},
    "wide, age 3.2": STYLES["wide"] | {"age": 3.2},
}


def workload(name: str) -> tuple[Trace, Cluster, str]:
    """A trace, its cluster, and the window that is measured; what is before it may be tuned on."""
    if name == "hetero":
        path = bundled() / "hetero.csv.gz"
        trace = read_trace(path)
        return trace, find_cluster(trace, path, None), "0.3:1"
    if name == "itp":
        trace = read_trace(public() / "microsoft_itp_2021.csv.gz")
        trace = trace.take(np.flatnonzero(trace.partition.codes == trace.partition.names.index("cluster04")))
        nodes = (NodeClass(68, gpus=8, partition="cluster04"), NodeClass(1, gpus=6, partition="cluster04"))
        return trace, Cluster("550 GPUs", nodes), "0.3:1"
    if name.startswith("itp"):
        itp = read_trace(public() / "microsoft_itp_2021.csv.gz")
        return *_itp(itp, f"cluster{name.removeprefix('itp')}"), "0.3:1"
    if name not in ("venus", "venus-no-limits", "ricc"):
        raise unknown_name("workload", name, [*WORKLOADS, "venus-no-limits", "itp05"])
    path = public() / ("pwa_ricc_2010.csv.gz" if name == "ricc" else "helios_venus_sept2020.csv.gz")
    trace = read_trace(path)
    cluster = find_cluster(trace, path, None)
    if name == "venus-no-limits":  # everybody asks for a week: limits tell nothing, of run times or to backfill
        wished = np.full(len(trace), 7.0 * DAY)
        trace = replace(trace, time_limit=typed_limits(np.maximum(trace.run_time, 1), wished))
    if name != "ricc":
        return trace, cluster, "0.6:1"
    days = (trace.submit_time > 20 * DAY) & (trace.submit_time < 35 * DAY)
    return trace.take(np.flatnonzero(days)), cluster, "0.3:1"


def table(model: Model, backfill: str, replicates: int, names: list[str]) -> None:
    shown = ("mean_bsld", *SHOWN)
    logs: dict[str, list[list[float]]] = {}
    for name in names:
        trace, cluster, share = workload(name)
        window = window_of(trace, share)
        early = before(trace, window)
        assert early is not None
        weights = tuned_weights(prepare(early, cluster), backfill, "best-fit")
        found = fit(learned(model), early, cluster, backfill=backfill)
        print(f"\n{name}, {backfill}: style {found.style} of { {k: round(v, 3) for k, v in found.ratios.items()} }")
        standings = compare(
            trace,
            cluster,
            [
                Contender(found.policy, backfill),
                Contender(as_trained(learned(model)), backfill),
                *parse_contenders(OPPONENTS, backfill),
            ],
            base=parse_contenders("multifactor", backfill)[0],
            replicates=replicates,
            window=window,
            weights=weights,
        )
        print(f"\n{name}, {backfill}; multifactor tuned to {weights}", flush=True)
        for s in standings:
            label = s.policy + ("+firstfit" if s.backfill == "firstfit" and backfill != "firstfit" else "")
            rest = "  ".join(f"{k} {s.ratio[k]:.3f}" for k in SHOWN)
            interval = f"[{s.low['mean_bsld']:.3f}, {s.high['mean_bsld']:.3f}]"
            print(f"  {label:<15} BSLD {s.mean['mean_bsld']:8.2f}  ×{s.ratio['mean_bsld']:.3f} {interval}  {rest}")
            logs.setdefault(label, []).append([math.log(s.ratio[k]) for k in shown])
        closed = gap_closed(standings, f"rl:{model.name}", "multifactor")
        if closed is not None:
            print(f"  of the way from multifactor to sjf@oracle in log BSLD: {closed:.0%}")
    print(f"\ngeometric means over {', '.join(names)}, {backfill}")
    for label, rows in logs.items():
        means = np.exp(np.mean(rows, axis=0))
        print(f"  {label:<15} " + "  ".join(f"{k} {v:.3f}" for k, v in zip(shown, means, strict=True)), flush=True)


def development_traces() -> Iterator[tuple[str, Trace, Cluster, str]]:
    """Real workloads that are neither trained on nor in the table: to choose between models by."""
    itp = read_trace(public() / "microsoft_itp_2021.csv.gz")
    for code, name in enumerate(itp.partition.names):
        if name != "cluster04" and int((itp.partition.codes == code).sum()) >= 2500:
            yield f"itp {name}", *_itp(itp, name), "0.3:1"
    yield from stretches(45, 70, 95, 120)
    cedar = read_trace(public() / "drac_cedar_2021_queued.csv.gz")
    cedar = cedar.take(np.flatnonzero((cedar.num_gpus == 0) & (cedar.run_time >= 0)))
    first, last = cedar.span()
    nodes = int(float((cedar.run_time * np.maximum(cedar.cpus, 1.0)).sum()) / (last - first) / 0.9 / 32)
    cedar = cedar.take(np.flatnonzero(cedar.cpus <= 8 * nodes))
    count = len(cedar)
    cedar = replace(cedar, partition=Labels.blank(count), mem_gb=np.zeros(count))
    yield "cedar", cedar, Cluster("cedar", (NodeClass(nodes, cpus=32, mem_gb=1e5),)), "0.3:0.6"


def _itp(itp: Trace, name: str) -> tuple[Trace, Cluster]:
    """One of ITP's clusters, shrunk to a load of 0.9."""
    if name not in itp.partition.names:
        raise unknown_name("cluster of ITP", name, itp.partition.names)
    part = itp.take(np.flatnonzero(itp.partition.codes == itp.partition.names.index(name)))
    first, last = part.span()
    busy = float((np.maximum(part.run_time, 0) * part.num_gpus).sum()) / (last - first)
    nodes = max(int(busy / 0.9 / 8), math.ceil(part.num_gpus.max() / 8), 8)
    return part, Cluster(name, (NodeClass(nodes, gpus=8, partition=name),))


def stretches(*first_days: int) -> Iterator[tuple[str, Trace, Cluster, str]]:
    """Eight days of RICC each."""
    path = public() / "pwa_ricc_2010.csv.gz"
    ricc = read_trace(path)
    cluster = find_cluster(ricc, path, None)
    for day in first_days:
        days = (ricc.submit_time > day * DAY) & (ricc.submit_time < (day + 8) * DAY)
        yield f"ricc, day {day}", ricc.take(np.flatnonzero(days)), cluster, "0.3:1"


def development(
    policies: list[PolicySpec], backfill: str, replicates: int, traces: Iterator[tuple[str, Trace, Cluster, str]]
) -> dict[str, list[Array]]:
    """Policies on several traces, as log ratios to the first of them; each trace counts as much; the ratios of each.

    `multifactor` is tuned, and a model's style chosen, on the time before the window.
    """
    shown = FIGURES
    logs: dict[str, list[Array]] = {p.name: [] for p in policies}
    for name, trace, cluster, share in traces:
        window = window_of(trace, share)
        contenders, early = list(policies), before(trace, window)
        assert early is not None
        weights = tuned_weights(prepare(early, cluster), backfill, "best-fit")
        for place, policy in enumerate(policies):
            if policy.styles:
                fitted = fit(policy, early, cluster, backfill=backfill)
                print(f"{name}: {policy.name} {fitted.style}")
                contenders[place] = fitted.policy
                contenders.append(as_trained(policy))
        found: dict[str, list[Array]] = {p.name: [] for p in contenders}
        for number in range(replicates):
            prepared = prepare(replicate(trace, number, 0), cluster, window=window)
            for policy in contenders:
                tuned = weights if policy.name == "multifactor" else None
                (run,) = replay(prepared, [Contender(policy, backfill)], weights=tuned)
                found[policy.name].append(
                    np.log([float(run.metrics[m] or 0.0) + (k != "bsld") for k, m in shown.items()])
                )
        print(name, flush=True)
        for policy_name, rows in found.items():
            ratio = np.mean(np.array(rows) - np.array(found[policies[0].name]), axis=0)
            logs.setdefault(policy_name, []).append(ratio)
            print(
                f"  {policy_name:<20} " + "  ".join(f"{k} {v:.3f}" for k, v in zip(shown, np.exp(ratio), strict=True))
            )
    means = {name: dict(zip(shown, np.mean(rows, axis=0).tolist(), strict=True)) for name, rows in logs.items()}
    print(f"geometric means, {backfill}, and the goals {GOALS}")
    for name, row in means.items():
        figures = "  ".join(f"{k} {math.exp(v):.3f}" for k, v in row.items())
        print(f"  {name:<20} {figures}  goals {math.exp(price(row, GOALS)):.3f}", flush=True)
    return logs


def hindsight(policy: PolicySpec, backfill: str, replicates: int, names: list[str]) -> None:
    """Styles on the traces of the table, to a tuned `multifactor`, and the best of them for each trace."""
    policy = replace(policy, styles=MORE_STYLES)
    tried = [replace(in_style(policy, name), name=name) for name in MORE_STYLES]
    first = [parse_policy("multifactor"), as_trained(policy)]
    traces = ((name, *workload(name)) for name in names)
    logs = development(first + tried, backfill, replicates, traces)
    ours = [rows for name, rows in logs.items() if name != "multifactor"]
    best = [min(rows, key=lambda row: price(dict(zip(FIGURES, row, strict=True)))) for rows in zip(*ours, strict=True)]
    figures = zip(FIGURES, np.exp(np.mean(best, axis=0)), strict=True)
    print("the best for each trace: " + "  ".join(f"{k} {v:.3f}" for k, v in figures))


def styles(policy: PolicySpec, backfill: str, seeds: int) -> None:
    """What choosing a style brings on workloads like the bundled sample that nothing was chosen by."""
    cluster = read_cluster(bundled() / "hetero.cluster.json")
    logs = []
    for seed in range(11, 11 + seeds):
        trace = generate(WorkloadSpec(seed=seed), cluster)
        window = window_of(trace, "0.3:1")
        early = before(trace, window)
        assert early is not None
        found = fit(policy, early, cluster, backfill=backfill)
        contenders = [Contender(found.policy, backfill), Contender(as_trained(policy), backfill)]
        (_, mine) = compare(trace, cluster, contenders[:1], base=contenders[1], replicates=3, window=window)
        row = {k: math.log(mine.ratio[m]) for k, m in FIGURES.items()}
        logs.append(row)
        said = "  ".join(f"{k} {math.exp(v):.3f}" for k, v in row.items())
        print(f"seed {seed}, {backfill}: {found.style:<10} {said}  goals {math.exp(price(row)):.3f}", flush=True)
    goals = np.array([price(row) for row in logs])
    means = "  ".join(f"{k} {math.exp(float(np.mean([row[k] for row in logs]))):.3f}" for k in FIGURES)
    print(f"fitted to as trained: {means}  goals {np.exp(goals.mean()):.3f} ± {goals.std(ddof=1) / seeds**0.5:.3f}")


def as_trained(policy: PolicySpec) -> PolicySpec:
    return replace(policy, name=f"{policy.name}, as trained", styles={})


def variant(text: str) -> PolicySpec:
    """`MODEL`, or `MODEL:SIZE`: the same with another weight of a job's size, under every backfill rule."""
    name, _, weight = text.partition(":")
    policy = parse_policy(f"rl:{name}")
    if not weight:
        return policy
    assert policy.net is not None
    net = policy.net.copy()
    unflatten(net)["skip"][JOB_FEATURES.index("size")] = float(weight)
    return replace(policy, name=f"rl:{text}", net=net, booking_size=0.0, styles={})


def fresh_scenes(count: int) -> list[tuple[TrainingScene, Reference]]:
    """Scenes drawn as for training, but with seeds that no training uses."""
    trace, cluster, _ = workload("venus")
    trainer = Trainer(Settings(jobs=2500), [SceneSource(first_part(trace, 0.6), cluster)], Path(tempfile.mkdtemp()))
    return trainer.scenes(range(2_000_000_011, 2_000_000_011 + count))


def judged(name: str, net: Array, drain: float, scenes: list[tuple[TrainingScene, Reference]]) -> None:
    logs = [log_ratios(s, r, net, drain) for s, r in scenes]
    prices = np.array([price(row, GOALS) for row in logs])
    error = prices.std() / math.sqrt(len(prices))
    rest = "  ".join(f"{k} {math.exp(np.mean([row[k] for row in logs])):.3f}" for k in GOALS)
    print(f"  {name:<18} cap {drain:<4g} {math.exp(prices.mean()):.3f} ± {error:.3f}  {rest}", flush=True)


def controls(model: Model, count: int) -> None:
    """The model, and what is left of it without parts, on scenes drawn as for training but with other seeds."""
    scenes = fresh_scenes(count)
    tensors = unflatten(model.net)
    untrained = QueueNet(0)
    untrained.take({k: v for k, v in tensors.items() if "shift" in k or "scale" in k})
    order = np.random.default_rng(0).permutation(JOB_COUNT)
    variants = {
        "the model": tensors,
        "untrained": untrained.tensors(),
        "features shuffled": tensors | {"encode": tensors["encode"][order], "skip": tensors["skip"][order]},
        "linear path alone": tensors | {"out": np.zeros_like(tensors["out"])},
        "uniform attention": tensors | {"attend": np.zeros_like(tensors["attend"])},
        "no context": tensors | {"inform": np.zeros_like(tensors["inform"])},
    }
    print(f"{len(scenes)} scenes; ratio of the goals {GOALS} to sjf-age@user, with its standard error")
    for name, parts in variants.items():
        judged(name, flatten(parts), model.starve_drain, scenes)
    for drain in (1.0, 1.5, 2.0, 3.0, 4.0, math.inf):
        judged("the model", flatten(tensors), drain, scenes)


def ablations(parts: list[str], count: int, generations: int) -> None:
    """Networks that are trained anew without a part, by a short recipe that is the same for all."""
    trace, cluster, _ = workload("venus")
    scenes = fresh_scenes(count)
    print(f"{len(scenes)} scenes; ratio of the goals {GOALS} to sjf-age@user, with its standard error")
    for name in parts:
        part, _, seed = name.partition("#")
        settings = Settings(
            jobs=2500, scenes=24, iterations=0, lessons=200, validation=1, seed=int(seed or 0),
            search=SearchSettings(generations=generations), without=() if part == "nothing" else (part,),
        )  # fmt: skip
        trainer = Trainer(settings, [SceneSource(first_part(trace, 0.6), cluster)], Path(tempfile.mkdtemp()))
        judged(f"without {name}", trainer.run(lambda row: None), SHORT_CAP, scenes)


def estimator(model: Model, names: list[str]) -> None:
    """Rank correlation of estimates with run times when jobs are first seen waiting, and what their spread covers."""
    for name in names:
        trace, cluster, share = workload(name)
        prepared = prepare(trace, cluster, window=window_of(trace, share))
        simulation = ReplayState(prepared.workload, prepared.trace.run_time, learned(model), placement="best-fit")
        simulation.tape(6_000_000, 400_000)
        simulation.run()
        tape = simulation.world["tape"][: int(simulation.world["taped"])]
        job, first = np.unique(tape[:, JOB_COUNT + POOL_COUNT].astype(np.int64), return_index=True)
        keep = prepared.measured[job]
        rows, run = tape[first[keep]], np.log(np.maximum(prepared.trace.run_time[job[keep]], 1.0))
        guess, spread = (rows[:, JOB_FEATURES.index(k)] for k in ("estimate", "spread"))
        within = float((np.abs(run - guess) <= np.maximum(spread, 0.05)).mean())
        rank = float(spearmanr(guess, run).statistic)
        print(
            f"  {name:<7} {len(run):>7,} jobs  rank correlation {rank:.3f}  within one spread {within:.0%}", flush=True
        )


def main(what: str, *rest: str) -> None:
    model = load_model(find_model("default"))

    def given(place: int, otherwise: str) -> str:
        return rest[place] if len(rest) > place else otherwise

    def several(place: int, otherwise: Sequence[str]) -> list[str]:
        return rest[place].split(",") if len(rest) > place else list(otherwise)

    if what == "table":
        table(model, rest[0], int(given(1, "3")), several(2, WORKLOADS))
    elif what == "controls":
        controls(model, int(given(0, "300")))
    elif what in ("development", "stretches"):
        others = ("sjf-age@user", "multifactor", "fcfs", "sjf@user", "saf@user", "wfp3@user")
        policies = [parse_policy(name) for name in others] + [variant(model) for model in several(2, ["default"])]
        traces = development_traces() if what == "development" else stretches(2, 11, 36, 54, 79, 104, 130, 140)
        development(policies, given(0, "easy"), int(given(1, "3")), islice(traces, int(given(3, "99"))))
    elif what == "hindsight":
        hindsight(learned(model), given(0, "easy"), int(given(1, "3")), several(2, WORKLOADS))
    elif what == "styles":
        styles(learned(model), given(0, "easy"), int(given(1, "8")))
    elif what == "ablations":
        parts = several(0, ["nothing", "nothing#1", "nothing#2", *PARTS])
        ablations(parts, int(given(1, "300")), int(given(2, "15")))
    else:
        estimator(model, several(0, WORKLOADS))
