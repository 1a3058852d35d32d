"""A network's view of a queue: one definition for live scheduling, replay and training.

A feature is computed from the World alone: what users asked for, what has finished, what runs and since when. True run
times of unfinished jobs are not in reach. contract.py tells whether a model was made for these features.
"""

from __future__ import annotations

import math

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, MEM, NOW, Array, Record
from slurm_rl.kernel.jit import inlined, kernel

VERSION = 1  # a new one where features keep their names and values, and yet a model should not be used
JOB_FEATURES = (
    "age",  # log(1 + wait in minutes)
    "estimate",  # log of the estimated run time
    "spread",  # standard deviation of its logarithm
    "inverse",  # -log E[1 / run time]
    "limit",  # log of the time limit
    "age_ratio",  # log(1 + wait / estimate)
    "seen",  # log(1 + finished jobs like it)
    "latest_size",  # last run time of the user's jobs of its size, against the estimate
    "latest_like",  # last run time of its closest kin, against the estimate
    "user_level",  # the user's mean, against the estimate
    "running_size",  # log(1 + the user's running jobs of its size)
    "elapsed_size",  # … how long they have run, against the estimate
    "running_like",  # the same of its closest kin
    "elapsed_like",
    "waiting_size",  # log(1 + the user's other waiting jobs of its size)
    "waiting_like",
    "size",  # log of its GPUs (or CPUs)
    "pool_share",  # share of the pool that it asks for
    "units",  # log of the number of its units
    "ways",  # share of its nodes with room for a unit
    "tight",  # share of its nodes that a unit would fill to the brim
    "spare",  # free share of its nodes
    "fairshare",
    "user_held",  # share of the pool that its user holds
    "user_queue",  # share of the queue that its user owns
    "position",  # share of the queue that was submitted earlier
    "age_drain",  # log(1 + wait / time that the backlog takes)
    "types",  # share of the pool's nodes that it accepts
    "on_gpu",
    "urgency",  # how near its deadline is
    "standing",  # partition and QOS factors
    "done",  # log(1 + seconds it ran before a preemption)
)
POOL_FEATURES = ("free", "queue", "demand", "drain", "day_sine", "day_cosine", "limit_spread", "running_age")
JOB_COUNT, POOL_COUNT = len(JOB_FEATURES), len(POOL_FEATURES)
_SAMPLE = 64  # nodes that are looked at for `ways`, `tight` and `spare`
_DAY = 86400.0


@inlined
def _closest(w: Record, j: int) -> np.int64:
    """The estimator's closest group of a job: its name where it has one, else its exact size and limit."""
    named = np.int64(t.jobs(w).group[j, 4])
    if named >= 0:
        return named + 1
    return np.int64(t.jobs(w).group[j, 3]) + 1


@inlined
def _sight(w: Record, g: int) -> None:
    """Empties what an earlier observation counted in a group."""
    groups = t.groups(w)
    if groups.sight[g] != w.observation:
        groups.sight[g] = w.observation
        groups.run_count[g] = 0.0
        groups.run_elapsed[g] = 0.0
        groups.wait_count[g] = 0.0


@inlined
def expected_mean(w: Record, j: int) -> float:
    """The arithmetic mean of a job's run time (its estimate is the geometric one), within its limit."""
    spread = float(t.live(w).spread[j])
    return min(t.live(w).expected[j] * math.exp(0.5 * spread * spread), float(t.jobs(w).limit[j]))


@kernel
def _count(w: Record, now: float, pool: int, queue: Array, count: int) -> None:
    """Counts the running and waiting jobs of each group, and the time that the pool's backlog takes."""
    w.observation += 1
    groups, jobs, context = t.groups(w), t.jobs(w), t.context(w)
    base = t.pools(w).first_job[pool]
    volume = t.pools(w).volume[pool]
    backlog, ages, running = 0.0, 0.0, t.pools(w).running[pool]
    for k in range(running):
        j = t.running(w)[base + k]
        elapsed = now - t.live(w).start[j]
        for g in (np.int64(jobs.group[j, 2]) + 1, _closest(w, j)):
            _sight(w, g)
            groups.run_count[g] += 1.0
            groups.run_elapsed[g] += elapsed
        left = min(max(expected_mean(w, j) - elapsed, 0.3 * elapsed), max(jobs.limit[j] - elapsed, 0.0))
        backlog += left * t.requests(w).volume[jobs.request[j]]
        ages += elapsed
    demand = 0.0
    for i in range(count):
        j = queue[i]
        for g in (np.int64(jobs.group[j, 1]) + 1, np.int64(jobs.group[j, 2]) + 1, _closest(w, j)):
            _sight(w, g)
            groups.wait_count[g] += 1.0
        size = t.requests(w).volume[jobs.request[j]]
        demand += size
        backlog += size * expected_mean(w, j)
    w.drain = backlog / volume
    free = float(t.total(w)[NOW, pool, GPU])
    if free == 0.0 and t.nodes(w).gpu[t.pools(w).first_node[pool]] == 0:
        free = float(t.total(w)[NOW, pool, CPU])
    context[0] = min(free / volume, 1.0)
    context[1] = math.log1p(float(count))
    context[2] = math.log1p(demand / volume)
    context[3] = math.log1p(w.drain / 60.0)
    context[4] = math.sin(2.0 * math.pi * now / _DAY)
    context[5] = math.cos(2.0 * math.pi * now / _DAY)
    context[6] = math.sqrt(groups.variance[0])
    context[7] = math.log1p(ages / max(running, 1) / 60.0)


@kernel
def _look(w: Record, s: int) -> None:
    """How much room a request's nodes have, by a sample of them."""
    requests, free, nodes = t.requests(w), t.free(w), t.nodes(w)
    requests.sight[s] = w.observation
    kind = requests.kind[s]
    first, last = t.kind_ptr(w)[kind], t.kind_ptr(w)[kind + 1]
    step = max((last - first) // _SAMPLE, 1)
    cpu, mem, gpu = requests.cpu[s], requests.mem[s], max(requests.gpu[s], 1 if requests.share[s] > 0 else 0)
    ways, tight, have, total, looked = 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(first, last, step):
        n = t.kind_node(w)[k]
        looked += 1.0
        if gpu > 0:
            have += free[NOW, n, GPU]
            total += nodes.gpu[n]
        else:
            have += free[NOW, n, CPU]
            total += nodes.cpu[n]
        if free[NOW, n, GPU] >= gpu and free[NOW, n, CPU] >= cpu and free[NOW, n, MEM] >= mem:
            ways += 1.0
            if (free[NOW, n, GPU] == gpu) if gpu > 0 else (free[NOW, n, CPU] == cpu):
                tight += 1.0
    requests.ways[s] = ways / max(looked, 1.0)
    requests.tight[s] = tight / max(looked, 1.0)
    requests.spare[s] = have / max(total, 1.0)


@kernel
def observe(w: Record, now: float, queue: Array, count: int) -> None:
    """Writes the features of the first `count` jobs of a pool's queue, and of the pool, into their tables."""
    pool = t.requests(w).pool[np.int64(t.jobs(w).request[queue[0]])]
    _count(w, now, pool, queue, count)
    groups, jobs, live, requests, users = t.groups(w), t.jobs(w), t.live(w), t.requests(w), t.users(w)
    volume = t.pools(w).volume[pool]
    pool_nodes = t.pools(w).last_node[pool] - t.pools(w).first_node[pool]
    drain = max(w.drain, 60.0)
    rows = t.features(w)
    for i in range(count):
        j = queue[i]
        row = rows[i]
        s = np.int64(jobs.request[j])
        if requests.sight[s] != w.observation:
            _look(w, s)
        wait = now - jobs.submit[j]
        estimate = max(live.expected[j], 1.0)
        log_estimate = math.log(estimate)
        by_user, by_size, like = np.int64(jobs.group[j, 1]) + 1, np.int64(jobs.group[j, 2]) + 1, _closest(w, j)
        row[0] = math.log1p(wait / 60.0)
        row[1] = log_estimate
        row[2] = live.spread[j]
        row[3] = -math.log(max(float(live.inverse[j]), 1e-9))
        row[4] = math.log(float(jobs.limit[j]))
        row[5] = math.log1p(wait / estimate)
        row[6] = math.log1p(float(live.seen[j]))
        row[7] = groups.latest[by_size] - log_estimate if groups.weight[by_size] > 0.0 else 0.0
        row[8] = groups.latest[like] - log_estimate if groups.weight[like] > 0.0 else 0.0
        row[9] = groups.center[by_user] - log_estimate if groups.weight[by_user] > 0.0 else 0.0
        row[10] = math.log1p(groups.run_count[by_size])
        row[11] = _elapsed(groups.run_count[by_size], groups.run_elapsed[by_size], log_estimate)
        row[12] = math.log1p(groups.run_count[like])
        row[13] = _elapsed(groups.run_count[like], groups.run_elapsed[like], log_estimate)
        row[14] = math.log1p(groups.wait_count[by_size] - 1.0)
        row[15] = math.log1p(groups.wait_count[like] - 1.0)
        size = requests.volume[s]
        row[16] = math.log(size)
        row[17] = size / volume
        row[18] = math.log(float(requests.units[s]))
        row[19] = requests.ways[s]
        row[20] = requests.tight[s]
        row[21] = requests.spare[s]
        user = jobs.user[j]
        row[22] = users.fairshare[user]
        row[23] = users.rate[user] / volume
        row[24] = groups.wait_count[by_user] / count
        row[25] = i / count
        row[26] = math.log1p(wait / drain)
        kind = requests.kind[s]
        row[27] = (t.kind_ptr(w)[kind + 1] - t.kind_ptr(w)[kind]) / pool_nodes
        row[28] = 1.0 if requests.gpu[s] + requests.share[s] > 0 else 0.0
        row[29] = 0.0
        if jobs.deadline[j] >= 0:
            row[29] = 1.0 / (1.0 + max(jobs.deadline[j] - now - estimate, 0.0) / estimate)
        row[30] = t.partition_factor(w)[jobs.partition[j]] + t.qos_factor(w)[jobs.qos[j]]
        row[31] = math.log1p(live.done[j])


@inlined
def _elapsed(count: float, elapsed: float, log_estimate: float) -> float:
    """How long a group's running jobs have run, against an estimate; 0 if none runs."""
    if count <= 0.0:
        return 0.0
    return math.log(max(elapsed / count, 1.0)) - log_estimate
