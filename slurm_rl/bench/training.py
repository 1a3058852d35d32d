"""Trains agents for suites: an algorithm with some parts changed, for a number of jobs or a time."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.errors import InputError
from slurm_rl.evaluate.paired import PairedWindows, drawn_windows
from slurm_rl.policy.registry import PolicySpec, learned
from slurm_rl.traces.files import bundled
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import find_cluster

SCENES, JOBS = 8, 400  # workloads of an iteration, and jobs of each
_VALIDATION = 12  # workloads by which the best network of a training is chosen
_DAY = 86_400
_PUBLIC = {"venus": "helios_venus_sept2020", "itp": "microsoft_itp_2021", "ricc": "pwa_ricc_2010"}
_TIMED = 2  # iterations by which the number of iterations in a time is found
Point = tuple[float, float, float]  # jobs played, seconds, score on validation workloads: less is better


class _Enough(Exception):
    """The time is over."""


class _TrainingCurve:
    """Notes the curve of a training from its first row on, and ends it when its time is over."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.began, self.curve = seconds, 0.0, list[Point]()

    def __call__(self, row: dict[str, float]) -> None:
        if not self.curve:  # before the first iteration
            self.began = time.process_time()
        took = time.process_time() - self.began
        self.curve.append((row["iteration"] * SCENES * JOBS, round(took, 1), round(row["score"], 5)))
        if self.seconds and took > self.seconds:
            raise _Enough


@dataclass(frozen=True, slots=True)
class Variant:
    """An algorithm, and what is changed of it."""

    algorithm: str
    name: str = ""
    options: Mapping[str, float] = field(default_factory=dict)  # of the algorithm's own settings
    without: tuple[str, ...] = ()  # parts of the network
    prepared: bool = False  # by lessons and a search, as shipped models are


def iterations(steps: int) -> int:
    """Iterations that play a number of jobs."""
    return max(round(steps / (SCENES * JOBS)), 1)


def trained(variant: Variant, seed: int, *, steps: int, seconds: float = 0.0) -> tuple[PolicySpec, list[Point]]:
    """A policy trained on generated workloads, and its curve; with `seconds`, for that time instead of `steps`.

    Time is this process's processor time: beside other work, a clock on the wall would give some less than others.
    """
    from slurm_rl.train.recipe import train_model
    from slurm_rl.train.settings import SearchSettings, Settings

    settings = Settings(
        algorithm=variant.algorithm,
        options=dict(variant.options),
        iterations=iterations(steps),
        scenes=SCENES,
        jobs=JOBS,
        generated=1.0,
        validation=_VALIDATION,
        lessons=30 if variant.prepared else 0,
        search=SearchSettings(generations=4 if variant.prepared else 0),
        without=variant.without,
        seed=seed,
    )
    with tempfile.TemporaryDirectory(prefix="slurm-rl-bench-") as folder:
        # A small training first: compiling, or loading what was compiled, is no part of the time.
        small = replace(settings, jobs=200, lessons=0, search=SearchSettings(0))
        train_model(replace(small, iterations=1), [], Path(folder) / "small")
        if seconds:  # rates and exploration fall in the course of a training: it must know how many iterations it has
            watch = _TrainingCurve()
            train_model(replace(settings, iterations=_TIMED), [], Path(folder) / "timed", report=watch)
            each = watch.curve[-1][1] / _TIMED
            settings = replace(settings, iterations=max(math.ceil(seconds / max(each, 0.01)), 1))
        watch, out = _TrainingCurve(seconds), Path(folder) / "training"
        try:
            model = train_model(settings, [], out, report=watch)
        except _Enough:
            # What was saved last goes on for no further iteration, and is written as a model.
            done = round(watch.curve[-1][0] / (SCENES * JOBS))
            model = train_model(replace(settings, iterations=done), [], out, resume=True)
        return _policy(model), watch.curve


def _policy(model: Any) -> PolicySpec:
    made: PolicySpec = learned(model, f"rl:{model.name}") if hasattr(model, "styles") else model.policy("meta:trained")
    return made


def public_traces(folder: str) -> dict[str, Path]:
    """Those of the public traces that a folder has, by short names; none is an error."""
    files = {name: Path(folder) / f"{stem}.csv.gz" for name, stem in _PUBLIC.items()}
    found = {name: path for name, path in files.items() if path.is_file()}
    if not found:
        wanted = ", ".join(path.name for path in files.values())
        raise InputError(f"has none of {wanted}", field="--traces", remedy="docs/studies.md says where they come from")
    return found


@lru_cache(maxsize=1)
def real_workloads(folder: str | None) -> dict[str, tuple[Trace, Cluster]]:
    """Public traces of a folder that jobs wait in, by short names; the bundled sample always."""
    path = bundled() / "hetero.csv.gz"
    trace = read_trace(path)
    found = {"hetero": (trace, find_cluster(trace, path, None))}
    if folder is None:
        return found
    for name, path in public_traces(folder).items():
        trace = read_trace(path)
        if name == "itp":  # its fourth cluster, with as many GPUs as its jobs keep busy
            trace = trace.take(np.flatnonzero(trace.partition.codes == trace.partition.names.index("cluster04")))
            nodes = (NodeClass(68, gpus=8, partition="cluster04"), NodeClass(1, gpus=6, partition="cluster04"))
            found[name] = trace, Cluster("550 GPUs", nodes)
            continue
        if name == "ricc":
            trace = trace.take(np.flatnonzero((trace.submit_time > 20 * _DAY) & (trace.submit_time < 35 * _DAY)))
        found[name] = trace, find_cluster(trace, path, None)
    return found


def windows(
    workloads: Mapping[str, tuple[Trace, Cluster]], count: int, jobs: int
) -> Sequence[tuple[str, int, Trace, Cluster, tuple[int, int]]]:
    """Random stretches of each workload, with the jobs before them that fill the cluster."""
    found = []
    for name, (trace, cluster) in workloads.items():
        for k, (part, span) in enumerate(drawn_windows(trace, PairedWindows(count, jobs), None, 0)):
            found.append((name, k, part, cluster, span))
    return found
