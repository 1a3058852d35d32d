"""Gains and losses against Slurm's own order: by user, account, partition, size and GPU type, with reasons."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.build import Workload
from slurm_rl.report.inputs import ReportedResult
from slurm_rl.report.text import duration, number, plural
from slurm_rl.traces.trace import Labels, Trace
from slurm_rl_sim.metrics import bounded_slowdown

KINDS = ("user", "account", "partition", "size", "gpu_type")
_NOTICEABLE, _SECONDS = 0.1, 60.0  # a mean wait has grown if it did by this share and by so many seconds
_FEW = 20  # jobs: the run times of fewer are hardly known
_TIMES = 2.0  # so many times the usual is a reason


@dataclass(frozen=True, slots=True)
class JobGroup:
    """The jobs of one user, account, partition, size or GPU type, under Slurm's own order and under a policy."""

    kind: str
    name: str
    jobs: int
    own_wait: float
    wait: float
    own_bsld: float
    bsld: float
    why: str = ""  # of one that loses

    @property
    def loses(self) -> bool:
        """Whether its mean wait has grown noticeably."""
        return self.wait - self.own_wait > max(_NOTICEABLE * self.wait, _SECONDS)


def fairness(
    trace: Trace, workload: Workload, measured: Array, own: ReportedResult, result: ReportedResult
) -> dict[str, list[JobGroup]]:
    """By kind: every group of the measured jobs that ran under both, those with the most jobs first."""
    picked = np.flatnonzero(measured & own.ran & result.ran)
    size = workload.requests["volume"][workload.jobs["request"]]
    figures = _figures(trace, own, picked), _figures(trace, result, picked)
    usual = _usual(trace, size, picked)
    found: dict[str, list[JobGroup]] = {}
    for kind in KINDS:
        codes, names = _codes(kind, trace, size)
        if len(names) < 2:
            continue  # nobody to compare with
        groups = []
        for code in np.unique(codes[picked]).tolist():
            mine = codes[picked] == code
            (wait, slow), (new_wait, new_slow) = ((w[mine].mean(), s[mine].mean()) for w, s in figures)
            name = names[code] if code >= 0 else "(none)"
            jobs = int(mine.sum())
            group = JobGroup(kind, name, jobs, float(wait), float(new_wait), float(slow), float(new_slow))
            groups.append(replace(group, why=_why(trace, size, picked[mine], usual)) if group.loses else group)
        found[kind] = sorted(groups, key=lambda g: -g.jobs)
    return found


def losers(found: dict[str, list[JobGroup]], kind: str = "user", most: int = 5) -> list[JobGroup]:
    """Those whose mean wait has grown most."""
    lost = [g for g in found.get(kind, []) if g.loses]
    return sorted(lost, key=lambda g: g.own_wait - g.wait)[:most]


def as_value(found: dict[str, list[JobGroup]]) -> dict[str, Any]:
    """For JSON: every group, and the five of each kind that lose most."""
    groups = {kind: [asdict(g) for g in rows] for kind, rows in found.items()}
    return {"groups": groups, "lose_most": {kind: [g.name for g in losers(found, kind)] for kind in found}}


def told(found: dict[str, list[JobGroup]], kinds: Sequence[str] = ("user", "account", "partition", "size")) -> str:
    """The five who lose most and why, in lines of at most 80 characters; a line where nobody does."""
    lines = []
    for kind in kinds:
        if kind not in found:
            continue
        lost = losers(found, kind)
        total = sum(g.loses for g in found[kind])
        many = plural(len(found[kind]), {"gpu_type": "GPU type"}.get(kind, kind))
        lines.append(f"of {many}, {total} wait noticeably longer than in Slurm's own order")
        for g in lost:
            change = f"{duration(g.own_wait)} → {duration(g.wait)}, BSLD {number(g.own_bsld)} → {number(g.bsld)}"
            lines.append(f"  {g.name:.20} ({plural(g.jobs, 'job')}): {change}"[:80])
            lines += textwrap.wrap(g.why, 80, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _figures(trace: Trace, result: ReportedResult, picked: Array) -> tuple[Array, Array]:
    wait = (result.start[picked] - trace.submit_time[picked]).astype(float)
    return wait, bounded_slowdown(wait, (result.end[picked] - result.start[picked]).astype(float))


def _codes(kind: str, trace: Trace, size: Array) -> tuple[Array, list[str]]:
    if kind == "size":
        power = np.ceil(np.log2(np.maximum(size, 1e-3)) - 1e-9).astype(np.int64)
        low = int(power.min()) if len(power) else 0
        names = [f"up to {2.0 ** (low + k):g}" for k in range(int(power.max(initial=low)) - low + 1)]
        return power - low, names
    labels: Labels = getattr(trace, kind)
    return labels.codes.astype(np.int64), list(labels.names)


def _usual(trace: Trace, size: Array, picked: Array) -> tuple[float, float]:
    if not len(picked):
        return 1.0, 1.0
    return float(np.median(size[picked])), float(np.median(np.maximum(trace.time_limit[picked], 1)))


def _why(trace: Trace, size: Array, mine: Array, usual: tuple[float, float]) -> str:
    """What sets its jobs apart from the usual one: the order sees size, limit and history."""
    wide = float(np.median(size[mine])) / max(usual[0], 1e-9)
    long = float(np.median(np.maximum(trace.time_limit[mine], 1))) / max(usual[1], 1.0)
    reasons = []
    if wide >= _TIMES:
        reasons.append(f"its jobs are {_times(wide)} times as large as the usual one")
    if long >= _TIMES:
        reasons.append(f"they request {_times(long)} times the usual time")
    if len(mine) < _FEW:
        reasons.append(f"with {plural(len(mine), 'job')}, little is known of its run times")
    return "; ".join(reasons) or "its jobs are as usual: others, shorter ones, go before them"


def _times(ratio: float) -> str:
    """`4`, `2.5`: how often, in a sentence."""
    return f"{ratio:,.1f}".removesuffix(".0")
