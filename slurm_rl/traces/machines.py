"""Machines unlike the sample, to test policies where they were not tuned.

`capability`: thousands of nodes without GPUs, whole-node jobs from 128 nodes to all of them. `throughput`: very many
jobs of one core. `interactive`: a small partition of short jobs by day beside a batch partition. `one-user`: one user
with 95% of the load. `blocks`: gangs on NVLink blocks of 18 nodes, and on leaf switches of 32. `leadership` and
`exascale`: 26,864 nodes of two classes and 100,000 of eight, jobs from one to half of them. The same name, number of
jobs and seed give the same trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.errors import unknown_name
from slurm_rl.traces.arrivals import DAY, HOUR, rate_of
from slurm_rl.traces.generate import WorkloadSpec, generate
from slurm_rl.traces.limits import typed_limits
from slurm_rl.traces.trace import Floats, Ints, Trace, make_trace


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine: what it is, how many jobs its trace has unless told otherwise, and how it is made."""

    help: str
    jobs: int
    make: Callable[[int, int], tuple[Trace, Cluster]]  # jobs, seed


def machine(name: str, *, jobs: int | None = None, seed: int = 0) -> tuple[Trace, Cluster]:
    """A machine by name: its trace and its cluster."""
    if name not in MACHINES:
        raise unknown_name("machine", name, MACHINES)
    found = MACHINES[name]
    return found.make(jobs or found.jobs, seed)


@dataclass(frozen=True, slots=True)
class _Habits:
    """Kinds of jobs: whose, how often, how large, how long; one row each."""

    user: Ints
    weight: Floats
    size: Ints
    log_run: Floats
    spread: Floats
    slack: Floats  # how far limits overestimate


def _habits(users: int, sizes: Ints, size_weight: Floats, median: float, rng: np.random.Generator) -> _Habits:
    per_user = rng.integers(2, 6, size=users)
    user = np.repeat(np.arange(users), per_user)
    n = len(user)
    activity = rng.permutation(1.0 / np.arange(1, users + 1) ** 0.8)
    weight = activity[user] * rng.gamma(1.0, 1.0, size=n)
    return _Habits(
        user=user,
        weight=weight / weight.sum(),
        size=rng.choice(sizes, size=n, p=size_weight / size_weight.sum()),
        log_run=math.log(median) + rng.normal(0.0, 0.6, size=users)[user] + 1.0 * rng.standard_normal(n),
        spread=0.2 + 0.6 * rng.random(n),
        slack=np.exp(rng.normal(0.6, 0.8, size=n)),
    )


def _drawn(
    habits: _Habits, jobs: int, days: float, batch: float, work: float, longest: float, rng: np.random.Generator
) -> tuple[Ints, Ints, Ints, Ints]:
    """Submissions in batches: times, kinds, run times that add up to `work` (size × seconds), and limits."""
    sizes = rng.geometric(1.0 / batch, size=max(2, math.ceil(3 * jobs / batch)))
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), jobs)) + 1]
    kind = np.repeat(rng.choice(len(habits.weight), p=habits.weight, size=len(sizes)), sizes)[:jobs]
    starts = rng.permutation(rate_of("work").times(len(sizes), days * DAY, rng))
    ends = np.cumsum(sizes)
    gaps = np.cumsum(rng.exponential(5.0, size=int(sizes.sum())))
    within = gaps - np.repeat(np.concatenate(([0.0], gaps[ends[:-1] - 1])), sizes)
    times = np.minimum(np.repeat(starts, sizes) + within, days * DAY - 1)[:jobs]
    order = np.argsort(times, kind="stable")
    submit, kind = times[order].astype(np.int64), kind[order]
    run = np.exp(habits.log_run[kind] + habits.spread[kind] * rng.standard_normal(jobs))
    run = np.where(rng.random(jobs) < 0.15, run * rng.random(jobs) ** 3, run)  # bugs end some early
    scale = 1.0
    for _ in range(30):
        typical = scale * np.exp(habits.log_run + habits.spread)
        limits = np.minimum(typed_limits(typical.astype(np.int64) + 1, typical * habits.slack), int(longest))[kind]
        seconds = np.clip(np.rint(run * scale), 1, limits).astype(np.int64)
        done = float(np.sum(seconds * habits.size[kind]))
        if abs(done / work - 1.0) < 1e-3:
            break
        scale *= work / done
    return submit - submit[0], kind, seconds, limits


def _trace(name: str, users: Sequence[str], **columns: object) -> Trace:
    accounts = [f"g{int(u.lstrip('u') or 0) % 8 + 1:02d}" for u in users]
    return make_trace(name, columns.pop("submit"), user=list(users), account=accounts, **columns)  # type: ignore[arg-type]


def _whole_nodes(name: str, habits: _Habits, drawn: tuple[Ints, Ints, Ints, Ints], cores: int) -> Trace:
    """Jobs as they were drawn, on as many nodes as their size, with `cores` of each."""
    submit, kind, run, limit = drawn
    wide = habits.size[kind]
    return _trace(
        name,
        [f"u{u + 1:03d}" for u in habits.user[kind].tolist()],
        submit=submit,
        run_time=run,
        time_limit=limit,
        num_nodes=wide,
        cpus=wide * float(cores),
        partition=["batch"] * len(kind),
        job_name=[f"k{k}" for k in kind.tolist()],
    )


def _capability(jobs: int, seed: int) -> tuple[Trace, Cluster]:
    nodes, cores = 4096, 64
    rng = np.random.default_rng([seed, 101])
    sizes = np.array([128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096])
    habits = _habits(40, sizes, np.power(0.72, np.arange(len(sizes), dtype=np.float64)), 2.5 * HOUR, rng)
    load = 0.8  # what wide jobs leave idle is lost: 0.9 is more than such a machine can do
    days = jobs * 900.0 * 3.0 * HOUR / (load * nodes * DAY)  # a job of 900 nodes and three hours, on average
    work = load * nodes * days * DAY
    trace = _whole_nodes("capability", habits, _drawn(habits, jobs, days, 2.0, work, DAY, rng), cores)
    return trace, Cluster("capability", (NodeClass(nodes, cpus=cores, partition="batch"),))


def _leadership(jobs: int, seed: int) -> tuple[Trace, Cluster]:
    classes = (NodeClass(18_688, cpus=16, partition="batch"), NodeClass(8_176, cpus=24, partition="batch"))
    return _wide("leadership", classes, jobs, 0.98, np.random.default_rng([seed, 103]))


def _exascale(jobs: int, seed: int) -> tuple[Trace, Cluster]:
    classes = tuple(NodeClass(12_500, cpus=64 + 8 * k, partition="batch") for k in range(8))
    return _wide("exascale", classes, jobs, 0.94, np.random.default_rng([seed, 104]))


def _wide(
    name: str, classes: tuple[NodeClass, ...], jobs: int, load: float, rng: np.random.Generator
) -> tuple[Trace, Cluster]:
    """Jobs that leave no room for another on their nodes, as many of each magnitude from one node to half of them."""
    nodes, cores = sum(c.count for c in classes), min(c.cpus or 1 for c in classes)
    sizes = np.unique(np.rint(np.geomspace(1, nodes / 2, 60)).astype(np.int64))
    habits = _habits(200, sizes, np.ones(len(sizes)), 1.5 * HOUR, rng)
    mean = float(np.sum(habits.size * habits.weight))
    days = jobs * mean * 2.0 * HOUR / (load * nodes * DAY)
    trace = _whole_nodes(name, habits, _drawn(habits, jobs, days, 2.0, load * nodes * days * DAY, DAY, rng), cores)
    return trace, Cluster(name, classes)


def _throughput(jobs: int, seed: int) -> tuple[Trace, Cluster]:
    nodes, cores = 16, 32
    rng = np.random.default_rng([seed, 102])
    habits = _habits(50, np.array([1]), np.ones(1), 600.0, rng)
    days = jobs * 1200.0 / (0.95 * nodes * cores * DAY)
    submit, kind, run, limit = _drawn(habits, jobs, days, 60.0, 0.95 * nodes * cores * days * DAY, DAY, rng)
    trace = _trace(
        "throughput",
        [f"u{u + 1:03d}" for u in habits.user[kind].tolist()],
        submit=submit,
        run_time=run,
        time_limit=limit,
        cpus=np.ones(jobs),
        partition=["batch"] * jobs,
        job_name=[f"k{k}" for k in kind.tolist()],
    )
    return trace, Cluster("throughput", (NodeClass(nodes, cpus=cores, partition="batch"),))


def _interactive(jobs: int, seed: int) -> tuple[Trace, Cluster]:
    front = NodeClass(4, "V100", 4, 32, 256.0, "interactive")
    back = NodeClass(24, "V100", 4, 32, 256.0, "batch")
    short = WorkloadSpec(
        jobs=jobs // 2, days=jobs / 2 / 450, load=0.75, users=40, max_gpus=4, median_run=900.0, batch=1.5, seed=seed
    )
    long = WorkloadSpec(
        jobs=jobs - jobs // 2, days=jobs / 2 / 450, load=1.0, users=40, max_gpus=32, median_run=3600.0, seed=seed + 1
    )
    by_day, batch = generate(short, Cluster("i", (front,))), generate(long, Cluster("b", (back,)))
    parts = [(by_day, "interactive", ""), (batch, "batch", "")]
    return _merged("interactive", parts), Cluster("interactive", (front, back))


def _one_user(jobs: int, seed: int) -> tuple[Trace, Cluster]:
    cluster = Cluster("one-user", (NodeClass(24, "A100", 8, 128, 1024.0, "gpu"),))
    days, many = jobs / 500, round(0.8 * jobs)
    one = WorkloadSpec(jobs=many, days=days, load=0.95 * 0.98, users=1, max_gpus=32, batch=12.0, seed=seed)
    rest = WorkloadSpec(jobs=jobs - many, days=days, load=0.05 * 0.98, users=40, max_gpus=16, batch=1.5, seed=seed + 1)
    parts = [(generate(one, cluster), "gpu", "u000"), (generate(rest, cluster), "gpu", "")]
    return _merged("one-user", parts), cluster


def _blocks(jobs: int, seed: int) -> tuple[Trace, Cluster]:
    """Two partitions of equal load: blocks of 18 nodes of 4 GPUs, and leaf switches of 32 nodes of 8."""
    nvlink = NodeClass(144, "H100", 4, 72, 480.0, "nvlink", block=18, span_speed=0.8)
    leaves = NodeClass(128, "A100", 8, 128, 1024.0, "leaves", block=32, span_speed=0.8)
    parts = []
    for i, c in enumerate((nvlink, leaves)):
        spec = WorkloadSpec(
            jobs=jobs // 2 + i * (jobs % 2),
            days=jobs / 900,
            load=0.9,
            users=60,
            max_gpus=256,
            size_decay=0.85,
            cpu_only=0.0,
            seed=2 * seed + i,
        )
        parts.append((generate(spec, Cluster(c.partition, (c,))), c.partition, ""))
    return _merged("blocks", parts), Cluster("blocks", (nvlink, leaves))


def _merged(name: str, parts: Sequence[tuple[Trace, str, str]]) -> Trace:
    """Several traces as one: each with its partition, and a user's name if all of it is one user's, else ""."""
    users, partitions = [], []
    for trace, partition, only in parts:
        users += [only] * len(trace) if only else list(trace.user.strings())
        partitions += [partition] * len(trace)
    columns = ("run_time", "time_limit", "num_gpus", "num_nodes", "cpus", "mem_gb")
    joined = {c: np.concatenate([getattr(p[0], c) for p in parts]) for c in columns}
    labels = {c: [s for p in parts for s in getattr(p[0], c).strings()] for c in ("gpu_type", "status", "job_name")}
    submit = np.concatenate([p[0].submit_time for p in parts])
    return _trace(name, users, submit=submit, partition=partitions, **joined, **labels)


MACHINES = {
    "capability": Machine("4,096 nodes, no GPUs; whole-node jobs from 128 nodes to all.", 3000, _capability),
    "leadership": Machine("26,864 nodes of two classes; jobs from one node to half of all.", 13_649, _leadership),
    "exascale": Machine("100,000 nodes of eight classes; jobs from one node to half of all.", 20_000, _exascale),
    "throughput": Machine("512 cores; very many jobs of one core.", 60_000, _throughput),
    "interactive": Machine("A small partition of short jobs by day beside a batch one.", 8000, _interactive),
    "blocks": Machine("Partitions of 18-node NVLink blocks and of 32-node leaf switches; gangs.", 6000, _blocks),
    "one-user": Machine("192 GPUs; one user has 95% of the load.", 6000, _one_user),
}
