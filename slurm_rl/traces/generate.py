"""Makes workloads to order: users with habits who submit to a given cluster at a given load."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import InputError
from slurm_rl.traces.arrivals import DAY, rate_of
from slurm_rl.traces.limits import typed_limits
from slurm_rl.traces.trace import Floats, Ints, Labels, Trace, make_trace

_WORDS = "train finetune eval sweep pretrain infer distill ablate probe align".split()
_MOST_OF_ALL = 0.05  # of all GPU time goes to one kind of job
_MOST_OF_TYPE = 0.5  # of a GPU type's power goes to jobs that take no other type
_LONGEST = 5 * DAY
_MOST_SCALE = 1e6  # every run is cut at its limit long before
_MODELS = "resnet bert gpt vit unet wav2vec llama dlrm gnn diffusion yolo t5 rnn whisper".split()


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What to make; `load` is the work offered per second over what the cluster's GPUs (or CPUs) can do.

    A run time belongs to the GPU type that the job names, or else to a node of speed 1.
    """

    jobs: int = 12_000
    days: float = 14.0
    load: float = 0.95
    shape: str = "work"
    burst: float = 3.0
    users: int = 60
    cpu_only: float = 0.125  # share of jobs without GPUs, where the cluster has GPUs
    typed: float = 0.25  # share of submitters' job kinds that name one GPU type, or two
    max_gpus: int = 64
    size_decay: float = 0.62  # share of each doubling of size relative to the size below
    median_run: float = 1800.0
    run_spread: float = 1.5  # of log run time between a user's job kinds
    batch: float = 4.0  # jobs submitted together, on average
    deadlines: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("jobs", "days", "load", "users", "max_gpus", "median_run", "batch"):
            if not 0 < getattr(self, name) < 1e9:
                raise InputError(f"must be > 0, got {getattr(self, name)!r}", field=name)
        for name in ("cpu_only", "typed", "deadlines"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"must be between 0 and 1, got {getattr(self, name)!r}", field=name)


@dataclass(slots=True)
class _Kinds:
    """Kinds of jobs, one row each: what a user submits again and again under one name."""

    user: Ints
    weight: Floats
    gpus: Ints
    nodes: Ints
    cpus: Ints
    mem: Floats
    log_run: Floats
    spread: Floats
    slack: Floats  # how far the user overestimates
    priority: Floats
    slowest: Floats  # speed of the slowest GPU the kind may get
    speed: Floats  # of the one GPU type it names, on which its run time is measured; else 1
    types: list[str]
    names: list[str]


def generate(workload: WorkloadSpec, cluster: Cluster) -> Trace:
    """A trace for this cluster, the same for the same seed; run times are scaled so that the load is met exactly."""
    generator = np.random.default_rng(workload.seed)
    span = workload.days * DAY
    kinds = _kinds(workload, cluster, generator)
    submit, kind = _submissions(workload, kinds, span, generator)
    n = len(submit)
    run = np.exp(kinds.log_run[kind] + kinds.spread[kind] * generator.standard_normal(n))
    # Bugs and bad parameters end some jobs early, whatever they were meant to take.
    fate = generator.random(n)
    failed, cancelled = fate < 0.12, (fate >= 0.12) & (fate < 0.22)
    run = np.where(failed, run * generator.random(n) ** 3, np.where(cancelled, run * generator.random(n), run))
    gpus = kinds.gpus[kind].astype(np.float64)
    run, limit = _to_load(run, kinds, kind, gpus, workload, cluster, span)
    status = np.where(
        failed, "FAILED", np.where(cancelled, "CANCELLED", np.where(run >= limit, "TIMEOUT", "COMPLETED"))
    )
    has_deadline = generator.random(n) < workload.deadlines
    patience = run * (1.5 + 4.5 * generator.random(n)) + 600 + 3 * 3600 * generator.random(n)
    users = [f"u{i + 1:03d}" for i in range(workload.users)]
    groups = max(1, round(workload.users / 6))
    group_of = generator.integers(groups, size=workload.users)
    return make_trace(
        "generated",
        submit,
        run_time=run,
        time_limit=limit,
        num_gpus=gpus,
        gpu_type=[kinds.types[k] for k in kind.tolist()],
        num_nodes=kinds.nodes[kind],
        cpus=kinds.cpus[kind],
        mem_gb=kinds.mem[kind],
        user=[users[u] for u in kinds.user[kind].tolist()],
        account=[f"g{group_of[u] + 1:02d}" for u in kinds.user[kind].tolist()],
        partition=Labels(np.zeros(n, dtype=np.int32), (cluster.partitions[0],)),
        status=status.tolist(),
        priority=kinds.priority[kind],
        deadline=np.where(has_deadline, submit + patience.astype(np.int64), -1),
        job_name=[kinds.names[k] for k in kind.tolist()],
        meta={"seed": workload.seed, "max_nodes": cluster.nodes, "max_procs": _processors(cluster)},
    )


def _processors(cluster: Cluster) -> int:
    return sum(c.count * (c.cpus or c.gpus) for c in cluster.classes)


def _kinds(w: WorkloadSpec, cluster: Cluster, generator: np.random.Generator) -> _Kinds:
    """Every user's job kinds; few users are busy, most are not."""
    partition = cluster.partitions[0]
    classes = [c for c in cluster.classes if partition in c.partitions]
    gpu_classes = [c for c in classes if c.gpus]
    speeds = {
        t: min(c.speed for c in gpu_classes if c.gpu_type == t) for t in dict.fromkeys(c.gpu_type for c in gpu_classes)
    }
    counts = {t: sum(c.count * c.gpus for c in gpu_classes if c.gpu_type == t) for t in speeds}
    widest = {t: max(c.gpus for c in gpu_classes if c.gpu_type == t) for t in speeds}
    activity = 1.0 / np.arange(1, w.users + 1) ** 0.8
    generator.shuffle(activity)
    per_user = generator.integers(2, 7, size=w.users)
    user = np.repeat(np.arange(w.users), per_user)
    n = len(user)
    weight = activity[user] * generator.gamma(1.0, 1.0, size=n)
    taste = generator.normal(0.0, 0.6, size=w.users)[user]
    log_run = math.log(w.median_run) + taste + w.run_spread * generator.standard_normal(n)
    gpus = np.zeros(n, dtype=np.int64)
    nodes = np.ones(n, dtype=np.int64)
    cpus = np.zeros(n, dtype=np.int64)
    mem = np.zeros(n)
    types = [""] * n
    slowest = np.ones(n)
    without = generator.random(n) < (w.cpu_only if gpu_classes else 1.0)
    for k in range(n):
        size_draw, type_draw, cpu_draw, mem_draw = generator.random(4)
        if without[k]:
            most = min((c.cpus for c in classes if c.cpus is not None), default=64)
            cpus[k] = min(2 ** int(6 * size_draw), most)
            mem[k] = cpus[k] * (2, 4, 8)[int(3 * mem_draw)]
            slowest[k] = min(c.speed for c in classes)
            continue
        gpus[k] = _size(size_draw, w, sum(counts.values()))
        types[k] = _type(type_draw, w, gpus[k], speeds, counts)
        allowed = [t for t in speeds if not types[k] or t in types[k].split("|")]
        wide = max(widest[t] for t in allowed)
        nodes[k] = -(-gpus[k] // wide)
        gpus[k] = nodes[k] * min(gpus[k], wide)
        per_node = gpus[k] // nodes[k]
        # Only classes with enough GPUs can take it, and its CPUs and memory fit the tightest of them.
        fit = [c for c in gpu_classes if c.gpu_type in allowed and c.gpus >= per_node]
        slowest[k] = min(c.speed for c in fit)
        cpu_share = min(((c.cpus or 8 * c.gpus) / c.gpus for c in fit), default=8.0)
        mem_share = min(((c.mem_gb or 64 * c.gpus) / c.gpus for c in fit), default=64.0)
        cpus[k] = gpus[k] * max(1, int(cpu_share * (0.25 + 0.75 * cpu_draw)))
        mem[k] = gpus[k] * max(1, int(mem_share * (0.25 + 0.75 * mem_draw) / 4)) * 4
    names = [
        f"{_WORDS[int(a * len(_WORDS))]}-{_MODELS[int(b * len(_MODELS))]}"
        for a, b in zip(generator.random(n), generator.random(n), strict=True)
    ]
    # Large gangs are submitted rarely and do not run for weeks, and no single kind of job fills the cluster.
    weight *= np.maximum(gpus, 1.0) ** -0.2
    weight /= weight.sum()
    spread = 0.3 + 0.7 * generator.random(n)
    log_run = np.minimum(log_run, math.log(max(3 * DAY, 4 * w.median_run)) - 0.5 * np.log(np.maximum(gpus, 1)))
    power = {t: speeds[t] * counts[t] for t in speeds}
    for _ in range(6):
        use = weight * gpus * np.exp(log_run + spread**2 / 2)
        log_run -= np.log(np.maximum(use / max(_MOST_OF_ALL * use.sum(), 1e-12), 1.0))
        for t, share in power.items():
            only = np.array([kind == t for kind in types])
            fair = _MOST_OF_TYPE * share / sum(power.values())
            log_run[only] -= math.log(max(float(use[only].sum()) / max(fair * float(use.sum()), 1e-12), 1.0))
    return _Kinds(
        user=user,
        weight=weight,
        gpus=gpus,
        nodes=nodes,
        cpus=cpus,
        mem=mem,
        log_run=log_run,
        spread=spread,
        slack=np.exp(generator.normal(0.5, 0.9, size=n)),
        priority=generator.choice([1.0, 2.0, 3.0], p=[0.25, 0.6, 0.15], size=w.users)[user],
        slowest=slowest,
        speed=np.array([speeds.get(t, 1.0) for t in types]),
        types=types,
        names=names,
    )


def _size(draw: float, w: WorkloadSpec, available: int) -> int:
    """A power of two, each doubling rarer than the size before, none beyond a quarter of a large cluster."""
    most = min(w.max_gpus, available if available <= 16 else available // 4)
    sizes = 2 ** np.arange(int(math.log2(most)) + 1)
    share = w.size_decay ** np.arange(len(sizes))
    return int(sizes[np.searchsorted(np.cumsum(share / share.sum()), draw)])


def _type(draw: float, w: WorkloadSpec, gpus: int, speeds: dict[str, float], counts: dict[str, int]) -> str:
    """Most kinds take any GPU; of the rest half want the fastest, others either of the two fastest, or the slowest."""
    if draw >= w.typed or len(speeds) < 2:
        return ""
    ranked = [t for t in sorted(speeds, key=lambda t: -speeds[t]) if counts[t] >= 2 * gpus]
    if not ranked:
        return ""
    share = draw / w.typed
    return ranked[0] if share < 0.5 else "|".join(ranked[:2]) if share < 0.8 else ranked[-1]


def _submissions(
    w: WorkloadSpec, kinds: _Kinds, span: float, generator: np.random.Generator
) -> tuple[Ints, npt.NDArray[np.int64]]:
    """Sessions follow the rate; in a session a user submits one kind several times in a row."""
    sessions = max(1, math.ceil(2 * w.jobs / w.batch) + 8)
    starts = generator.permutation(rate_of(w.shape, burst=w.burst).times(sessions, span, generator))
    kind = generator.choice(len(kinds.weight), p=kinds.weight, size=sessions)
    sizes = generator.geometric(1.0 / np.where(kinds.gpus[kind] > 8, 1 + (w.batch - 1) / 4, w.batch))
    # The rate of sessions is what matters, so those too many are left out at random and the last one is cut.
    last = int(np.searchsorted(np.cumsum(sizes), w.jobs))
    sizes, kind = sizes[: last + 1], kind[: last + 1]
    gaps = generator.exponential(20.0, size=int(sizes.sum()))
    ends = np.cumsum(sizes)
    within = np.cumsum(gaps) - np.repeat(np.concatenate(([0.0], np.cumsum(gaps)[ends[:-1] - 1])), sizes)
    times = np.minimum(np.repeat(starts[: len(sizes)], sizes) + within, span - 1)[: w.jobs]
    kind = np.repeat(kind, sizes)[: w.jobs]
    order = np.argsort(times, kind="stable")
    submit = times[order].astype(np.int64)
    return submit - submit[0], kind[order]


def _to_load(
    run: Floats, kinds: _Kinds, kind: Ints, gpus: Floats, w: WorkloadSpec, cluster: Cluster, span: float
) -> tuple[Ints, Ints]:
    """Whole run times scaled to the load, and limits: habits of a kind, from its usual run time on the slowest node.

    A run is cut at its limit, which costs load, so the scale is found by a few steps of fixed-point iteration.
    """
    capacity = sum(c.count * (c.gpus or 0) * c.speed for c in cluster.classes)
    size = gpus * kinds.speed[kind]  # a second on a fast GPU is more work
    if not capacity:
        capacity = sum(c.count * (c.cpus or 1) * c.speed for c in cluster.classes)
        size = kinds.cpus[kind].astype(np.float64)
    wanted, scale = w.load * capacity * span, 1.0
    for _ in range(30):
        typical = scale * np.exp(kinds.log_run + kinds.spread) / kinds.speed  # four of five runs are shorter
        wished = typical * kinds.slack * kinds.speed / kinds.slowest
        limits = typed_limits(typical.astype(np.int64) + 1, wished)[kind]
        longest = np.minimum(limits, _LONGEST)
        seconds = np.clip(np.floor(run * scale / kinds.speed[kind] + 0.5), 1, longest).astype(np.int64)
        done = float(np.sum(seconds * size))
        if abs(done / wanted - 1.0) < 1e-3:
            break
        # A load that limits keep out of reach must not drive the scale beyond all numbers.
        scale = min(scale * wanted / done, _MOST_SCALE)
    return seconds, limits
