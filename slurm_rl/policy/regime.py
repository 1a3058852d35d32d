"""A meta-policy's view of a pool: 32 figures of its nodes, its queue, and recent arrivals.

All of it can be known live: arrivals are the jobs of the World that were submitted since the last choice. Nothing says
which regime a workload was made for. The cost is bounded: long queues are sampled.
"""

from __future__ import annotations

import math

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, NOW, Array, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.policy.features import expected_mean

REGIME_VERSION = 1
# By the part that an ablation leaves out (train/algorithms/metadqn.py): what each figure is.
POOL_PART = (
    "free",  # share of the pool's GPUs (or CPUs)
    "queue",  # log(1 + waiting jobs)
    "demand",  # log(1 + what they ask for, in pools)
    "drain",  # log(1 + minutes that the backlog takes)
    "estimate",  # mean log of estimated run times …
    "estimate_spread",  # … and its deviation between jobs
    "uncertainty",  # mean deviation of single estimates
    "size",  # mean log of sizes …
    "size_spread",  # … and its deviation
    "widest",  # largest share of the pool that one job asks for
    "priority_spread",  # deviation of submitters' priorities
    "running",  # log(1 + running jobs)
    "running_age",  # log(1 + mean minutes that they have run)
    "held",  # mean share of the pool that users of waiting jobs hold
)
AGE_PART = (
    "age",  # mean log(1 + minutes of waiting)
    "age_ratio",  # mean log(1 + wait / estimate)
    "oldest",  # log(1 + minutes of the longest wait)
    "oldest_drain",  # log(1 + longest wait / time that the backlog takes)
)
DEADLINE_PART = (
    "deadlines",  # share of waiting jobs with a deadline,
    "near",  # … that must start within their run time to meet it,
    "late",  # … that cannot meet it any more
)
ENERGY_PART = ("power",)  # share of the busy GPUs' power that is drawn
REGIME_PART = (
    "rate",  # log(1 + arrivals an hour), lately …
    "usual_rate",  # … and over hours
    "change",  # log of the ratio of the two
    "burst",  # log(1 + squared coefficient of variation of the time between arrivals)
    "load",  # log(1 + work that arrives, in pools)
    "day_sine",
    "day_cosine",
    "error",  # mean log of run time / limit, of finished jobs …
    "error_spread",  # … and its deviation
)
PARTS = {"pool": POOL_PART, "age": AGE_PART, "deadline": DEADLINE_PART, "energy": ENERGY_PART, "regime": REGIME_PART}
REGIME_FEATURES = tuple(name for part in PARTS.values() for name in part)
REGIME_COUNT = len(REGIME_FEATURES) + 1  # the last one is always 1: a multiple of eight, for vector arithmetic
_AT_RATE = REGIME_FEATURES.index("rate")
_SAMPLE = 128  # jobs that are looked at, at most, of those that wait and of those that run
_NODES = 64
_FAST, _SLOW, _WORK = 600.0, 10_800.0, 3600.0  # seconds after which an arrival counts 1/e
_KEEP = 0.95  # of the mean time between arrivals, at each
_BEFORE = 3600.0  # seconds that are looked back at first
_LEAST = 60.0  # seconds: no job is more urgent than one of that length
_DAY = 86400.0


@inlined
def _first_after(w: Record, time: float) -> int:
    """The first job that was submitted after a moment: jobs are sorted by submission."""
    submit = t.jobs(w).submit
    low, high = 0, len(submit)
    while low < high:
        middle = (low + high) >> 1
        if submit[middle] <= time:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _hear(w: Record, now: float, pool: int) -> None:
    """Counts the pool's arrivals since the last choice."""
    c, jobs, requests, volume = t.choosers(w), t.jobs(w), t.requests(w), t.pools(w).volume[pool]
    if c.heard[pool] == 0.0:
        c.born[pool] = c.heard[pool] = now - _BEFORE
        c.arrival[pool] = now - _BEFORE
    gone = max(now - c.heard[pool], 0.0)
    fast, slow = c.fast[pool] * math.exp(-gone / _FAST), c.slow[pool] * math.exp(-gone / _SLOW)
    offered, entered = c.offered[pool] * math.exp(-gone / _WORK), 0.0
    j = _first_after(w, c.heard[pool])
    while j < len(jobs) and jobs.submit[j] <= now:
        s = np.int64(jobs.request[j])
        if requests.pool[s] == pool:
            ago = now - jobs.submit[j]
            fast += math.exp(-ago / _FAST)
            slow += math.exp(-ago / _SLOW)
            offered += requests.volume[s] * expected_mean(w, j) * math.exp(-ago / _WORK)
            entered += 1.0 / max(t.live(w).expected[j], _LEAST)
            gap = jobs.submit[j] - c.arrival[pool]
            c.gap[pool] = _KEEP * c.gap[pool] + (1.0 - _KEEP) * gap
            c.gap_square[pool] = _KEEP * c.gap_square[pool] + (1.0 - _KEEP) * gap * gap
            c.arrival[pool] = jobs.submit[j]
        j += 1
    c.fast[pool], c.slow[pool], c.offered[pool] = fast, slow, offered
    c.entered[pool] += entered
    c.heard[pool] = now
    age = now - c.born[pool]
    seen = t.regime(w)[pool]
    rate = 3600.0 * fast / (_FAST * (1.0 - math.exp(-age / _FAST)))
    usual = 3600.0 * slow / (_SLOW * (1.0 - math.exp(-age / _SLOW)))
    first = _AT_RATE
    seen[first] = math.log1p(rate)
    seen[first + 1] = math.log1p(usual)
    seen[first + 2] = math.log((rate + 1.0) / (usual + 1.0))
    square = c.gap[pool] * c.gap[pool]
    seen[first + 3] = math.log1p(max(c.gap_square[pool] - square, 0.0) / max(square, 1.0))
    seen[first + 4] = math.log1p(offered / (volume * _WORK * (1.0 - math.exp(-age / _WORK))))
    seen[first + 5] = math.sin(2.0 * math.pi * now / _DAY)
    seen[first + 6] = math.cos(2.0 * math.pi * now / _DAY)
    seen[first + 7] = t.groups(w).center[0]
    seen[first + 8] = math.sqrt(t.groups(w).variance[0])


@inlined
def _power(w: Record, pool: int) -> float:
    """The share of the busy GPUs' power that is drawn, by a sample of the pool's nodes."""
    first, last = t.pools(w).first_node[pool], t.pools(w).last_node[pool]
    drawn, most = 0.0, 0.0
    for n in range(first, last, max((last - first) // _NODES, 1)):
        gpus, watts = float(t.nodes(w).gpu[n]), t.nodes(w).watts[n]
        drawn += (gpus - t.free(w)[NOW, n, GPU]) * watts
        most += gpus * watts
    return drawn / most if most > 0.0 else 0.0


@inlined
def _deviation(total: float, squares: float, count: float) -> float:
    return math.sqrt(max(squares / count - (total / count) * (total / count), 0.0))


@kernel
def look(w: Record, now: float, pool: int, queue: Array, count: int) -> float:
    """Writes the pool's row of `regime`; how urgent its waiting jobs are: the sum of 1 / estimate."""
    _hear(w, now, pool)
    jobs, live, requests, users = t.jobs(w), t.live(w), t.requests(w), t.users(w)
    volume, base, running = t.pools(w).volume[pool], t.pools(w).first_job[pool], t.pools(w).running[pool]
    ages, backlog = 0.0, 0.0
    looked = min(running, _SAMPLE)
    each = running / max(looked, 1)  # jobs that one stands for
    for k in range(looked):
        j = t.running(w)[base + k * running // looked]
        elapsed = now - live.start[j]
        left = min(max(expected_mean(w, j) - elapsed, 0.3 * elapsed), max(jobs.limit[j] - elapsed, 0.0))
        backlog += each * left * requests.volume[np.int64(jobs.request[j])]
        ages += elapsed
    running_age = ages / max(looked, 1)
    looked = min(count, _SAMPLE)
    each = count / max(looked, 1)
    demand, urgency, estimates, estimate_squares, uncertainty = 0.0, 0.0, 0.0, 0.0, 0.0
    sizes, size_squares, widest, priorities, priority_squares, held = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    waited, ratios, oldest, deadlines, near, late = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(looked):
        j = queue[i * count // looked]
        s = np.int64(jobs.request[j])
        estimate, mean, size, wait = max(live.expected[j], 1.0), expected_mean(w, j), requests.volume[s], 0.0
        wait = max(now - jobs.submit[j], 0.0)
        log_estimate, log_size = math.log(estimate), math.log(max(size, 1e-3))
        demand += size
        backlog += each * size * mean
        urgency += 1.0 / max(estimate, _LEAST)
        estimates += log_estimate
        estimate_squares += log_estimate * log_estimate
        uncertainty += live.spread[j]
        sizes += log_size
        size_squares += log_size * log_size
        widest = max(widest, size / volume)
        priorities += jobs.priority[j]
        priority_squares += jobs.priority[j] * jobs.priority[j]
        held += users.rate[jobs.user[j]]
        waited += math.log1p(wait / 60.0)
        ratios += math.log1p(wait / estimate)
        oldest = max(oldest, wait)
        if jobs.deadline[j] >= 0:
            slack = jobs.deadline[j] - now - estimate
            deadlines += 1.0
            near += slack >= 0.0 and slack < estimate
            late += slack < 0.0
    n = float(max(looked, 1))
    drain = backlog / volume
    free = float(t.total(w)[NOW, pool, GPU])
    if t.pools(w).cpu_only[pool]:
        free = float(t.total(w)[NOW, pool, CPU])
    seen = t.regime(w)[pool]
    seen[0] = min(free / volume, 1.0)
    seen[1] = math.log1p(float(count))
    seen[2] = math.log1p(each * demand / volume)
    seen[3] = math.log1p(drain / 60.0)
    seen[4] = estimates / n
    seen[5] = _deviation(estimates, estimate_squares, n)
    seen[6] = uncertainty / n
    seen[7] = sizes / n
    seen[8] = _deviation(sizes, size_squares, n)
    seen[9] = min(widest, 1.0)
    seen[10] = min(_deviation(priorities, priority_squares, n), 10.0)
    seen[11] = math.log1p(float(running))
    seen[12] = math.log1p(running_age / 60.0)
    seen[13] = held / n / volume
    seen[14] = waited / n
    seen[15] = ratios / n
    seen[16] = math.log1p(oldest / 60.0)
    seen[17] = math.log1p(oldest / max(drain, 60.0))
    seen[18] = deadlines / n
    seen[19] = near / n
    seen[20] = late / n
    seen[21] = _power(w, pool)
    seen[REGIME_COUNT - 1] = 1.0
    return each * urgency


@kernel
def look_at(world: Array, now: float, queue: Array) -> None:
    """Looks at the queue of the first pool."""
    look(world[0], now, 0, queue, len(queue))
