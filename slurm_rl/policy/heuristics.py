"""The heuristics, each written once: one compiled formula a policy, for a live snapshot and for the replay loop."""

from __future__ import annotations

import math

from slurm_rl.domain import tables as t
from slurm_rl.domain.arrays import Record
from slurm_rl.jit import kernel

FCFS, LCFS, SJF, LJF, SAF, SJF_AGE, SMITH, SRPT, F1, WFP3, UNICEF, EDF = range(12)
STATIC_PRIORITY, STATIC_EQUAL, DYNAMIC, MULTIFACTOR, LEARNED, GIVEN = range(12, 18)

CODES = {
    "fcfs": FCFS,
    "lcfs": LCFS,
    "sjf": SJF,
    "ljf": LJF,
    "saf": SAF,
    "sjf-age": SJF_AGE,
    "smith": SMITH,
    "srpt": SRPT,
    "f1": F1,
    "wfp3": WFP3,
    "unicef": UNICEF,
    "edf": EDF,
    "static-priority": STATIC_PRIORITY,
    "static-equal": STATIC_EQUAL,
    "dynamic": DYNAMIC,
    "multifactor": MULTIFACTOR,
}
USES_ESTIMATE = frozenset((SJF, LJF, SAF, SJF_AGE, SMITH, SRPT, F1, WFP3, UNICEF, DYNAMIC))
# Policies whose order of two waiting jobs never changes while they wait (given an estimate that does not change).
FIXED_ORDER = frozenset((FCFS, LCFS, SJF, LJF, SAF, SMITH, SRPT, F1, EDF, STATIC_PRIORITY))

BY_LIMIT, BY_USER, BY_ORACLE = range(3)
SOURCES = {"limit": BY_LIMIT, "user": BY_USER, "oracle": BY_ORACLE}


# What sites commonly write: fairshare rules, age and size second it, a partition or QOS can override both.
DEFAULT_WEIGHTS = {
    "age": 1000.0,
    "fairshare": 10000.0,
    "job_size": 1000.0,
    "partition": 1000.0,
    "qos": 2000.0,
    "tres": 0.0,
}


@kernel
def multifactor_priority(w: Record, now: float, j: int) -> float:
    """Slurm's priority of a pending job without its site factor."""
    s = t.jobs(w).request[j]
    share = t.shapes(w).volume[s] / t.pools(w).volume[t.shapes(w).pool[s]]
    return (
        w.weight_age * min(1.0, (now - t.jobs(w).submit[j]) / w.max_age)
        + w.weight_fairshare * t.users(w).fairshare[t.jobs(w).user[j]]
        + (w.weight_job_size + w.weight_tres) * share
        + w.weight_partition * t.partition_factor(w)[t.jobs(w).part[j]]
        + w.weight_qos * t.qos_factor(w)[t.jobs(w).qos[j]]
        - t.jobs(w).nice[j]
    )


@kernel
def score_job(w: Record, code: int, now: float, j: int) -> float:
    """The heuristic `code`'s score of pending job `j`, higher first."""
    if code == FCFS:
        return -float(t.jobs(w).submit[j])
    if code == LCFS:
        return float(t.jobs(w).submit[j])
    if code == EDF:
        return -float(t.jobs(w).deadline[j]) if t.jobs(w).deadline[j] >= 0 else -1e18
    if code == STATIC_PRIORITY:
        return t.jobs(w).priority[j]
    if code == STATIC_EQUAL:
        return -t.users(w).rate[t.jobs(w).user[j]]
    if code == MULTIFACTOR:
        return multifactor_priority(w, now, j)
    r = max(t.live(w).expected[j], 1.0)
    if code == SJF:
        return -r
    if code == LJF:
        return r
    if code == SRPT:
        return -max(r - t.live(w).done[j], 1.0)
    if code == SMITH:
        return t.live(w).inverse[j] / r
    size = t.shapes(w).volume[t.jobs(w).request[j]]
    if code == SAF:
        return -r * size
    if code == F1:
        return -(math.log10(r) * size + 870.0 * math.log10(max(float(t.jobs(w).submit[j]), 1.0)))
    wait = now - t.jobs(w).submit[j]
    if code == SJF_AGE:
        return math.log1p(wait / r) - math.log(r)
    if code == WFP3:
        return (wait / r) ** 3 * size
    if code == UNICEF:
        return wait / (max(math.log2(max(size, 1.0)), 1.0) * r)
    # DYNAMIC: the response ratio, raised by the submitter's priority and by a deadline that draws near.
    urgency = 1.0
    if t.jobs(w).deadline[j] >= 0:
        slack = t.jobs(w).deadline[j] - now - r
        urgency += r / max(slack, 0.1 * r)
    return (1.0 + wait / r) * urgency * (1.0 + max(t.jobs(w).priority[j], 0.0))
