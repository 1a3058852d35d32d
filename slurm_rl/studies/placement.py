"""Placements compared on mixed GPUs, with paired confidence intervals: the figures of docs/placement.md.

slurm-rl study placement [SEEDS] [POLICY] [WORKLOAD]
slurm-rl study placement weights [SEEDS] [WORKLOAD]
slurm-rl study placement orders [SEEDS] [WORKLOAD]
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from unittest.mock import patch

import numpy as np
from scipy.optimize import linprog
from scipy.stats import t as student

from slurm_rl.cli.app import main as slurm_rl
from slurm_rl.domain.cluster import Cluster, NodeClass, read_cluster
from slurm_rl.domain.gres import slice_of
from slurm_rl.place.defer import Deferral
from slurm_rl.place.gpu_counts import has_by_type
from slurm_rl.place.plan import PlannerSettings
from slurm_rl.place.problem import Weights
from slurm_rl.place.release_times import holds
from slurm_rl.place.speed import SpeedMatrix
from slurm_rl.studies.places import bundled, public
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Labels, make_trace
from slurm_rl_sim.metrics import metrics
from slurm_rl_sim.replay import Prepared, parse_contenders, prepare, replay
from slurm_rl_sim.result import result_of
from slurm_rl_sim.simulation import ReplayState

PLACEMENTS = ("best-fit", "tier", "greedy", "mip", "mip --defer")
OURS = ("mip", "mip --defer")
COMPARED = ("mean_jct", "mean_wait", "p99_wait")
FIGURES = (*COMPARED, "killed", "energy_kwh")
LOAD = 0.95
# openb's types, its two anonymous ones as what they are taken for (G2: A10, G3: A100), V100 = 1.
SPEED = {"G2": 0.9, "G3": 2.0, "T4": 0.45, "P100": 0.55, "V100M16": 1.0, "V100M32": 1.0, "A10": 0.9}
# PAI's types on openb: MISC takes any, V100 takes what is of its class or better.
ACCEPTS = {"MISC": "", "T4": "T4", "P100": "P100", "V100": "G2|G3|V100M16|V100M32"}
# What classes of jobs make of GPU types, V100 = 1, by vendors' data sheets: jobs bound by tensor cores (dense FP16
# TFLOPS: A100 312, V100 125, A10 125, T4 65, P100 21), by memory (GB/s: 1555, 900, 600, 320, 732), by plain FP32
# (TFLOPS: 19.5, 15.7, 31.2, 8.1, 10.6), or by their input, which no GPU speeds up.
CLASSES = {
    "tensor": {"A100": 2.5, "V100": 1.0, "A10": 1.0, "T4": 0.52, "P100": 0.17},
    "memory": {"A100": 1.73, "V100": 1.0, "A10": 0.67, "T4": 0.36, "P100": 0.81},
    "fp32": {"A100": 1.24, "V100": 1.0, "A10": 2.0, "T4": 0.52, "P100": 0.68},
    "input": {"A100": 1.0, "V100": 1.0, "A10": 1.0, "T4": 1.0, "P100": 1.0},
}
ALIKE = {"G2": "A10", "G3": "A100", "V100M16": "V100", "V100M32": "V100"}
# Nodes with whole A100s and MIG slices of them, and nodes of V100s. Classes of jobs by their speed on a whole A100,
# V100 = 1, and the share of one that they keep busy: a slice slows a job down only below that share.
SLICED = (
    (4, {"gpu:A100": 2, "gpu:A100_3g.20gb": 4}),
    (3, {"gpu:A100": 2, "gpu:A100_2g.10gb": 6, "gpu:A100_1g.5gb": 2}),
    (2, {"gpu:A100_1g.5gb": 28}),
    (4, {"gpu:V100": 4}),
)
GAINS = {"tensor": (2.5, 1.0), "memory": (1.73, 0.6), "small": (1.3, 0.3), "input": (1.0, 0.1)}
SIZES = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 1 << 30))  # GPUs of a job


def venus_on_openb(seed: int) -> Prepared:
    """Venus' arrivals and sizes, each job with the type of a PAI job of its size, on openb scaled down to the load."""
    rng = np.random.default_rng(seed)
    venus, pai = (read_trace(public() / f"{n}.csv.gz") for n in ("helios_venus_sept2020", "alibaba_pai_2020_jobpool"))
    wanted, kinds = np.array(pai.gpu_type.strings()), np.full(len(venus), "", dtype=object)
    size, pool = _size(venus.num_gpus), _size(pai.num_gpus)
    for bucket in range(4):
        mine = np.flatnonzero(size == bucket)
        kinds[mine] = [ACCEPTS[k] for k in rng.choice(wanted[pool == bucket], len(mine))]
    for kind in ("T4", "P100"):
        kinds[(kinds == kind) & (venus.num_gpus > 16)] = ""
    measured = np.array([SPEED.get(k, 1.0) for k in kinds])
    work = float((venus.run_time * venus.num_gpus * measured).sum())
    span = float(np.ptp(venus.submit_time))
    classes = read_cluster(public() / "alibaba_openb_v2023.cluster.json").classes
    classes = tuple(replace(c, speed=SPEED[c.gpu_type]) for c in classes if c.gpus)
    scale = work / span / LOAD / _power(classes)
    classes = tuple(replace(c, count=max(1, round(c.count * scale))) for c in classes)
    submit = (venus.submit_time * (work / _power(classes) / LOAD / span)).astype(np.int64)
    trace = make_trace(
        f"venus-openb-{seed}",
        submit,
        run_time=venus.run_time,
        num_gpus=venus.num_gpus,
        gpu_type=kinds.tolist(),
        user=venus.user.strings(),
    )
    return prepare(trace, Cluster("openb", classes), seed=seed)


def _size(gpus: np.ndarray) -> np.ndarray:
    sizes: np.ndarray = np.minimum(np.ceil(np.log2(np.maximum(gpus, 1))), 3).astype(int)
    return sizes


def _power(classes: tuple[object, ...]) -> float:
    return float(sum(c.count * c.gpus * c.speed for c in classes))  # type: ignore[attr-defined]


def hetero(seed: int) -> Prepared:
    """The bundled sample (seed 0), and others of its kind."""
    if seed == 0:
        return prepare(read_trace(bundled() / "hetero.csv.gz"), read_cluster(bundled() / "hetero.cluster.json"))
    with tempfile.TemporaryDirectory() as folder:
        trace, cluster = f"{folder}/t.csv.gz", f"{folder}/t.cluster.json"
        args = ["slurm-rl", "traces", "generate", "--out", trace, "--cluster-out", cluster, "--seed", str(seed + 1)]
        with patch("sys.argv", args), redirect_stdout(StringIO()):
            try:
                slurm_rl()
            except SystemExit as done:
                if done.code:
                    raise
        return prepare(read_trace(trace), read_cluster(cluster))


def load(prepared: Prepared) -> float:
    """The least share of its time for which the busiest GPU type is held, however the work is shared out over types."""
    policy = parse_contenders("fcfs", "easy")[0].policy
    world = ReplayState(prepared.workload, prepared.trace.run_time, policy).world
    requests, nodes = world["requests"], world["nodes"]
    speed = world["speed"][requests["row"]]
    groups, types = speed.shape
    gpu_seconds = np.bincount(world["jobs"]["request"], weights=world["work"], minlength=groups) * requests["units"]
    seconds = (gpu_seconds * requests["gpu"])[:, None] / speed
    has = has_by_type(world, 0, len(nodes), types).sum(axis=0) * np.ptp(prepared.trace.submit_time)
    group, kind = np.nonzero(holds(world, types) & (seconds > 0))
    one = np.arange(len(group))
    # Shares of groups on types, and last the load: each group is shared out, and no type is held for more than that.
    held = np.zeros((types, len(group) + 1))
    held[kind, one], held[:, -1] = seconds[group, kind], -has
    whole = np.zeros((groups, len(group) + 1))
    whole[group, one] = 1.0
    goal = np.append(np.zeros(len(group)), 1.0)
    there = whole.any(axis=1)
    found = linprog(goal, A_ub=held, b_ub=np.zeros(types), A_eq=whole[there], b_eq=np.ones(int(there.sum())))
    return float(found.fun)


def with_classes(prepared: Prepared, seed: int, *, rescale: bool = False) -> Prepared:
    """The same jobs, each of one of four classes that profit differently from GPU types; users have their own mix.

    `rescale`: arrivals are made denser or thinner until the load is LOAD again.
    """
    rng = np.random.default_rng(1000 + seed)
    trace, names = prepared.trace, list(CLASSES)
    users = trace.user.strings()
    mix = {user: rng.dirichlet(np.full(len(names), 0.5)) for user in sorted(set(users))}
    name = [names[rng.choice(len(names), p=mix[user])] for user in users]
    trace = replace(trace, job_name=Labels.of(name))
    speeds = {n: {kind: CLASSES[n][ALIKE.get(kind, kind)] for kind in prepared.cluster.gpu_types} for n in names}
    matrix = SpeedMatrix(
        {c.gpu_type: c.speed for c in prepared.cluster.classes if c.gpus},
        {(user, n): speeds[n] for user in mix for n in names},
    )
    prepared = prepare(trace, prepared.cluster, seed=seed, speeds=matrix)
    if rescale:
        trace = replace(trace, submit_time=(trace.submit_time * (load(prepared) / LOAD)).astype(np.int64))
        prepared = prepare(trace, prepared.cluster, seed=seed, speeds=matrix)
    return prepared


def slices(seed: int, jobs: int = 4000) -> Prepared:
    """Jobs of one GPU of any type, and some of two to four whole GPUs, on nodes with whole A100s and slices of them."""
    rng = np.random.default_rng(2000 + seed)
    cluster = Cluster(
        "sliced", tuple(NodeClass(n, cpus=64, mem_gb=512, gres=tuple(gres.items())) for n, gres in SLICED)
    )
    names = list(GAINS)
    users = [f"u{i}" for i in range(40)]
    mix = {user: rng.dirichlet(np.full(len(names), 0.5)) for user in users}
    weight = rng.dirichlet(np.full(len(users), 0.5))
    user = rng.choice(users, jobs, p=weight).tolist()
    gpus = rng.choice([1.0, 2.0, 4.0], jobs, p=[0.85, 0.1, 0.05])
    usual = dict(zip(users, np.exp(rng.normal(np.log(1800.0), 1.0, len(users))), strict=True))
    run = np.exp(rng.normal(0.0, 1.0, jobs)) * np.array([usual[u] for u in user])
    trace = make_trace(
        f"slices-{seed}",
        np.sort(rng.integers(0, 30 * jobs, jobs)),
        run_time=np.clip(run, 10, 5 * 86_400).astype(np.int64),
        time_limit=np.full(jobs, 14 * 86_400),
        num_gpus=gpus,
        num_nodes=np.ones(jobs, dtype=np.int64),
        # Slices of several GPUs do not work together.
        gpu_type=np.where(gpus > 1, "A100|V100", "").tolist(),
        cpus=gpus,
        user=user,
        job_name=[names[rng.choice(len(names), p=mix[u])] for u in user],
    )
    types = {"V100": 1.0}
    classes = {name: {"V100": 1.0} for name in names}
    for kind in (k for k in cluster.gpu_types if k != "V100"):
        part = slice_of(kind)
        compute = part.compute if part else 1.0
        types[kind] = 2.0 * compute
        for name, (fast, busy) in GAINS.items():
            classes[name][kind] = fast * min(1.0, compute / busy)
    matrix = SpeedMatrix(types, {(u, name): classes[name] for u in users for name in names})
    prepared = prepare(trace, cluster, seed=seed, speeds=matrix)
    trace = replace(trace, submit_time=(trace.submit_time * (load(prepared) / LOAD)).astype(np.int64))
    return prepare(trace, cluster, seed=seed, speeds=matrix)


WORKLOADS: dict[str, Callable[[int], Prepared]] = {
    "venus on openb": venus_on_openb,
    "hetero": hetero,
    "venus on openb, classes": lambda seed: with_classes(venus_on_openb(seed), seed, rescale=True),
    "hetero, classes": lambda seed: with_classes(hetero(seed), seed),
    "slices": slices,
}


def interval(ratios: list[float]) -> str:
    """The geometric mean of ratios as a change in percent, with its 95% confidence interval."""
    logs = np.log(ratios)
    mean, half = float(logs.mean()), float(student.ppf(0.975, len(logs) - 1) * logs.std(ddof=1)) / math.sqrt(len(logs))
    low, middle, high = (100 * (math.exp(x) - 1) for x in (mean - half, mean, mean + half))
    return f"{middle:+.1f}% [{low:+.1f}, {high:+.1f}]"


def weights(seeds: int, workload: str) -> None:
    """What the terms of the objective do to `mip`, where jobs have classes; and prices without a common plan."""
    variants = {
        "as shipped": PlannerSettings(),
        "prices alone": PlannerSettings(jobs=1),
        "blocked 60": PlannerSettings(weights=Weights(blocked=60.0)),
        "node 0": PlannerSettings(weights=Weights(node=0.0)),
        "energy 1000": PlannerSettings(weights=Weights(energy=1000.0)),
        "energy 5000": PlannerSettings(weights=Weights(energy=5000.0)),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for seed in range(seeds):
        prepared = WORKLOADS[workload](seed)
        for name, planning in variants.items():
            (run,) = replay(prepared, parse_contenders("sjf-age@user", "easy"), placement="mip", planning=planning)
            found[name].append({k: float(run.metrics[k] or 0.0) for k in FIGURES})
            row = ", ".join(f"{k} {v:,.0f}" for k, v in found[name][-1].items())
            print(f"seed {seed}, {name}: {row}", file=sys.stderr, flush=True)
    shipped = found["as shipped"]
    for name, runs in found.items():
        print(f"{name}: " + ", ".join(f"{k} {np.mean([r[k] for r in runs]):,.0f}" for k in FIGURES))
        if runs is not shipped and seeds > 1:
            ratio = {k: [a[k] / b[k] for a, b in zip(runs, shipped, strict=True)] for k in (*COMPARED, "energy_kwh")}
            print("   against what is shipped: " + ", ".join(f"{k} {interval(v)}" for k, v in ratio.items()))


def orders(seeds: int, name: str) -> None:
    """What it brings if jobs of one size do not take the fastest GPU type that has room: `greedy`, jobs alike."""
    found: dict[str, list[float]] = {}
    for seed in range(100, 100 + seeds):
        prepared = WORKLOADS[name](seed)
        as_it_is = _ordered(prepared, None, fastest_last=False)
        for size in SIZES:
            for fastest_last in (True, False):
                label = f"jobs from {size[0]} GPUs, " + ("fastest last" if fastest_last else "slowest first")
                found.setdefault(label, []).append(_ordered(prepared, size, fastest_last=fastest_last) / as_it_is)
        print(f"{name}, seed {seed}: mean_jct {as_it_is:,.0f}", file=sys.stderr, flush=True)
    for label, ratios in found.items():
        print(f"{name}, {label}: mean_jct {interval(ratios)}")


def _ordered(prepared: Prepared, size: tuple[int, int] | None, *, fastest_last: bool) -> float:
    """Mean JCT with `greedy`, jobs of a size preferring GPU types in another order."""
    contender = parse_contenders("sjf-age@user", "easy")[0]
    run = ReplayState(prepared.workload, prepared.trace.run_time, contender.policy, placement="greedy")
    requests, prefer = run.world["requests"], run.world["prefer"].copy()
    if size is not None:
        gpus = requests["units"] * requests["gpu"]
        mine = (gpus >= size[0]) & (gpus <= size[1])
        fastest = prefer == prefer[:, np.unique(run.world["nodes"]["type"])].max(axis=1, keepdims=True)
        other = np.where(fastest, 0.0, prefer) if fastest_last else 1.0 / prefer
        prefer[mine] = other[mine]
    run.world["prefer"] = prefer
    run.run()
    return float(metrics(result_of(run, prepared.trace, prepared.measured))["mean_jct"] or 0.0)


def main(*given: str) -> None:
    """What the arguments name; see the top of this file."""
    if given[:1] == ("orders",):
        orders(int(given[1]) if len(given) > 1 else 40, given[2] if len(given) > 2 else "hetero")
        return
    if given[:1] == ("weights",):
        weights(int(given[1]) if len(given) > 1 else 3, given[2] if len(given) > 2 else "hetero, classes")
        return
    seeds = int(given[0]) if given else 3
    policy = given[1] if len(given) > 1 else "sjf-age@user"
    chosen = [n for n in WORKLOADS if n in given[2:]] or list(WORKLOADS)
    for name in chosen:
        found: dict[str, list[dict[str, float]]] = {p: [] for p in PLACEMENTS}
        for seed in range(seeds):
            prepared = WORKLOADS[name](seed)
            for placement in PLACEMENTS:
                how, _, defer = placement.partition(" ")
                planning = PlannerSettings(deferral=Deferral() if defer else None)
                (run,) = replay(prepared, parse_contenders(policy, "easy"), placement=how, planning=planning)
                found[placement].append({k: float(run.metrics[k] or 0.0) for k in FIGURES})
                row = ", ".join(f"{k} {v:,.0f}" for k, v in found[placement][-1].items())
                print(f"{name}, seed {seed}, {placement}: {row}", file=sys.stderr, flush=True)
        for placement, runs in found.items():
            means = ", ".join(f"{k} {np.mean([r[k] for r in runs]):,.0f}" for k in FIGURES)
            print(f"{name}, {policy}+easy, {placement}: {means}")
            for ours in OURS[: None if placement not in OURS else OURS.index(placement)]:
                ratio = {k: [m[k] / r[k] for m, r in zip(found[ours], runs, strict=True)] for k in COMPARED}
                print(f"   {ours} against it: " + ", ".join(f"{k} {interval(v)}" for k, v in ratio.items()), flush=True)
