"""The heuristics, each written once: one compiled formula a policy, for a live snapshot and for the replay loop.

A heuristic scores pending job `j` at time `now`, higher first. Its row is in catalogue.py; the kernel in a World's slot
`score` is the one that `call_score` reaches.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Record
from slurm_rl.kernel.jit import inlined, kernel
from slurm_rl.kernel.links import FLOAT, INT, slot

call_score = slot("score", FLOAT, FLOAT, INT)

# What sites commonly write: fairshare rules, age and size second it, a partition or QOS can override both.
DEFAULT_WEIGHTS = {
    "age": 1000.0,
    "fairshare": 10000.0,
    "job_size": 1000.0,
    "partition": 1000.0,
    "qos": 2000.0,
    "tres": 0.0,
}


@inlined
def _run(w: Record, j: int) -> float:
    """The estimated run time."""
    return max(t.live(w).expected[j], 1.0)


@inlined
def _size(w: Record, j: int) -> float:
    return t.requests(w).volume[t.jobs(w).request[j]]


@inlined
def _factors(
    w: Record,
    now: float,
    j: int,
    jobs: Any,
    requests: Any,
    pools: Any,
    users: Any,
    parts: Any,
    qos: Any,
    points: Any,
) -> float:
    s = jobs.request[j]
    if len(points) > 0:
        size = points[j]
    else:
        share = requests.volume[s] / pools.volume[requests.pool[s]]
        size = (w.weight_job_size + w.weight_tres) * share
    return (
        w.weight_age * min(1.0, (now - jobs.submit[j]) / w.max_age)
        + w.weight_fairshare * users.fairshare[jobs.user[j]]
        + size
        + w.weight_partition * parts[jobs.partition[j]]
        + w.weight_qos * qos[jobs.qos[j]]
        - jobs.nice[j]
    )


@kernel
def multifactor_priority(w: Record, now: float, j: int) -> float:
    """Slurm's priority of a pending job without its site factor."""
    users, partitions, qos = t.users(w), t.partition_factor(w), t.qos_factor(w)
    return _factors(w, now, j, t.jobs(w), t.requests(w), t.pools(w), users, partitions, qos, t.points(w))


@kernel
def score_by_multifactor(w: Record, now: float, queue: np.ndarray, count: int) -> None:
    """The same of a queue, without a call for each job."""
    jobs, requests, pools, users, scores = t.jobs(w), t.requests(w), t.pools(w), t.users(w), t.scores(w)
    partitions, qos, points = t.partition_factor(w), t.qos_factor(w), t.points(w)
    for i in range(count):
        scores[i] = _factors(w, now, queue[i], jobs, requests, pools, users, partitions, qos, points)


@kernel
def multifactor(w: Record, now: float, j: int) -> float:
    return multifactor_priority(w, now, j)


@kernel
def fcfs(w: Record, now: float, j: int) -> float:
    return -float(t.jobs(w).submit[j])


@kernel
def lcfs(w: Record, now: float, j: int) -> float:
    return float(t.jobs(w).submit[j])


@kernel
def edf(w: Record, now: float, j: int) -> float:
    return -float(t.jobs(w).deadline[j]) if t.jobs(w).deadline[j] >= 0 else -1e18


@kernel
def static_priority(w: Record, now: float, j: int) -> float:
    return t.jobs(w).priority[j]


@kernel
def static_equal(w: Record, now: float, j: int) -> float:
    return -t.users(w).rate[t.jobs(w).user[j]]


@kernel
def sjf(w: Record, now: float, j: int) -> float:
    return -_run(w, j)


@kernel
def ljf(w: Record, now: float, j: int) -> float:
    return _run(w, j)


@kernel
def srpt(w: Record, now: float, j: int) -> float:
    return -max(_run(w, j) - t.live(w).done[j], 1.0)


@kernel
def smith(w: Record, now: float, j: int) -> float:
    return t.live(w).inverse[j] / _run(w, j)


@kernel
def saf(w: Record, now: float, j: int) -> float:
    return -_run(w, j) * _size(w, j)


@kernel
def f1(w: Record, now: float, j: int) -> float:
    submit = max(float(t.jobs(w).submit[j]), 1.0)
    return -(math.log10(_run(w, j)) * _size(w, j) + 870.0 * math.log10(submit))


@kernel
def sjf_age(w: Record, now: float, j: int) -> float:
    r = _run(w, j)
    return math.log1p((now - t.jobs(w).submit[j]) / r) - math.log(r)


@kernel
def wfp3(w: Record, now: float, j: int) -> float:
    return ((now - t.jobs(w).submit[j]) / _run(w, j)) ** 3 * _size(w, j)


@kernel
def unicef(w: Record, now: float, j: int) -> float:
    wait = now - t.jobs(w).submit[j]
    return wait / (max(math.log2(max(_size(w, j), 1.0)), 1.0) * _run(w, j))


@kernel
def dynamic(w: Record, now: float, j: int) -> float:
    """The response ratio, raised by the submitter's priority and by a deadline that draws near."""
    r = _run(w, j)
    urgency = 1.0
    if t.jobs(w).deadline[j] >= 0:
        slack = t.jobs(w).deadline[j] - now - r
        urgency += r / max(slack, 0.1 * r)
    wait = now - t.jobs(w).submit[j]
    return (1.0 + wait / r) * urgency * (1.0 + max(t.jobs(w).priority[j], 0.0))
