"""Replays a trace under several policies, side by side: the same jobs, cluster and rules for each."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.backfill.catalogue import RULES
from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.domain.cluster import Cluster, NodeClass, read_cluster
from slurm_rl.domain.limits import Limits
from slurm_rl.domain.reservations import Reservation
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.build import Speeds, Workload, build
from slurm_rl.place.outside import find_placement
from slurm_rl.place.plan import Planner, PlannerSettings
from slurm_rl.place.speed import SpeedMatrix
from slurm_rl.policy.outside_calls import OutsideCalls
from slurm_rl.policy.registry import PolicySpec, parse_policy
from slurm_rl.traces.limits import with_time_limits
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.deferred import deferral_figures
from slurm_rl_sim.gpu_memory import with_gpu_memory
from slurm_rl_sim.limits import with_limits
from slurm_rl_sim.metrics import metrics
from slurm_rl_sim.reservations import with_reservations
from slurm_rl_sim.result import Result, result_of
from slurm_rl_sim.simulation import NodeEvents, ReplayState, check_deferral
from slurm_rl_sim.validate import run_checked
from slurm_rl_sim.workload import requests_of, sorted_by_id

# What is compared when nobody says otherwise: Slurm's own order, the classics, first-fit (which many a learned policy
# fails to beat), history-based SJF, and the limit that only knowledge of the future could reach.
DEFAULT_POLICIES = ("rl:default", "multifactor", "fcfs", "fcfs+firstfit", "sjf@user", "sjf-age@user", "sjf@oracle")

Progress = Callable[[str, float], None]  # what is running, and the share of it that is done


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with the backfill rule it runs under: `NAME`, or `NAME+BACKFILL` for another than the common one."""

    policy: PolicySpec
    backfill: str


@dataclass(frozen=True, slots=True)
class Run:
    """One policy's replay."""

    policy: str
    backfill: str
    placement: str
    metrics: dict[str, float | int | None]
    wall_seconds: float
    jobs_per_second: float
    peak_rss_mb: float
    result: Result = field(repr=False)
    deferral: dict[str, float | int | None] | None = None  # where jobs may be deferred
    outside: dict[str, Any] | None = None  # of a policy that is Python: calls, failures, speed


def parse_contenders(names: str | Sequence[str], backfill: str) -> list[Contender]:
    """Policies from `fcfs,sjf@user+firstfit,…`."""
    common = RULES[backfill].name
    parts = [p.strip() for p in (names.split(",") if isinstance(names, str) else names) if p.strip()]
    if not parts:
        raise InputError("names no policy", field="--policy")
    contenders = []
    for part in parts:
        name, plus, own = part.rpartition("+")
        if not plus or ":" in own:  # a path may hold a plus
            name, plus, own = part, "", ""
        contender = Contender(parse_policy(name), RULES[own].name if plus else common)
        if contender not in contenders:
            contenders.append(contender)
    return contenders


def find_cluster(trace: Trace, trace_path: Path, given: Path | None) -> Cluster:
    """The given cluster file, the one beside the trace, or the processors that an SWF header names."""
    if given is not None:
        return read_cluster(given)
    stem = trace_path.name
    for suffix in (".gz", ".xz", ".zst", ".csv", ".swf", ".json", ".txt"):
        stem = stem.removesuffix(suffix)
    beside = trace_path.with_name(stem + ".cluster.json")
    if beside.is_file():
        return read_cluster(beside)
    processors = trace.meta.get("max_procs")
    if isinstance(processors, int) and processors > 0:
        return Cluster(f"{processors} processors", (NodeClass(1, cpus=processors),))
    raise InputError(
        "no cluster is known for this trace",
        file=str(trace_path),
        remedy=f"give --cluster FILE, or write {beside.name}",
    )


def window_of(trace: Trace, window: str | None) -> tuple[int, int] | None:
    """`A:B` in seconds of the trace's clock, or as shares of its span when both are at most 1; None for all of it."""
    if window is None:
        return None
    first, last = trace.span()
    try:
        low_text, high_text = window.split(":")
        low, high = float(low_text or 0), float(high_text or math.inf)
    except ValueError:
        raise InputError(f"must be A:B, got {window!r}", field="--window", remedy="e.g. 0.6:1 or 0:86400") from None
    if not low < high or low < 0:
        raise InputError(f"must be A:B with 0 ≤ A < B, got {window!r}", field="--window")
    if high <= 1:
        low, high = first + low * (last - first), first + high * (last - first) + (1 if high == 1 else 0)
    return int(low), int(min(high, last + 1))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A trace made ready for replays on a cluster."""

    trace: Trace  # sorted, limits filled in, cut at the window's end
    cluster: Cluster
    workload: Workload
    measured: Array


def prepare(
    trace: Trace,
    cluster: Cluster,
    *,
    window: tuple[int, int] | None = None,
    seed: int = 0,
    speeds: SpeedMatrix | None = None,
    limits: Limits | None = None,
    reservations: Sequence[Reservation] = (),
    gpu_memory: str = "off",
) -> Prepared:
    """Sorts a trace, fills in time limits, and compiles it for the cluster; refuses one in which no job could run.

    `gpu_memory`: where it is known from how much a job needs (gpu_memory.py).
    Jobs before the window are simulated to warm the cluster up, jobs after it are left out, and only those within
    are measured.
    """
    trace = sorted_by_id(trace)
    runs = trace.run_time >= 0
    if not bool(runs.all()):
        trace = trace.take(np.flatnonzero(runs))
    if window is not None:
        trace = trace.take(np.flatnonzero(trace.submit_time < window[1]))
    if not len(trace):
        raise InputError("has no jobs to replay", file=trace.name)
    own_limit = trace.time_limit > 0
    trace = with_time_limits(trace, seed)
    workload = build(requests_of(trace), cluster, speeds=_speeds(trace, cluster, speeds))
    workload = with_gpu_memory(workload, trace, gpu_memory)
    if limits is not None:
        workload = with_limits(workload, trace, limits, own_limit=own_limit)
    workload = with_reservations(workload, trace, reservations)
    if len(workload.rejected) == len(trace):
        j, reason = next(iter(workload.rejected.items()))
        raise InputError(
            f"no job fits in cluster {cluster.name}: e.g. job {trace.job_id[j]} {reason}",
            file=trace.name,
            remedy="give the cluster that the trace was recorded on",
        )
    measured = np.ones(len(trace), dtype=bool) if window is None else trace.submit_time >= window[0]
    return Prepared(trace, cluster, workload, measured)


def _speeds(trace: Trace, cluster: Cluster, speeds: SpeedMatrix | None) -> Speeds | None:
    """A speed matrix for the jobs of a trace, by user and name."""
    if speeds is None:
        return None
    types = {kind: speeds.speed(kind) for kind in cluster.gpu_types}
    classes = {who: i for i, who in enumerate(speeds.classes)}
    of_job = None
    if classes:
        who = zip(trace.user.strings(), trace.job_name.strings(), strict=True)
        of_job = np.array([classes.get(pair, -1) for pair in who], dtype=np.int64)
    return Speeds(types, tuple(speeds.classes.values()), of_job)


def replay(
    prepared: Prepared,
    contenders: Sequence[Contender],
    *,
    placement: str | None = None,
    influence: float = 1.0,
    preempt: bool = False,
    events: NodeEvents | None = None,
    weights: dict[str, float] | None = None,
    planning: PlannerSettings | None = None,
    on_progress: Progress | None = None,
    check: bool = False,
    slurm: SlurmSettings | None = None,
) -> list[Run]:
    """Runs each contender on the prepared trace; `check`: and checks the state at every pass, which is slow.

    Without a `placement`, each goes by the one that belongs to its backfill rule. `slurm`: settings of a site.
    """
    places = [find_placement(placement or RULES[c.backfill].placement) for c in contenders]
    for contender, where in zip(contenders, places, strict=True):
        if planning is not None and planning.deferral is not None:
            check_deferral(contender.backfill, where)
    runs = []
    for contender, where in zip(contenders, places, strict=True):
        simulation = ReplayState(
            prepared.workload,
            prepared.trace.run_time,
            contender.policy,
            backfill=contender.backfill,
            placement=where,
            influence=influence,
            preempt=preempt,
            events=events,
            weights=weights,
            planner=Planner(planning),
            slurm=slurm,
        )
        label = f"{contender.policy.name} + {contender.backfill}"
        seconds = _run(simulation, prepared, label, on_progress, check)
        result = result_of(simulation, prepared.trace, prepared.measured)
        runs.append(
            Run(
                contender.policy.name,
                contender.backfill,
                where,
                _with_calls(metrics(result), simulation.calls),
                seconds,
                len(prepared.trace) / max(seconds, 1e-9),
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                result,
                deferral_figures(result, simulation),
                simulation.calls.figures() if simulation.calls is not None else None,
            )
        )
    return _with_oracle_gap(runs)


def _with_calls(figures: dict[str, float | int | None], calls: OutsideCalls | None) -> dict[str, float | int | None]:
    """The figures, with what a policy that is Python takes in a pass's latency."""
    if calls is not None:
        told = calls.figures()
        for share, taken in (("p50", told["p50_ms"]), ("p99", told["p99_ms"])):
            figures[f"decision_{share}_us"] = (figures[f"decision_{share}_us"] or 0.0) + 1000.0 * (taken or 0.0)
    return figures


def _run(simulation: ReplayState, prepared: Prepared, label: str, on_progress: Progress | None, check: bool) -> float:
    """Runs to the end; in slices where somebody watches."""
    began = time.perf_counter()
    if check:
        run_checked(simulation)
    elif on_progress is not None:
        submit = prepared.trace.submit_time
        for part in range(1, 100):
            simulation.run(int(submit[len(submit) * part // 100]))
            on_progress(label, part / 100)
    simulation.run()
    seconds = time.perf_counter() - began
    if on_progress is not None:
        on_progress(label, 1.0)
    return seconds


def _with_oracle_gap(runs: list[Run]) -> list[Run]:
    """Each run's mean bounded slowdown as a ratio to SJF's with true run times, minus 1, if SJF was run."""
    oracle = next((r for r in runs if r.policy == "sjf@oracle"), None)
    best = oracle.metrics["mean_bsld"] if oracle else None
    for run in runs:
        own = run.metrics["mean_bsld"]
        if best is not None and own is not None:
            run.metrics["oracle_gap"] = own / best - 1.0
    return runs
