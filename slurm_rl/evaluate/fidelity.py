"""Compares the simulator with a real slurmctld: the same jobs in both, by starts and waits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from slurm_rl.backfill.slurm_settings import FOREVER, SITE, SlurmSettings
from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl.lab.cluster import evenly_fast, node_names
from slurm_rl.lab.observed import Observed, as_happened
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import parse_contenders, prepare, replay
from slurm_rl_sim.result import Result

TOLERANCE = 60.0  # seconds by which starts may differ before we speak of a divergence: bf_resolution
_PHASES = 12  # tried where nobody recorded it
_QUANTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True, slots=True)
class JobRun:
    """When and where a job ran, in seconds since the first submission."""

    submit: float
    start: float
    end: float
    nodes: frozenset[str] = frozenset()
    by: str = ""  # Slurm's scheduler that started it

    @property
    def wait(self) -> float:
        return self.start - self.submit


Schedule = Mapping[str, JobRun]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two schedules of the same jobs agree; ratios and differences are the second's to the first's."""

    jobs: int
    tau: float  # Kendall's, of the starts
    mean_wait_ratio: float
    p99_wait_ratio: float
    mean_wait: tuple[float, float]
    differences: dict[str, float]  # quantiles of start differences, p5 … p95, and their mean size
    same_nodes: float  # share of the jobs that ran on the same nodes


@dataclass(frozen=True, slots=True)
class Divergence:
    """A job that started elsewhen or elsewhere, and why as far as it can be told."""

    job: str
    real: float
    simulated: float
    real_nodes: str
    simulated_nodes: str
    by: str
    cause: str


def schedule_of(rows: Sequence[Observed]) -> dict[str, JobRun]:
    """A real run."""
    return {
        r.job_id: JobRun(r.submit, r.start, r.end, frozenset(r.nodes), r.scheduler)
        for r in rows
        if r.start is not None and r.end is not None
    }


def agreement(first: Schedule, second: Schedule) -> Agreement:
    """Compares jobs that ran in both."""
    ids = sorted(set(first) & set(second))
    if len(ids) < 2:
        raise InputError("fewer than two jobs ran in both schedules", remedy="compare runs of one trace")
    a, b = np.array([first[i].start for i in ids]), np.array([second[i].start for i in ids])
    waits = [np.array([s[i].wait for i in ids]) for s in (first, second)]
    # Waits go by each schedule's own submissions, and so do differences: a late sbatch is no difference of scheduling.
    gap = waits[1] - waits[0]
    figures = {f"p{q}": float(np.percentile(gap, q)) for q in _QUANTILES} | {"mean_abs": float(np.abs(gap).mean())}
    return Agreement(
        len(ids),
        float(kendalltau(a, b).statistic),
        _ratio(waits[1].mean(), waits[0].mean()),
        _ratio(np.percentile(waits[1], 99), np.percentile(waits[0], 99)),
        (float(waits[0].mean()), float(waits[1].mean())),
        figures,
        float(np.mean([first[i].nodes == second[i].nodes for i in ids])),
    )


def _ratio(a: float, b: float) -> float:
    return float(a / b) if b > 0 else (1.0 if a <= 0 else float("inf"))


def simulate(
    trace: Trace,
    cluster: Cluster,
    rows: Sequence[Observed],
    policy: str,
    *,
    lengths: bool,
    phase: int | None = None,
    slurm: SlurmSettings = SITE,
) -> dict[str, JobRun]:
    """The simulator's schedule of what was submitted in a real run; `lengths`: with the run lengths seen there.

    Without them, each run is as long as asked, and a start-up and clean-up as long as they were on average. `phase`:
    seconds from a whole bf_resolution to the first submission (S5 of docs/backfill.md); None: as in the trace.
    """
    happened = as_happened(trace, rows, run_times=lengths)
    if lengths:  # a run that Slurm let overrun its limit keeps its length
        slurm = replace(slurm, over_time_limit=FOREVER, start_overhead=0)
    elif not slurm.start_overhead:
        slurm = replace(slurm, start_overhead=round(overhead(trace, rows)))
    if phase is not None:
        later = (phase - happened.span()[0]) % slurm.bf_resolution
        happened = replace(happened, submit_time=happened.submit_time + later)
    # Slurm's limits are whole minutes.
    limit = np.where(happened.time_limit > 0, -(-happened.time_limit // 60) * 60, happened.time_limit)
    prepared = prepare(replace(happened, time_limit=limit), evenly_fast(cluster))
    run = replay(prepared, parse_contenders([policy], "slurm"), slurm=slurm)[0]
    return _of_result(run.result, node_names(cluster))


def phases(rows: Sequence[Observed], slurm: SlurmSettings) -> list[int]:
    """Seconds from a whole bf_resolution to the first submission: as recorded, else twelve that could have been."""
    known = {r.origin for r in rows if r.origin is not None}
    if known:
        return [min(known) % slurm.bf_resolution]
    return list(range(0, slurm.bf_resolution, max(slurm.bf_resolution // _PHASES, 1)))


def _median(found: Sequence[Agreement]) -> Agreement:
    """The median of each figure over schedules that differ in their phase."""
    if len(found) == 1:
        return found[0]

    def mid(values: Iterable[float]) -> float:
        return float(np.median(list(values)))

    return Agreement(
        found[0].jobs,
        mid(a.tau for a in found),
        mid(a.mean_wait_ratio for a in found),
        mid(a.p99_wait_ratio for a in found),
        (found[0].mean_wait[0], mid(a.mean_wait[1] for a in found)),
        {name: mid(a.differences[name] for a in found) for name in found[0].differences},
        mid(a.same_nodes for a in found),
    )


def _usual(schedules: Sequence[dict[str, JobRun]]) -> dict[str, JobRun]:
    """The schedule that has the median of the mean waits; which it is does not depend on what was real."""
    ordered = sorted(schedules, key=lambda s: sum(r.wait for r in s.values()))
    return ordered[(len(ordered) - 1) // 2]


def overhead(trace: Trace, rows: Sequence[Observed]) -> float:
    """Median of the seconds by which completed jobs held their nodes longer than they were asked to run."""
    asked = dict(zip(map(str, trace.job_id.tolist()), trace.run_time.tolist(), strict=True))
    more = [r.end - r.start - asked[r.job_id] for r in rows if r.start is not None and r.end is not None and _ended(r)]
    return max(float(np.median(more)), 0.0) if more else 0.0


def _ended(row: Observed) -> bool:
    return row.state == "COMPLETED"


def _of_result(result: Result, names: Sequence[str]) -> dict[str, JobRun]:
    first = result.trace.span()[0]
    number: Array = result.workload.node_number
    nodes: dict[int, set[str]] = {}
    job, node, _ = result.entries()
    for j, n in zip(job.tolist(), node.tolist(), strict=True):
        nodes.setdefault(j, set()).add(names[int(number[n])])
    return {
        str(result.trace.job_id[j]): JobRun(
            float(result.trace.submit_time[j] - first),
            float(result.start[j] - first),
            float(result.end[j] - first),
            frozenset(nodes.get(int(j), ())),
        )
        for j in np.flatnonzero(result.ran)
    }


def divergences(real: Schedule, simulated: Schedule, most: int = 10, tolerance: float = TOLERANCE) -> list[Divergence]:
    """The first jobs that start at another time, in the order in which they could have; each with its cause."""
    ids = sorted(set(real) & set(simulated), key=lambda i: (min(real[i].start, simulated[i].start), i))
    found: list[Divergence] = []
    diverged: set[str] = set()
    for i in ids:
        if abs(real[i].wait - simulated[i].wait) <= tolerance:
            continue
        if len(found) < most:
            cause = _cause(i, real, simulated, diverged, tolerance)
            row = (_names(real[i].nodes), _names(simulated[i].nodes))
            found.append(Divergence(i, real[i].start, simulated[i].start, *row, real[i].by, cause))
        diverged.add(i)
    return found


def _names(nodes: frozenset[str]) -> str:
    return " ".join(sorted(nodes))


def _cause(i: str, real: Schedule, simulated: Schedule, diverged: set[str], tolerance: float) -> str:
    """Why a job started elsewhen, from what ran before it on its nodes."""
    earlier_real = real[i].start < simulated[i].start
    first, second = (real, simulated) if earlier_real else (simulated, real)
    there, who = first[i], "Slurm" if earlier_real else "the simulator"
    other = "the simulator" if earlier_real else "Slurm"
    # In the schedule where it started later, who held what it had in the other one?
    blockers = [
        k
        for k, ran in second.items()
        if k != i and k in first and ran.nodes & there.nodes and ran.start <= there.start + tolerance < ran.end
    ]
    for k in sorted(blockers, key=lambda k: second[k].start):
        if k in diverged:
            return f"follows job {k}, which {other} had on {_names(second[k].nodes & there.nodes)} then"
        if first[k].nodes != second[k].nodes:
            return f"{other} had put job {k} on {_names(second[k].nodes)}, {who} on {_names(first[k].nodes)}"
        longer = (second[k].end - second[k].start) - (first[k].end - first[k].start)
        if abs(longer) > 15 and first[k].end <= there.start + tolerance:
            return f"job {k} before it ran {abs(longer):.0f} s {'longer' if longer > 0 else 'shorter'} in {other}"
    ahead = [k for k, ran in second.items() if k in first and there.start < ran.start <= second[i].start]
    overtaken = [k for k in ahead if first[k].start >= there.start and second[k].start < second[i].start and k != i]
    if real[i].by == "Backfill" and abs(real[i].start - simulated[i].start) < 2 * tolerance:
        return "a backfill cycle earlier or later"
    if earlier_real and real[i].by == "Backfill":
        return "Slurm backfilled it, the simulator held its nodes for a job ahead"
    if not earlier_real and real[i].by == "Backfill":
        return "the simulator let it go ahead, Slurm's backfill held its nodes for a job ahead"
    if overtaken:
        return f"{other} started job {overtaken[0]} before it"
    return "cannot be told"


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Everything the command tells; lists have one entry a real run, or a pair of them."""

    runs: int
    simulated: list[Agreement]  # real against simulated, with run lengths as asked and a measured overhead
    lengths: list[Agreement]  # … and with the run lengths that were seen
    floor: list[Agreement]  # real against real
    overhead: float  # seconds, mean over the runs
    divergences: list[Divergence]  # of the first run, with run lengths that were seen

    def as_value(self) -> dict[str, Any]:
        return asdict(self)


def fidelity(
    trace: Trace,
    cluster: Cluster,
    runs: Sequence[Sequence[Observed]],
    policy: str = "fcfs",
    most: int = 10,
    slurm: SlurmSettings = SITE,
) -> tuple[Fidelity, list[tuple[dict[str, JobRun], dict[str, JobRun]]]]:
    """Compares real runs of a trace with the simulator and with each other; also the schedules, real and simulated."""
    reals = [schedule_of(rows) for rows in runs]

    def made_of(lengths: bool) -> list[list[dict[str, JobRun]]]:
        return [
            [simulate(trace, cluster, r, policy, lengths=lengths, phase=p, slurm=slurm) for p in phases(r, slurm)]
            for r in runs
        ]

    asked, seen = made_of(lengths=False), made_of(lengths=True)
    shown = [_usual(schedules) for schedules in seen]
    made = Fidelity(
        len(runs),
        [_median([agreement(r, s) for s in several]) for r, several in zip(reals, asked, strict=True)],
        [_median([agreement(r, s) for s in several]) for r, several in zip(reals, seen, strict=True)],
        [agreement(a, b) for a, b in itertools.combinations(reals, 2)],
        float(np.mean([overhead(trace, rows) for rows in runs])),
        divergences(reals[0], shown[0], most),
    )
    return made, list(zip(reals, shown, strict=True))
