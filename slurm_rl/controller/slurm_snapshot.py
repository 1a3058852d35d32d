"""From what Slurm says to a Snapshot that `decide` takes, and back from its indices to Slurm's jobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from slurm_rl.controller.estimates import Finished, KnownRunTimes, RunTimes, predict_all
from slurm_rl.controller.live_gres import Wanted, fill_devices, gres_of, not_understood
from slurm_rl.controller.ours import by_hand
from slurm_rl.controller.scores import multifactor_all
from slurm_rl.domain.cluster import Cluster, NodeWatts, default_watts, node_classes
from slurm_rl.domain.constraint import parse_constraint
from slurm_rl.domain.optout import LeaveAlone
from slurm_rl.domain.sizes import job_size, weights_by_partition
from slurm_rl.domain.snapshot import Snapshot
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import NOW, OTHER, RELEASED, Array
from slurm_rl.kernel.build import Requests, Speeds, Workload, build
from slurm_rl.kernel.linking import link_slot
from slurm_rl.kernel.tables import World
from slurm_rl.kernel.world import new_world
from slurm_rl.place.speed import SpeedMatrix
from slurm_rl.policy.catalogue import BY_USER
from slurm_rl.policy.registry import PolicySpec, settings_for
from slurm_rl.slurm.model import HistoryJob, PriorityFactors, PriorityWeights, SlurmJob, SlurmNode, SlurmState
from slurm_rl.slurm.reasons import keeps_back
from slurm_rl.slurm.text import setting

_FOREVER = 365 * 86_400  # what an unlimited job counts as
_ROUNDING = 5  # points by which the sum of sprio's rounded terms may be off
_NONE = LeaveAlone()


@dataclass(frozen=True, slots=True)
class LiveQueue:
    """A snapshot, and for each of its jobs (by index) Slurm's own record and figures."""

    state: SlurmState
    snapshot: Snapshot
    jobs: tuple[SlurmJob, ...]
    base: Array  # Slurm's priority without our factor
    site: Array  # our factor as Slurm has it
    queue: Array  # jobs of one number compete: same pool, same priority tier
    estimate: Array  # seconds, from history
    spread: Array  # standard deviation of its logarithm
    left_alone: Mapping[int, str]  # job id -> why a pending job is not ordered
    never: frozenset[int]  # … of these, jobs that must not have a factor of ours, either
    weights: Mapping[str, float]
    floor: int  # no job is pushed below this priority
    gpu_types: tuple[str, ...] = ()  # by the number that nodes of the snapshot carry
    workload: Workload | None = None  # that the snapshot's tables were made from

    @property
    def now(self) -> int:
        return self.snapshot.now


class GpuTypes(Protocol):
    """Figures of GPU types."""

    @property
    def speeds(self) -> SpeedMatrix: ...
    @property
    def watts(self) -> NodeWatts: ...


def observe(
    state: SlurmState,
    run_times: RunTimes | KnownRunTimes,
    policy: PolicySpec,
    gpus: GpuTypes | None = None,
    leave_alone: LeaveAlone = _NONE,
    besides: Sequence[SlurmJob] = (),
) -> LiveQueue:
    """Everything `decide` needs, from one answer of Slurm.

    `besides` are jobs that neither wait nor run (those of the past, one that is asked about): they get a row each in
    the tables, and take part in nothing.
    """
    now = int(state.taken)
    speeds = gpus.speeds if gpus is not None else SpeedMatrix({})
    watts = gpus.watts if gpus is not None else default_watts
    waiting = [j for j in state.jobs if j.pending]
    wanted = Wanted(waiting)
    cluster, members = _cluster(state.nodes, state.cluster, speeds, watts, wanted)
    known = set(cluster.partitions)
    features = {f for n in state.nodes for f in n.features}
    never = {j.job_id: why for j in waiting if (why := never_ours(j, leave_alone))}
    not_now = {
        j.job_id: why for j in waiting if (why := why_left_alone(j, state.taken, known) or not_understood(j, features))
    }
    left_alone = not_now | never
    there = [
        j
        for j in state.jobs
        if (j.pending and j.job_id not in left_alone) or (j.running and known & set(j.partitions) and j.node_list)
    ]
    jobs = sorted(
        [*there, *(j for j in besides if known & set(j.partitions))],
        key=lambda j: (j.submit_time or 0, j.job_id),
    )
    requests = _requests(jobs, state, now, wanted)
    workload = build(requests, cluster, learn=False, speeds=_own_speeds(jobs, speeds, cluster))
    pending = np.flatnonzero(np.array([j.pending for j in jobs], dtype=bool))
    volume = workload.requests["volume"][workload.jobs["request"]] if jobs else np.zeros(0)
    for i, j in enumerate(jobs):
        limit = int(requests.limit[i])
        groups = run_times.groups_of(j.user, j.name, float(volume[i]), j.gpu_count > 0, limit, j.keys)
        workload.jobs["group"][i] = groups
    weights = site_weights(state.weights)
    base, site = _priorities(jobs)
    world = _world(workload, requests, jobs, members, state, policy, weights, now, run_times.table())
    _match_priorities(world, base, pending, now)
    predict_all(world.record, np.arange(len(jobs)))
    estimate, spread = world["live"]["expected"].copy(), world["live"]["spread"].astype(np.float64)
    if policy.source != BY_USER:
        world["live"]["expected"] = world["jobs"]["limit"]
        world["live"]["inverse"] = 1.0 / world["jobs"]["limit"]
        world["live"]["spread"] = 0.0
    tiers = {p.name: p.priority_tier for p in state.partitions}
    tier = np.array([max(tiers.get(p, 1) for p in j.partitions) for j in jobs], dtype=np.int64)
    if len(set(tier[pending].tolist())) > 1:
        world["tiers"] = tier
    pool = workload.requests["pool"][workload.jobs["request"]] if jobs else np.zeros(0, dtype=np.int64)
    kept_back = frozenset(i for i in pending.tolist() if keeps_back(jobs[i].reason))
    return LiveQueue(
        state=state,
        snapshot=Snapshot(now, world, pending, _pool_names(world, workload, members), kept_back),
        jobs=tuple(jobs),
        base=base,
        site=site,
        queue=pool * 100_000 + tier,
        estimate=estimate,
        spread=spread,
        left_alone=left_alone,
        never=frozenset(never),
        weights=weights,
        floor=backfill_floor(state),
        gpu_types=workload.type_names,
        workload=workload,
    )


def _own_speeds(jobs: Sequence[SlurmJob], speeds: SpeedMatrix, cluster: Cluster) -> Speeds | None:
    """Speeds of types that share a node, and of jobs whose user and name are known to run otherwise than others."""
    mixed = any(c.gres for c in cluster.classes)
    if not speeds.classes and not mixed:
        return None
    types = {kind: speeds.speed(kind) for kind in cluster.gpu_types} if mixed else {}
    classes = {who: i for i, who in enumerate(speeds.classes)}
    of_job = np.array([classes.get((j.user, j.name), -1) for j in jobs], dtype=np.int64)
    return Speeds(types, tuple(speeds.classes.values()), of_job)


def never_ours(job: SlurmJob, leave_alone: LeaveAlone) -> str:
    """Why a job must not have a factor of ours, whatever state it is in; "" if it may."""
    if job.cron:
        return "a cron job: Slurm refuses its updates"
    if job.reservation:
        return "in a reservation"
    if job.het_job_id:
        return "part of a heterogeneous job"
    return leave_alone.why(",".join(job.partitions), job.qos, job.account, job.user, job.comment)


def why_left_alone(job: SlurmJob, now: float, partitions: set[str]) -> str:
    """Why a pending job is not ours to order now; "" if it is."""
    if job.held:
        return "held"
    if by_hand(job):
        return "its priority was set by hand (scontrol update Priority=…)"
    if not job.eligible(now):
        return "not eligible yet"
    if job.factors is None:
        return "Slurm shows no priority factors of it"
    if job.submit_time is None:
        return "Slurm shows no submit time of it"
    if not partitions & set(job.partitions):
        return "its partition has no nodes"
    return ""


def backfill_floor(state: SlurmState) -> int:
    """The least priority we leave a job with: 1 (0 means held), or what backfill asks of jobs it reserves for."""
    options = setting(state.config, "SchedulerParameters").split(",")
    values = [o.partition("=")[2] for o in options if o.startswith("bf_min_prio_reserve=")]
    return max([1, *(int(v) for v in values if v.isdecimal())])


def own_priority(factors: PriorityFactors) -> int:
    """Slurm's priority of a job as it would be without our factor, to the last point.

    Slurm adds fractions and cuts off their sum, while sprio rounds each term: their sum may be some points off.
    """
    f = factors
    terms = f.age + f.assoc + f.fairshare + f.job_size + f.partition + f.qos + f.tres - f.nice
    exact = f.priority - f.site
    return exact if abs(exact - terms) <= _ROUNDING else terms  # no priority is below 1, whatever its terms


def finished_jobs(rows: Iterable[HistoryJob], nodes: Iterable[SlurmNode]) -> list[Finished]:
    """What the estimator learns from accounting records, in the order in which the jobs ended."""
    weight = weights_by_partition(nodes)
    done = [
        r for r in rows if r.end_time and r.start_time and r.state in ("COMPLETED", "TIMEOUT", "FAILED", "DEADLINE")
    ]
    found = []
    for r in sorted(done, key=lambda r: (r.end_time or 0, r.job_id)):
        gpus = sum(r.gpus_requested.values()) or sum(r.gpus_allocated.values())
        volume = float(job_size(gpus, r.cpus, weight.get(r.partition, 1.0)))
        limit = r.time_limit or _FOREVER
        found.append(Finished(r.user, r.name, volume, gpus > 0, limit, float(r.elapsed), r.keys))
    return found


def _cluster(
    nodes: Iterable[SlurmNode], name: str, speeds: SpeedMatrix, watts: NodeWatts, wanted: Wanted
) -> tuple[Cluster, list[SlurmNode]]:
    """The nodes as classes of equals, and the nodes in the order in which the classes number them."""
    found = node_classes(nodes, speed=speeds.speed, watts=watts, gres=gres_of, features=wanted.of_node)
    members = list(itertools.chain.from_iterable(same for _, same in found))
    return Cluster(name, tuple(c for c, _ in found)), members


def _requests(jobs: list[SlurmJob], state: SlurmState, now: int, wanted: Wanted) -> Requests:
    types = {t for node in state.nodes for t in node.gpus if t}
    most = {p.name: p.max_time for p in state.partitions}
    tables: list[dict[str, int]] = [{} for _ in range(8)]
    users, accounts, names, qos, partitions, kinds, gres, constraints = tables
    ahead = {p.name: (-p.priority_tier, -p.priority_job_factor) for p in state.partitions}

    def code(table: dict[str, int], value: str) -> int:
        return table.setdefault(value, len(table)) if value else -1

    def column(values: Iterable[float], dtype: type = np.int64) -> Array:
        return np.fromiter(values, dtype=dtype, count=len(jobs))

    gpu_type = column((code(kinds, _gpu_type(j, types)) for j in jobs), np.int32)
    # Of several partitions, Slurm tries the one of the highest tier first.
    several = [sorted(j.partitions, key=lambda p: ahead.get(p, (0, 0))) for j in jobs]
    partition = column((code(partitions, ",".join(p)) for p in several), np.int32)
    asked = column((code(gres, j.gres) for j in jobs), np.int32)
    constraint = column((code(constraints, wanted.constraint(j)) if j.pending else -1 for j in jobs), np.int32)
    prefer = column((code(constraints, _wish(j)) for j in jobs), np.int32)
    exclusive = np.array([j.exclusive for j in jobs], dtype=bool)
    return Requests(
        submit=column(min(j.submit_time or now, now) for j in jobs),
        limit=column(j.time_limit or most.get(p[0]) or _FOREVER for j, p in zip(jobs, several, strict=True)),
        gpus=column((j.gpu_count for j in jobs), np.float64),
        gpu_type=gpu_type,
        gpu_type_names=tuple(kinds),
        nodes=column((max(j.nodes, len(set(j.required_nodes)) if j.pending else 0, 1) for j in jobs), np.int32),
        cpus=column((j.cpus for j in jobs), np.float64),
        mem_gb=column((j.mem_mb / 1024 for j in jobs), np.float64),
        partition=partition,
        partition_names=tuple(partitions),
        user=column((code(users, j.user or "?") for j in jobs), np.int32),
        users=len(users) or 1,
        account=column((code(accounts, j.account or "?") for j in jobs), np.int32),
        accounts=len(accounts) or 1,
        name=column((code(names, j.name) for j in jobs), np.int32),
        qos=column((code(qos, j.qos) for j in jobs), np.int32),
        qos_count=len(qos),
        priority=column((-j.nice for j in jobs), np.float64),
        deadline=np.full(len(jobs), -1, dtype=np.int64),
        gres=asked if gres else None,
        gres_names=tuple(gres),
        constraint=constraint if (constraint >= 0).any() else None,
        prefer=prefer if (prefer >= 0).any() else None,
        constraint_names=tuple(constraints),
        exclusive=exclusive if exclusive.any() else None,
    )


def _wish(job: SlurmJob) -> str:
    """What a waiting job would rather have; "" if that is nothing, or is not understood."""
    try:
        return job.prefer if job.pending and parse_constraint(job.prefer) else ""
    except InputError:
        return ""


def _gpu_type(job: SlurmJob, types: set[str]) -> str:
    """The GPU types that will do, "A|B"; a constraint counts where it names nothing but types."""
    named = [t for t, count in job.gpus.items() if t and count]
    if not named and job.gpu_count and job.features:
        words = job.features.strip("()").split("|")
        named = words if all(w in types for w in words) else []
    return "|".join(named)


def site_weights(weights: PriorityWeights) -> dict[str, float]:
    """The site's weights under the names that `decide` takes; the association's counts with the TRES."""
    return {
        "age": float(weights.age),
        "fairshare": float(weights.fairshare),
        "job_size": float(weights.job_size),
        "partition": float(weights.partition),
        "qos": float(weights.qos),
        "tres": float(weights.assoc) + sum(weights.tres.values()),
    }


def _priorities(jobs: list[SlurmJob]) -> tuple[Array, Array]:
    base = np.array([own_priority(j.factors) if j.factors else 0 for j in jobs], dtype=np.int64)
    return base, np.array([j.factors.site if j.factors else 0 for j in jobs], dtype=np.int64)


def _match_priorities(world: World, base: Array, pending: Array, now: int) -> None:
    """Makes the model's multifactor priority equal Slurm's own, to the last point, through the nice value.

    Slurm's factors know things that the model does not (the hour a job became eligible, associations, TRES); what it
    says itself is the truth here.
    """
    model = multifactor_all(world.record, float(now), pending)
    world["jobs"]["nice"][pending] = np.rint(model - base[pending]).astype(np.int32)


def _world(
    wl: Workload,
    requests: Requests,
    jobs: list[SlurmJob],
    members: list[SlurmNode],
    state: SlurmState,
    policy: PolicySpec,
    weights: Mapping[str, float],
    now: int,
    groups: Array,
) -> World:
    best = max((p.priority_job_factor for p in state.partitions), default=1) or 1
    factor = {p.name: p.priority_job_factor / best for p in state.partitions}
    world = new_world(
        wl,
        settings_for(policy, weights=weights),
        now=now,
        groups=groups.copy(),
        partition_factor=np.array([factor.get(p, 0.0) for p in wl.partition_names] or [0.0]),
    )
    world["calculated"] = now  # fairshare is Slurm's own: not to be calculated again
    world["live"]["version"] = 0  # estimates are made below, once
    users = world["users"]
    users["fairshare"] = 0.0
    for i, j in enumerate(jobs):
        share = j.factors.fairshare_normalized if j.factors else state.fairshare.get((j.account, j.user), 0.0)
        users["fairshare"][requests.user[i]] = max(users["fairshare"][requests.user[i]], share)
    link_slot(world, policy.row, "score")
    world["pools"]["change"] = RELEASED  # every pool gets a scheduling pass
    _fill_nodes(world, wl, members)
    _hold_running(world, wl, jobs, members, now)
    if world["used"].shape[2] > 0:
        fill_devices(world, wl, members, jobs)
    _sum_pools(world)
    return world


def _pool_names(world: World, wl: Workload, members: list[SlurmNode]) -> tuple[str, ...]:
    """The partitions of each pool: its number changes when nodes do, these seldom."""
    found: list[set[str]] = [set() for _ in world["pools"]]
    for pool, number in zip(world["nodes"]["pool"].tolist(), wl.node_number.tolist(), strict=True):
        found[pool].update(members[number].partitions)
    return tuple(",".join(sorted(names)) for names in found)


def _fill_nodes(world: World, wl: Workload, members: list[SlurmNode]) -> None:
    """What Slurm says is free now; nothing, on a node that takes no jobs."""
    free = world["free"]
    for n, number in enumerate(wl.node_number.tolist()):
        node = members[number]
        if not node.usable:
            world["nodes"]["down"][n] = 1
            free[:, n, :] = 0
            continue
        gpus = sum(node.gpus.values()) - sum(node.gpus_allocated.values())
        unused = (node.cpus - node.cpus_allocated, node.mem_mb - node.mem_mb_allocated, gpus)
        free[:, n, :OTHER] = np.maximum(unused, 0)


def _sum_pools(world: World) -> None:
    free = world["free"]
    for pool in range(len(world["pools"])):
        mine = world["nodes"]["pool"] == pool
        world["total"][:, pool, :] = free[NOW][mine, :OTHER].sum(axis=0)


def _hold_running(world: World, wl: Workload, jobs: list[SlurmJob], members: list[SlurmNode], now: int) -> None:
    """Enters running jobs: who holds which nodes, and until when at most."""
    index = {members[number].name: n for n, number in enumerate(wl.node_number.tolist())}
    entries, live, pools = world["entries"], world["live"], world["pools"]
    ends: list[list[tuple[int, int]]] = [[] for _ in range(len(pools))]
    spare = 1
    for i, job in enumerate(jobs):
        if not job.running:
            continue
        row = int(wl.jobs["request"][i])
        units, pool = int(wl.requests["units"][row]), int(wl.requests["pool"][row])
        held = [index[name] for name in job.node_list if name in index][:units]
        if not held or spare + len(held) >= len(entries):
            continue
        live["held"][i] = spare
        for k, node in enumerate(held):
            share = units // len(held) + (k < units % len(held))
            entries[spare] = (0, node, share, spare + 1 if k + 1 < len(held) else 0, 0)
            spare += 1
        live["start"][i] = job.start_time or now
        end = job.end_time or (job.start_time or now) + int(wl.jobs["limit"][i])
        live["expected_end"][i] = max(end, now + 1)
        ends[pool].append((int(live["expected_end"][i]), i))
        world["users"]["rate"][wl.jobs["user"][i]] += wl.requests["volume"][row]
        world["accounts"]["rate"][wl.jobs["account"][i]] += wl.requests["volume"][row]
    entries["next"][0] = spare if spare < len(entries) else 0
    for pool, running in enumerate(ends):
        first = int(pools["first_job"][pool])
        world["running"][first : first + len(running)] = [i for _, i in sorted(running)]
        pools["running"][pool] = len(running)
