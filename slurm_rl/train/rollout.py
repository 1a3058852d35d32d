"""Plays scenes with a network that draws its orders, and turns the schedule into turns with rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.catalogue import BY_USER, LEARNED
from slurm_rl.policy.features import JOB_COUNT
from slurm_rl.policy.registry import PolicySpec
from slurm_rl.train.scenes import TrainingScene
from slurm_rl_sim.metrics import bounded_slowdown
from slurm_rl_sim.simulation import ReplayState

# What a second of waiting costs, by component; each is divided by what a reference schedule of the scene pays.
COSTS: dict[str, float] = {"bsld": 1.0, "wait": 0.5, "tail": 0.5, "users": 0.25}
_BOUND = 10.0
SHORT_CAP = 3.0  # the cap in scenes, which end before the model's own would matter


@dataclass(frozen=True, slots=True)
class Reference:
    """What a reference schedule of a scene pays: sums of each component, and the wait beyond which the tail begins."""

    sums: Mapping[str, float]
    tail: float
    metrics: Mapping[str, float]
    queue: float  # how many jobs wait, on average


@dataclass(frozen=True, slots=True)
class Episode:
    """The turns of one played scene; rows of `tape` from `first` on belong to a turn."""

    tape: Array
    turns: Array
    picks: Array  # how many of the leading positions were choices: those that started, and the first that could not
    reward: Array
    after: Array  # the next turn of the same pool, or -1
    elapsed: Array  # seconds until then
    metrics: Mapping[str, float]


def figures(scene: TrainingScene, start: Array) -> dict[str, float]:
    """The metrics that training watches, over a scene's measured jobs."""
    trace, keep = scene.prepared.trace, scene.prepared.measured & (start >= 0)
    wait = (start - trace.submit_time)[keep].astype(float)
    run = np.minimum(trace.run_time, trace.time_limit)[keep].astype(float)
    return {
        "bsld": float(bounded_slowdown(wait, run).mean()),
        "wait": float(wait.mean()),
        "p99": float(np.percentile(wait, 99)),
        "max": float(wait.max()),
    }


def simulation_of(scene: TrainingScene, policy: PolicySpec) -> ReplayState:
    """A replay of the scene under a policy."""
    prepared = scene.prepared
    return ReplayState(
        prepared.workload, prepared.trace.run_time, policy, backfill=scene.backfill, placement="best-fit"
    )


def reference_of(scene: TrainingScene, policy: PolicySpec) -> Reference:
    """Plays a scene under a fixed policy, to have something to compare with."""
    simulation = simulation_of(scene, policy)
    simulation.run()
    start = simulation.world["live"]["start"]
    keep = scene.prepared.measured & (start >= 0)
    wait = np.where(keep, start - scene.prepared.trace.submit_time, 0).astype(float)
    tail = float(np.percentile(wait[keep], 95)) if keep.any() else 0.0
    sums = {}
    for name in COSTS:
        rate, late = _rates(scene, name)
        paid = float((rate * (np.maximum(wait - tail, 0.0) if late else wait)).sum())
        sums[name] = paid
    submit = scene.prepared.trace.submit_time
    queue = float(wait.sum()) / max(float(submit[-1] - submit[0]) * float(keep.mean()), 1.0)
    return Reference(sums, tail, figures(scene, start), queue)


def log_ratios(
    scene: TrainingScene, reference: Reference, net: Array, starve_drain: float = math.inf
) -> dict[str, float]:
    """How a network, with its starvation cap, does on a scene: logarithms of each figure's ratio to the reference."""
    simulation = simulation_of(scene, PolicySpec("candidate", LEARNED, BY_USER, starve_drain=starve_drain, net=net))
    simulation.run()
    found = figures(scene, simulation.world["live"]["start"])
    return {k: math.log((found[k] + 1.0) / (reference.metrics[k] + 1.0)) for k in found}


def _rates(scene: TrainingScene, name: str) -> tuple[Array, bool]:
    """What a second of each job's waiting costs in a component, and whether only the tail counts."""
    trace, keep = scene.prepared.trace, scene.prepared.measured.astype(float)
    slow = keep / np.maximum(np.minimum(trace.run_time, trace.time_limit), _BOUND)
    if name == "bsld":
        return slow, False
    if name == "users":
        user = scene.prepared.workload.jobs["user"]
        return slow / np.maximum(np.bincount(user, weights=keep), 1.0)[user], False
    return keep, name == "tail"


def play(
    scene: TrainingScene,
    reference: Reference,
    net: Array,
    *,
    temperature: float,
    seed: int,
    rows: int = 120_000,
    costs: Mapping[str, float] = COSTS,
) -> Episode:
    """Replays a scene with orders drawn from the network, recording what it saw and did."""
    simulation = simulation_of(scene, PolicySpec("training", LEARNED, BY_USER, net=net))
    world, turns = simulation.world, min(rows // 2, 3 * len(scene.prepared.trace))
    simulation.tape(rows, turns, temperature=temperature, seed=seed)
    simulation.run()
    turns, tape = world["turns"][: int(world["turned"])], world["tape"][: int(world["taped"])]
    start = world["live"]["start"]
    picks = _picks(turns, start)
    after, elapsed = _successors(turns)
    reward = _rewards(scene, reference, start, turns, after, costs)
    return Episode(tape, turns, picks, reward, after, elapsed, figures(scene, start))


def padded_queues(tape: Array, first: Array, count: Array, longest: int = 0) -> tuple[Array, Array, Array]:
    """Rows of the tape for queues of unequal length [queue, place], which of these are real, and the jobs' features."""
    place = np.arange(longest or int(count.max()))[None, :]
    mask = place < count[:, None]
    rows = np.where(mask, first[:, None] + place, 0)
    jobs: Array = (tape[rows, :JOB_COUNT] * mask[:, :, None]).astype(np.float32)
    return rows, mask, jobs


def _picks(turns: Array, start: Array) -> Array:
    """How many leading choices count: all that started at once, and the first that did not."""
    job = turns["job"]
    started = (job >= 0) & (start[np.maximum(job, 0)] == turns["time"][:, None])
    prefix: Array = np.cumprod(started, axis=1).sum(axis=1)
    picks: Array = np.minimum(prefix + 1, np.minimum(turns["count"], job.shape[1])).astype(np.int64)
    return picks


def _successors(turns: Array) -> tuple[Array, Array]:
    after = np.full(len(turns), -1, dtype=np.int64)
    elapsed = np.zeros(len(turns))
    for pool in np.unique(turns["pool"]).tolist():
        mine = np.flatnonzero(turns["pool"] == pool)
        after[mine[:-1]] = mine[1:]
        elapsed[mine[:-1]] = np.diff(turns["time"][mine])
    return after, elapsed


def _rewards(
    scene: TrainingScene, reference: Reference, start: Array, turns: Array, after: Array, costs: Mapping[str, float]
) -> Array:
    """What was paid, in shares of the reference, from each turn to the next one of its pool (the last: to the end)."""
    submit = scene.prepared.trace.submit_time.astype(float)
    began = np.where(start >= 0, start, submit).astype(float)
    requests = scene.prepared.workload.requests["pool"]
    pool = requests[scene.prepared.workload.jobs["request"]]
    reward = np.zeros(len(turns))
    for p in np.unique(turns["pool"]).tolist():
        jobs, mine = np.flatnonzero(pool == p), np.flatnonzero(turns["pool"] == p)
        # Slopes change when a job is submitted, when it joins the tail, and when it starts.
        times, slopes = [], []
        for name, weight in costs.items():
            rate, late = _rates(scene, name)
            if reference.sums[name] <= 0:
                continue
            share = rate[jobs] * (weight / reference.sums[name])
            joins = submit[jobs] + (reference.tail if late else 0.0)
            times += [joins, np.maximum(began[jobs], joins)]
            slopes += [share, -share]
        if not times:
            continue
        paid = _integral(np.concatenate(times), np.concatenate(slopes), turns["time"][mine].astype(float))
        total = _integral(np.concatenate(times), np.concatenate(slopes), np.array([began[jobs].max() + 1.0]))
        reward[mine] = -np.diff(np.concatenate([paid, total]))
    return reward


def _integral(times: Array, slopes: Array, at: Array) -> Array:
    """The integral up to each moment of a rate that starts at 0 and changes by a slope at each time."""
    order = np.argsort(times, kind="stable")
    times, slopes = times[order], slopes[order]
    slope, offset = np.cumsum(slopes), np.cumsum(slopes * times)
    k = np.searchsorted(times, at, side="left") - 1
    result: Any = np.where(k >= 0, at * slope[np.maximum(k, 0)] - offset[np.maximum(k, 0)], 0.0)
    return np.asarray(result)
