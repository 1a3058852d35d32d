"""Workloads for learning a choice of policies, the costs of choices there, and the other members' costs."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.tables import World
from slurm_rl.policy.regime import REGIME_COUNT
from slurm_rl.policy.registry import PolicySpec
from slurm_rl.traces.generate import generate
from slurm_rl.traces.regimes import REGIMES, regime
from slurm_rl.train.rollout import simulation_of
from slurm_rl.train.scenes import SceneSource, TrainingScene, draw_scene
from slurm_rl_sim.metrics import bounded_slowdown
from slurm_rl_sim.replay import prepare
from slurm_rl_sim.simulation import ReplayState

# What a choice costs until the next one, each in shares of what a reference schedule of the scene pays in all.
META_COSTS = {"bsld": 1.0, "wait": 1.0, "tail": 0.5, "late": 1.0, "idle": 0.5}
# What validation seeks: logarithms of ratios to the reference, weighted.
META_GOALS = {"bsld": 1.0, "jct": 1.0, "p95": 1.0, "late": 1.0, "energy": 0.5}
_WARM_UP = 0.1
_CROWDED = 30.0  # seconds of waiting
_MOST = 1.0  # that a component counts until the next choice, in shares of what the reference pays in all
_FEW = 0.02  # share of missed deadlines, or of idle GPUs, below which a ratio says nothing
_BEHIND = 3 + REGIME_COUNT  # columns of a recorded choice
# Regimes are split by what nobody trains on: an intensity (x1.5), a shape at its highest load, a cluster size.
HELD_OUT = tuple(n for n, (shape, x, gpus) in REGIMES.items() if x == 1.5 or (shape == "shifted" and gpus == 8))
TRAINED = tuple(name for name in REGIMES if name not in HELD_OUT)
_ROOT_OF_JOBS = frozenset(
    "jobs kind_ptr kind_node class_ptr class_list speed work events partition_factor qos_factor net chooser_net".split()
)


@dataclass(frozen=True, slots=True)
class MetaReference:
    """What a fixed policy pays on a scene: by component, and the wait beyond which the tail begins."""

    sums: Mapping[str, float]
    tail: float
    figures: Mapping[str, float]
    crowded: Array  # moments at which a job came that then had to wait


@dataclass(frozen=True, slots=True)
class SceneChoices:
    """The choices of one played scene, in time: what was seen, who ruled, what it cost by component until the next."""

    seen: Array  # [choices, REGIME_COUNT]
    member: Array
    cost: Array  # [choices, components of META_COSTS]
    after: Array  # the pool's next choice, or -1
    elapsed: Array


@dataclass(frozen=True, slots=True)
class Paired:
    """Moments at which every member was tried on the same future."""

    seen: Array  # [moments, REGIME_COUNT]
    cost: Array  # [moments, members, components]


def meta_scene(
    sources: Sequence[SceneSource], seed: int, *, jobs: int, sites: float, held_out: bool = False
) -> TrainingScene:
    """The scene of a seed: a regime, perturbed in its estimates, or (a share of `sites`) any made-up site or trace."""
    dice = np.random.default_rng([seed, 31])
    if sites >= 1.0:  # the very scenes that networks are trained on
        return replace(draw_scene(sources, seed, jobs=jobs, generated=0.5), name="site", backfill="easy")
    if dice.random() < sites:
        scene = draw_scene(sources, int(dice.integers(1 << 30)), jobs=jobs, generated=0.5)
        return replace(scene, name="site", backfill="easy")
    names = HELD_OUT if held_out else TRAINED
    name = names[int(dice.integers(len(names)))]
    workload, cluster = regime(name, jobs=jobs, seed=int(dice.integers(1 << 30)))
    workload = replace(
        workload,
        deadlines=float(dice.choice([0.0, 0.3, 0.6, 0.9])),
        run_spread=float(dice.uniform(0.6, 1.8)),
        median_run=float(np.exp(dice.uniform(np.log(60), np.log(900)))),
        size_decay=float(dice.uniform(0.4, 0.9)),
    )
    prepared = prepare(generate(workload, cluster), cluster, seed=seed)
    measured = np.arange(len(prepared.trace)) >= _WARM_UP * len(prepared.trace)
    return TrainingScene(name, replace(prepared, measured=measured), "easy")


# -- what schedules cost ------------------------------------------------------------------------------------------


def _run_seconds(scene: TrainingScene) -> Array:
    trace = scene.prepared.trace
    return np.maximum(np.minimum(trace.run_time, trace.time_limit), 1).astype(float)


def _latest(scene: TrainingScene) -> Array:
    """By when a job must start to meet its deadline; never, if it has none."""
    trace = scene.prepared.trace
    return np.where(trace.deadline >= 0, trace.deadline - _run_seconds(scene), np.inf)


def _gpus(scene: TrainingScene) -> tuple[Array, float]:
    """GPUs (or CPUs) of each job, and of the cluster."""
    workload = scene.prepared.workload
    return workload.requests["volume"][workload.jobs["request"]], float(workload.pools["volume"].sum())


def paid(scene: TrainingScene, reference: MetaReference, start: Array, at: Array, pool: int) -> Array:
    """What a pool's jobs have cost up to each moment [moments, components], in shares of the reference."""
    workload, trace = scene.prepared.workload, scene.prepared.trace
    mine = workload.requests["pool"][workload.jobs["request"]] == pool
    mine &= scene.prepared.measured & ~np.isin(np.arange(len(trace)), list(workload.rejected))
    submit, run = trace.submit_time[mine].astype(float), _run_seconds(scene)[mine]
    began = np.where(start[mine] >= 0, start[mine], np.inf).astype(float)
    cost = np.zeros((len(at), len(META_COSTS)))
    volume = _gpus(scene)[0][mine]
    for k, name in enumerate(META_COSTS):
        scale = reference.sums[name]
        if name in ("bsld", "wait", "tail"):
            rate = 1.0 / np.maximum(run, 10.0) if name == "bsld" else np.ones(len(run))
            joins = submit + (reference.tail if name == "tail" else 0.0)
            cost[:, k] = _ramps(joins, np.maximum(began, joins), rate, at) / scale
        elif name == "late":
            latest = np.maximum(_latest(scene)[mine], submit)
            missed = np.sort(latest[began > latest])
            cost[:, k] = np.searchsorted(missed, at, side="right") / scale
        else:  # idle: the pool's GPUs less those in use, while anybody is still to come or to run
            ends = began + run
            busy = _ramps(began, ends, volume, at)
            began_at = float(submit.min()) if len(submit) else 0.0
            span = np.maximum(at - began_at, 0.0)
            total = float(workload.pools["volume"][pool])
            cost[:, k] = (span * total - busy) / scale
    return cost


def _ramps(first: Array, last: Array, rate: Array, at: Array) -> Array:
    """The sum over jobs of rate × time spent between `first` and `last`, up to each moment."""
    found = np.zeros(len(at))
    for times, sign in ((first, 1.0), (last, -1.0)):
        known = np.isfinite(times)
        order = np.argsort(times[known], kind="stable")
        when, slope = times[known][order], rate[known][order]
        slopes, offsets = np.cumsum(slope), np.cumsum(slope * when)
        k = np.searchsorted(when, at, side="right") - 1
        inside = np.maximum(k, 0)
        if len(when):
            found += sign * np.where(k >= 0, at * slopes[inside] - offsets[inside], 0.0)
    return found


def meta_figures(scene: TrainingScene, start: Array) -> dict[str, float]:
    """What validation looks at."""
    trace, keep = scene.prepared.trace, scene.prepared.measured & (start >= 0)
    run = _run_seconds(scene)
    wait = (start - trace.submit_time)[keep].astype(float)
    has = keep & (trace.deadline >= 0)
    late = float((start[has] > _latest(scene)[has]).mean()) if has.any() else 0.0
    volume, total = _gpus(scene)
    span = float((start + run)[keep].max() - trace.submit_time[keep].min())
    return {
        "bsld": float(bounded_slowdown(wait, run[keep]).mean()),
        "wait": float(wait.mean()),
        "jct": float((wait + run[keep]).mean()),
        "p95": float(np.percentile(wait, 95)),
        "p99": float(np.percentile(wait, 99)),
        "max": float(wait.max()),
        "late": late + _FEW,
        "energy": 2.0 - float((volume * run)[keep].sum()) / max(span * total, 1.0),  # 1 + the idle share
    }


def meta_reference(scene: TrainingScene, policy: PolicySpec) -> MetaReference:
    """Plays a scene under a fixed policy, to have something to compare with."""
    simulation = simulation_of(scene, policy)
    simulation.run()
    start = simulation.world["live"]["start"]
    keep = scene.prepared.measured & (start >= 0)
    wait = (start - scene.prepared.trace.submit_time)[keep].astype(float)
    tail = float(np.percentile(wait, 95))
    run = _run_seconds(scene)
    volume, total = _gpus(scene)
    has = keep & (scene.prepared.trace.deadline >= 0)
    span = float((start + run)[keep].max() - scene.prepared.trace.submit_time[keep].min())
    sums = {
        "bsld": float((wait / np.maximum(run[keep], 10.0)).sum()),
        "wait": float(wait.sum()),
        "tail": float(np.maximum(wait - tail, 0.0).sum()),
        "late": float((start[has] > _latest(scene)[has]).sum()) + 0.05 * float(has.sum()),
        "idle": span * total - float((volume * run)[keep].sum()) + _FEW * span * total,
    }
    least = {"bsld": 0.1 * len(wait), "wait": 10.0 * len(wait), "tail": len(wait), "late": 1.0, "idle": 1.0}
    sums = {name: max(paid_by_it, least[name]) for name, paid_by_it in sums.items()}  # a share of nothing says nothing
    crowded = scene.prepared.trace.submit_time[keep][wait > _CROWDED]
    return MetaReference(sums, tail, meta_figures(scene, start), crowded)


def meta_logs(scene: TrainingScene, reference: MetaReference, policy: PolicySpec) -> dict[str, float]:
    """Logarithms of each figure's ratio to the reference."""
    simulation = simulation_of(scene, policy)
    simulation.run()
    found, before = meta_figures(scene, simulation.world["live"]["start"]), reference.figures
    plus = {"wait": 1.0, "p95": 1.0, "p99": 1.0, "max": 1.0}
    return {k: math.log((v + plus.get(k, 0.0)) / (before[k] + plus.get(k, 0.0))) for k, v in found.items()}


# -- playing ------------------------------------------------------------------------------------------------------


def play_choices(scene: TrainingScene, reference: MetaReference, policy: PolicySpec, rows: int = 4096) -> SceneChoices:
    """Replays a scene and records what was chosen, and what came of it."""
    simulation = simulation_of(scene, policy)
    simulation.world["choices"] = np.zeros((rows, _BEHIND))
    simulation.run()
    made = simulation.world["choices"][: int(simulation.world["choices_made"])]
    start = simulation.world["live"]["start"]
    after = np.full(len(made), -1)
    elapsed = np.zeros(len(made))
    cost = np.zeros((len(made), len(META_COSTS)))
    end = float(simulation.now)
    for pool in np.unique(made[:, 1]).astype(int).tolist():
        mine = np.flatnonzero(made[:, 1] == pool)
        after[mine[:-1]] = mine[1:]
        times = np.append(made[mine, 0], end)
        elapsed[mine] = np.diff(times)
        cost[mine] = np.minimum(np.diff(paid(scene, reference, start, times, pool), axis=0), _MOST)
    return SceneChoices(made[:, 3:].astype(np.float32), made[:, 2].astype(np.int64), cost, after, elapsed)


def try_members(
    scene: TrainingScene,
    reference: MetaReference,
    policy: PolicySpec,
    dice: np.random.Generator,
    *,
    moments: int,
    ahead: float,
) -> Paired:
    """At some moments of a scene that is played by chance, lets every member rule the same future for a while."""
    if policy.meta is None:
        raise ValueError("needs a policy that chooses")
    members = len(policy.meta.members)
    submit = scene.prepared.trace.submit_time
    times = np.sort(dice.choice(reference.crowded, size=moments))
    simulation = simulation_of(scene, policy)
    simulation.world["explore"], simulation.world["decide_every"] = 1.0, 600.0
    seen, costs = [], []
    for moment in times.tolist():
        simulation.run(int(moment))
        if int(simulation.world["arrived"]) >= len(submit):
            break
        tried = [_forced(simulation, k, moment + ahead) for k in range(members)]
        first = [world["choices"][0] for world in tried if world["choices_made"]]
        if len(first) < members or first[0][0] > moment + 0.3 * ahead:
            continue
        began, pool = float(first[0][0]), int(first[0][1])
        at = np.array([began, moment + ahead])
        cost = [np.diff(paid(scene, reference, w["live"]["start"], at, pool), axis=0)[0] for w in tried]
        cost = [np.minimum(row, _MOST) for row in cost]
        seen.append(first[0][3:].astype(np.float32))
        costs.append(np.array(cost))
    if not seen:
        return Paired(np.zeros((0, REGIME_COUNT), np.float32), np.zeros((0, members, len(META_COSTS))))
    return Paired(np.array(seen), np.array(costs))


def _forced(simulation: ReplayState, member: int, until: float) -> World:
    """A copy of the present in which one member rules, at a later moment."""
    other = copy.copy(simulation)
    other.world = simulation.world.fork(_ROOT_OF_JOBS)
    other.world["choices"] = np.zeros((64, _BEHIND))
    other.world["choices_made"], other.world["forced"] = 0, member + 1
    other.world["choosers"]["decided"] = -np.inf
    other.world["choosers"]["decisions"] = 0  # a first choice: no bound holds it back
    other.world["decide_every"] = 1e18
    other.run(int(until))
    return other.world
