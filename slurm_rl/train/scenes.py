"""Workloads to train on: generated ones of every kind, and windows of real traces, each varied anew at every draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_rl.domain.cluster import KNOWN_GPUS, Cluster, NodeClass
from slurm_rl.kernel.arrays import Array
from slurm_rl.traces.generate import WorkloadSpec, generate
from slurm_rl.traces.limits import typed_limits
from slurm_rl.traces.trace import Labels, Trace
from slurm_rl_sim.replay import Prepared, prepare

DAY = 86_400
_WARM_UP = 0.15  # of a scene's jobs: they fill the cluster and are not counted


@dataclass(frozen=True, slots=True)
class SceneSource:
    """A trace with its cluster, of which windows are drawn."""

    trace: Trace
    cluster: Cluster


@dataclass(frozen=True, slots=True)
class TrainingScene:
    """One workload to play, ready for replay."""

    name: str
    prepared: Prepared
    backfill: str


def draw_scene(sources: Sequence[SceneSource], seed: int, *, jobs: int = 3000, generated: float = 0.5) -> TrainingScene:
    """The scene of a seed: the same seed gives the same scene."""
    dice = np.random.default_rng([seed, 7])
    backfill = "easy" if dice.random() < 0.5 else "slurm"
    if not sources or dice.random() < generated:
        trace, cluster = _generated(dice, jobs)
    else:
        source = sources[int(dice.integers(len(sources)))]
        trace, cluster = _varied(source, dice, jobs)
    trace = _less_known(trace, dice)
    prepared = prepare(trace, cluster, seed=int(dice.integers(1 << 30)))
    measured = np.arange(len(prepared.trace)) >= _WARM_UP * len(prepared.trace)
    return TrainingScene(f"{trace.name}#{seed}", replace(prepared, measured=measured), backfill)


def _generated(dice: np.random.Generator, jobs: int) -> tuple[Trace, Cluster]:
    """A made-up site: one to three GPU types (or none), few or many users, minutes or days of run time."""
    if dice.random() < 0.25:
        cores = int(dice.choice([4, 8, 16, 32]))
        cluster = Cluster("cpu", (NodeClass(int(dice.integers(8, 129)), cpus=cores, mem_gb=4.0 * cores),))
        cpu_only, most = 1.0, cores * 8
    else:
        kinds = dice.choice(["H100", "A100", "V100", "T4", "P100"], size=int(dice.integers(1, 4)), replace=False)
        classes = []
        for kind in kinds.tolist():
            gpus = int(dice.choice([4, 8]))
            speed = KNOWN_GPUS[kind].speed
            classes.append(
                NodeClass(
                    int(np.exp(dice.uniform(np.log(4), np.log(70)))), kind, gpus, 12 * gpus, 96.0 * gpus, "gpu", speed
                )
            )
        cluster = Cluster("gpus", tuple(classes))
        cpu_only, most = float(dice.choice([0.0, 0.1, 0.3])), int(dice.choice([16, 32, 64, 128]))
    workload = WorkloadSpec(
        jobs=jobs,
        days=float(np.exp(dice.uniform(np.log(2), np.log(30)))) * jobs / 2500,  # fewer jobs could not fill as many
        load=float(dice.uniform(0.7, 1.05)),
        shape=str(dice.choice(["work", "bursty", "diurnal", "base"])),
        users=int(np.exp(dice.uniform(np.log(5), np.log(150)))),
        cpu_only=cpu_only,
        typed=float(dice.choice([0.0, 0.25, 0.5])),
        max_gpus=most,
        size_decay=float(dice.uniform(0.35, 0.8)),
        median_run=float(np.exp(dice.uniform(np.log(60), np.log(14400)))),
        run_spread=float(dice.uniform(1.0, 2.8)),
        batch=float(np.exp(dice.uniform(0, np.log(40)))),
        deadlines=float(dice.choice([0.0, 0.3])),
        seed=int(dice.integers(1 << 30)),
    )
    return _relimited(generate(workload, cluster), dice), cluster


def _varied(source: SceneSource, dice: np.random.Generator, jobs: int) -> tuple[Trace, Cluster]:
    """A window of a real trace: users moved by whole days, arrivals jittered, the pace and the limits changed."""
    trace = source.trace
    first, last = trace.span()
    days = max(int((last - first) // DAY), 1)
    shift = dice.integers(days, size=len(trace.user.names) + 1)[trace.user.codes] * DAY
    if dice.random() < 0.3:
        shift[:] = 0
    submit = (trace.submit_time - first + shift) % (days * DAY) + dice.integers(-300, 301, size=len(trace))
    submit = np.maximum(submit, 0)
    pace = float(np.exp(dice.uniform(np.log(0.85), np.log(1.25))))
    moved = replace(trace, submit_time=np.floor(submit / pace).astype(np.int64), deadline=np.full(len(trace), -1))
    moved = moved.take(np.argsort(moved.submit_time, kind="stable"))
    begin = int(dice.integers(max(len(moved) - jobs, 0) + 1))
    window = moved.take(np.arange(begin, min(begin + jobs, len(moved))))
    window = replace(window, submit_time=window.submit_time - window.submit_time[0])
    return _relimited(window, dice), source.cluster


def _less_known(trace: Trace, dice: np.random.Generator) -> Trace:
    """Sites differ in what they tell of a job: half of the scenes have no job names, one in six not even users."""
    names, users = dice.random() < 0.5, dice.random() < 1 / 6
    blank = Labels.blank(len(trace))
    if names or users:
        trace = replace(trace, job_name=blank)
    return replace(trace, user=blank, account=blank) if users else trace


def _relimited(trace: Trace, dice: np.random.Generator) -> Trace:
    """Limits as good or as bad as sites have them: kept, blurred, by habit, or one and the same for (nearly) all."""
    kind = dice.random()
    run: Array = trace.run_time
    if kind < 0.35:
        return trace
    if kind < 0.55:
        wished = np.maximum(run, 60) * np.exp(dice.uniform(0.5, 2.0) + 1.5 * np.abs(dice.standard_normal(len(run))))
    elif kind < 0.8:
        habits = np.array([1, 4, 12, 24, 48, 168]) * 3600.0
        favourite = dice.integers(len(habits), size=len(trace.user.names) + 1)[trace.user.codes]
        wished = habits[np.where(dice.random(len(run)) < 0.7, favourite, dice.integers(len(habits), size=len(run)))]
    else:
        wished = np.full(len(run), float(dice.choice([1, 2, 7])) * DAY)
    return replace(trace, time_limit=typed_limits(np.maximum(run, 1), wished))
