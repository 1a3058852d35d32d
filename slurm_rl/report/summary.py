"""The summary on top of the report: who wins, who pays, and what to keep in mind, in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_rl.report import contenders
from slurm_rl.report.fairness import fairness, losers
from slurm_rl.report.inputs import ReportedRun
from slurm_rl.report.measured import Comparison
from slurm_rl.report.text import duration, number, plural, ratio
from slurm_rl.traces.limits import NOTE as SYNTHESISED
from slurm_rl_sim.metrics import share_of_the_way

# A user's mean wait has changed if it moved by this share and by this many seconds.
CHANGED, CHANGED_SECONDS = 0.10, 60.0
MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence or two under a heading; `tone` is `good`, `bad` or `plain`."""

    heading: str
    text: str
    tone: str = "plain"


@dataclass(frozen=True, slots=True)
class Summary:
    """The headline, the findings, and the notes on the data."""

    headline: str
    findings: list[Remark]
    notes: list[str]


def summarise(m: Comparison, sizes: tuple[np.ndarray, list[str]]) -> Summary:
    """Reads the replays' figures out; `sizes` are the groups of jobs by size."""
    runs, names = m.runs, contenders.labels(m.runs)
    base, best = contenders.baseline(runs), contenders.winner(runs)
    if best is None:
        reachable = any(not contenders.unreachable(r) for r in runs)
        headline = "No measured job ran." if reachable else "Only policies that know true run times were replayed."
        return Summary(headline, _out_of_reach(m, names, base, None), _notes(m))
    findings = []
    if len(runs) > 1:
        findings += [_wins(runs, names, base, best)]
        if best != base:
            findings += [_pays(m, names, base, best, sizes), *_lose_most(m, names, base, best)]
            findings += [_longest(runs, names, base, best)]
    findings += _out_of_reach(m, names, base, best)
    return Summary(_headline(runs, names, base, best), findings, _notes(m))


def _figure(run: ReportedRun, name: str) -> float:
    value = run.metrics[name]
    assert value is not None  # a replay in which a measured job ran has all times  # noqa: S101
    return float(value)


def _headline(runs: Sequence[ReportedRun], names: list[str], base: int, best: int) -> str:
    ours, theirs = _figure(runs[best], "mean_bsld"), _figure(runs[base], "mean_bsld")
    if len(runs) == 1:
        wait = duration(_figure(runs[best], "mean_wait"))
        return f"Under {names[best]}, jobs wait {wait} on average and are slowed down {number(ours)}-fold."
    others = [_figure(r, "mean_bsld") for r in runs if not contenders.unreachable(r)]
    if len(others) > 1 and max(others) == min(others):
        return f"All policies come out the same, at a mean slowdown of {number(ours)}."
    if best == base:
        return f"No contender beats {names[base]} at a mean slowdown of {number(theirs)}."
    return f"{names[best]} cuts the mean slowdown by {1 - ours / theirs:.0%}, from {number(theirs)} to {number(ours)}."


def _wins(runs: Sequence[ReportedRun], names: list[str], base: int, best: int) -> Remark:
    wait, before = _figure(runs[best], "mean_wait"), _figure(runs[base], "mean_wait")
    if best == base:
        text = f"{names[base]} has the smallest mean bounded slowdown of the reachable policies."
    else:
        text = (
            f"{names[best]} has the smallest mean bounded slowdown of the reachable policies. Jobs wait "
            f"{duration(wait)} on average instead of {duration(before)} under {names[base]}"
            + (f" ({ratio(wait, before)})." if before else ".")
        )
    shortest = contenders.winner(runs, "mean_wait")
    if shortest is not None and shortest != best and _figure(runs[shortest], "mean_wait") < wait:
        text += f" The shortest mean wait has {names[shortest]}: {duration(_figure(runs[shortest], 'mean_wait'))}."
    return Remark("Who wins", text, "good" if best != base else "plain")


def moved(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(gained, lost): whose mean wait fell or rose noticeably."""
    change = after - before
    noticeable = np.abs(change) > np.maximum(CHANGED * np.maximum(before, after), CHANGED_SECONDS)
    return noticeable & (change < 0), noticeable & (change > 0)


def _pays(m: Comparison, names: list[str], base: int, best: int, sizes: tuple[np.ndarray, list[str]]) -> Remark:
    sentences = []
    losers = 0
    user = m.trace.user
    if user.names:
        count = len(user.names)
        jobs = np.array(m.jobs_of(user.codes, count), dtype=np.float64)
        waits = [np.array([np.nan if v is None else v for v in s]) for s in m.mean_waits(user.codes, count)]
        before, after = waits[base], waits[best]
        known = ~np.isnan(before) & ~np.isnan(after)
        gained, lost = moved(np.where(known, before, 0), np.where(known, after, 0))
        losers = int(lost.sum())
        sentences.append(
            f"Of {plural(int(known.sum()), 'user')}, {int(gained.sum()):,} wait noticeably less than under"
            f" {names[base]} and {losers:,} noticeably longer (over {CHANGED:.0%} and a minute)."
        )
        if losers:
            hardest = int(np.argmax(np.where(lost, (after - before) * jobs, -1)))
            sentences.append(
                f"Most of the added waiting falls on {user.names[hardest]}, whose {plural(int(jobs[hardest]), 'job')}"
                f" wait {duration(after[hardest])} on average instead of {duration(before[hardest])}."
            )
    group, size_names = sizes
    series = m.mean_waits(group, len(size_names))
    worse = [
        (b / max(a, 1.0), i)
        for i, (a, b) in enumerate(zip(series[base], series[best], strict=True))
        if a is not None and b is not None and bool(moved(np.array([a]), np.array([b]))[1][0])
    ]
    if worse:
        _, i = max(worse)
        sentences.append(
            f"By size, jobs of {size_names[i]} pay most:"
            f" {duration(series[best][i])} instead of {duration(series[base][i])} on average."
        )
    else:
        sentences.append("No size of job waits noticeably longer on average.")
    return Remark("Who pays", " ".join(sentences), "bad" if worse or losers else "good")


def _lose_most(m: Comparison, names: list[str], base: int, best: int) -> list[Remark]:
    """The five users whose mean wait grew most, each with what sets its jobs apart."""
    found = fairness(m.trace, m.workload, m.prepared.measured, m.runs[base].result, m.runs[best].result)
    lost = losers(found)
    if not lost:
        return []
    each = [f"{g.name}, {duration(g.own_wait)} → {duration(g.wait)}: {g.why}" for g in lost]
    return [Remark("Who loses most, and why", ". ".join(each) + ".", "bad")]


def _longest(runs: Sequence[ReportedRun], names: list[str], base: int, best: int) -> Remark:
    ours, theirs = _figure(runs[best], "max_wait"), _figure(runs[base], "max_wait")
    if ours > theirs:
        times = f" ({ratio(ours, theirs)})" if theirs else ""
        text = f"It grew, from {duration(theirs)} under {names[base]} to {duration(ours)} under {names[best]}{times}."
    elif ours < theirs:
        text = f"It did not grow: {duration(ours)} under {names[best]}, {duration(theirs)} under {names[base]}."
    else:
        text = f"It is the same under both: {duration(ours)}."
    return Remark("Longest wait", text, "bad" if ours > theirs else "good")


def _out_of_reach(m: Comparison, names: list[str], base: int, best: int | None) -> list[Remark]:
    known = [i for i, r in enumerate(m.runs) if contenders.unreachable(r) and r.metrics["mean_bsld"] is not None]
    if not known:
        return []
    limit = min(known, key=lambda i: _figure(m.runs[i], "mean_bsld"))
    which = " and ".join(names[i] for i in known)
    text = f"{which} {'knows' if len(known) == 1 else 'know'} true run times in advance, which no scheduler can."
    if best is not None and not contenders.unreachable(m.runs[base]):
        top, bottom = _figure(m.runs[base], "mean_bsld"), _figure(m.runs[limit], "mean_bsld")
        ours = _figure(m.runs[best], "mean_bsld")
        text += f" At a mean slowdown of {number(bottom)}, {names[limit]} is a limit, not a contender"
        way = share_of_the_way(top, ours, bottom) if best != base and ours >= bottom else None
        text += "." if way is None else f"; {names[best]} goes {way:.0%} of the way to it from {names[base]}."
    return [Remark("Out of reach", text)]


def _notes(m: Comparison) -> list[str]:
    notes = []
    total, measured = len(m.trace), int(m.prepared.measured.sum())
    if measured < total:
        notes.append(f"{measured:,} of {total:,} jobs are measured; jobs before the window only warm the cluster up.")
    for note in m.trace.notes:
        if note.what == SYNTHESISED:
            notes.append(
                f"{plural(note.rows, 'job')} had no time limit in the trace. Limits were synthesised from how far real"
                " users overestimate; backfill, and policies that read limits, depend on them."
            )
        else:
            notes.append(f"Trace: {note}.")
    reasons: dict[str, list[int]] = {}
    for job, reason in m.runs[0].result.rejected.items():
        reasons.setdefault(reason, []).append(job)
    ranked = sorted(reasons.items(), key=lambda item: -len(item[1]))
    for reason, jobs in ranked[:MOST_REASONS]:
        notes.append(
            f"{plural(len(jobs), 'job')} never ran and {'is' if len(jobs) == 1 else 'are'} in no average, e.g. job"
            f" {m.trace.job_id[jobs[0]]}: {reason}."
        )
    if len(ranked) > MOST_REASONS:
        left = sum(len(jobs) for _, jobs in ranked[MOST_REASONS:])
        notes.append(f"{plural(left, 'further job')} never ran, for {len(ranked) - MOST_REASONS} other reasons.")
    killed = [int(r.metrics["killed"] or 0) for r in m.runs]
    if max(killed):
        same = min(killed) == max(killed)
        span = f"{killed[0]:,}" if same else f"{min(killed):,} to {max(killed):,}, depending on the policy"
        notes.append(f"Jobs killed at their time limit, as Slurm does: {span}.")
    requeued = max(r.result.requeued for r in m.runs)
    if requeued:
        notes.append(f"Up to {plural(requeued, 'time')} a job was requeued; its wait counts to its last start.")
    notes.append("This is one replay of one trace: a difference of a few percent may be chance.")
    return notes
