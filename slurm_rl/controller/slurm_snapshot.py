"""From Slurm's answers to the Snapshot for `decide`, and back from its indices to Slurm's jobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from slurm_rl.controller.estimates import Described, Finished, KnownRunTimes, RunTimes, predict_all
from slurm_rl.controller.job_rows import FOREVER, JobRows, Surroundings, why_left_alone
from slurm_rl.controller.live_gres import NamedFeatures, fill_devices, gres_of
from slurm_rl.controller.live_limits import quota_tables
from slurm_rl.controller.live_reservations import kept_tables, nodes_to_come
from slurm_rl.controller.scores import multifactor_all
from slurm_rl.domain.cluster import Cluster, KnownNodes, NodeWatts, default_watts, node_classes
from slurm_rl.domain.optout import LeaveAlone
from slurm_rl.domain.sizes import job_size, weights_by_partition
from slurm_rl.domain.snapshot import Snapshot
from slurm_rl.kernel.arrays import NOW, OTHER, RELEASED, Array
from slurm_rl.kernel.build import Requests, Speeds, Workload, build
from slurm_rl.kernel.linking import link_slot
from slurm_rl.kernel.tables import World
from slurm_rl.kernel.world import new_world
from slurm_rl.place.speed import SpeedMatrix
from slurm_rl.policy.catalogue import BY_USER
from slurm_rl.policy.multifactor import RAW_PARTITION, partition_shares
from slurm_rl.policy.registry import PolicySpec, settings_for
from slurm_rl.slurm.model import HistoryJob, PriorityWeights, SlurmJob, SlurmNode, SlurmState
from slurm_rl.slurm.scontrol import setting
from slurm_rl.slurm.site_limits import SiteLimits

_NONE = LeaveAlone()


@dataclass(frozen=True, slots=True)
class LiveQueue:
    """A snapshot, and for each of its jobs (by index) Slurm's own record and figures."""

    state: SlurmState
    snapshot: Snapshot
    jobs: tuple[SlurmJob, ...]
    ids: Array  # of the jobs
    base: Array  # Slurm's priority without our factor
    site: Array  # our factor as Slurm has it
    line: Array  # jobs of one number compete: same pool, same priority tier
    estimate: Array  # seconds, from history
    spread: Array  # standard deviation of its logarithm
    left_alone: Mapping[int, str]  # job id -> why a pending job is not ordered
    never: frozenset[int]  # … of these, jobs that must not have a factor of ours, either
    weights: Mapping[str, float]
    floor: int  # no job is pushed below this priority
    size: Array  # what Slurm's priority has for the job's size; -1 where it is not shown
    gpus: Array  # of all its tasks
    first: Array  # the partition that is named first, by number …
    partitions: tuple[str, ...]  # … and the names of these
    alone: tuple[SlurmJob, ...]  # jobs that are not ordered
    gpu_types: tuple[str, ...] = ()  # by the number that nodes of the snapshot carry
    workload: Workload | None = None  # that the snapshot's tables were made from
    limits: SiteLimits | None = None  # in force
    beyond: Mapping[int, str] = field(default_factory=dict)  # why a limit will never let a job start, by index

    @property
    def now(self) -> int:
        return self.snapshot.now

    def rows_of(self, job_ids: Sequence[int]) -> list[int]:
        """The indices of these jobs, as far as they are here."""
        return np.flatnonzero(np.isin(self.ids, job_ids)).tolist()


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
    memory: JobRows | None = None,
    limits: SiteLimits | None = None,
) -> LiveQueue:
    """Everything `decide` needs, from one answer of Slurm.

    `besides` are jobs that neither wait nor run (those of the past, one that is asked about): they get a row each in
    the tables, and take part in nothing. `memory` keeps rows from look to look. `limits` in force hold jobs back in
    what is planned, as they do in Slurm.
    """
    now = int(state.taken)
    speeds = gpus.speeds if gpus is not None else SpeedMatrix({})
    watts = gpus.watts if gpus is not None else default_watts
    waiting = [j for j in state.jobs if j.state == "PENDING"]
    wanted = NamedFeatures(waiting)
    memory = JobRows() if memory is None else memory
    cluster, members = _cluster(state, speeds, watts, wanted, memory.nodes_like((wanted.named, state.topology)))
    known = set(cluster.partitions)
    around = Surroundings.of(state, known, leave_alone)
    every = (*state.jobs, *(j for j in besides if known & set(j.partitions)))
    rows = memory.read(every, around, run_times)
    left_alone, never = _left_alone(rows[: len(state.jobs)], memory, every, state.taken, around)
    aside = (rows["pending"] & (rows["why"] >= 0))[: len(state.jobs)]
    alone = tuple(state.jobs[i] for i in np.flatnonzero(aside).tolist())
    takes_part = (rows["pending"] & (rows["why"] < 0)) | rows["holds"]
    takes_part[len(state.jobs) :] = True
    ordered = np.flatnonzero(takes_part)
    ordered = ordered[np.lexsort((rows["job_id"][ordered], rows["submit"][ordered]))]
    jobs = [every[i] for i in ordered.tolist()]
    mine = rows[ordered]
    requests = _requests(mine, jobs, memory, now, wanted, topology=bool(state.topology))
    workload = build(requests, cluster, learn=False, speeds=_own_speeds(jobs, speeds, cluster))
    pending = np.flatnonzero(mine["pending"])
    volume = workload.requests["volume"][workload.jobs["request"]] if jobs else np.zeros(0)
    resized = np.flatnonzero(mine["volume"] != volume)
    if len(resized):
        sizes = zip(resized.tolist(), volume[resized].tolist(), requests.limit[resized].tolist(), strict=True)
        described = [Described((j := jobs[i]).user, j.name, v, j.gpu_count > 0, limit, j.keys) for i, v, limit in sizes]
        mine["group"][resized] = run_times.groups_of_all(described)
    mine["volume"] = volume
    workload.jobs["group"] = mine["group"]
    rows[ordered] = mine
    memory.keep_groups(rows)
    weights = site_weights(state.weights)
    base, site = mine["base"].copy(), mine["site"].copy()
    world = _world(workload, requests, mine, jobs, members, state, policy, weights, now, run_times.table())
    _match_priorities(world, base, pending, now)
    predict_all(world.record, np.arange(len(jobs)))
    estimate, spread = world["live"]["expected"].copy(), world["live"]["spread"].astype(np.float64)
    if policy.source != BY_USER:
        world["live"]["expected"] = world["jobs"]["limit"]
        world["live"]["inverse"] = 1.0 / world["jobs"]["limit"]
        world["live"]["spread"] = 0.0
    tier = mine["tier"].astype(np.int64)
    if len(set(tier[pending].tolist())) > 1:
        world["tiers"] = tier
    pool = workload.requests["pool"][workload.jobs["request"]] if jobs else np.zeros(0, dtype=np.int64)
    for name, table in kept_tables(state, workload, members, len(jobs)).items():
        world[name] = table
    kept_back = frozenset(np.flatnonzero(mine["kept"]).tolist())
    beyond: Mapping[int, str] = {}
    if limits is not None:
        tables, beyond = quota_tables(limits, jobs, state.jobs)
        kept_back |= beyond.keys()
        for name, table in tables.items():
            world[name] = table
    return LiveQueue(
        state=state,
        snapshot=Snapshot(now, world, pending, _pool_names(world, workload, members), kept_back),
        jobs=tuple(jobs),
        ids=mine["job_id"].copy(),
        base=base,
        site=site,
        line=pool * 100_000 + tier,
        estimate=estimate,
        spread=spread,
        left_alone=left_alone,
        never=never,
        weights=weights,
        floor=backfill_floor(state),
        size=mine["size"].copy(),
        gpus=mine["gpus"].astype(np.int64) * mine["tasks"],
        first=mine["first"].copy(),
        partitions=tuple(memory.names["first"].texts),
        alone=alone,
        gpu_types=workload.type_names,
        workload=workload,
        limits=limits,
        beyond=beyond,
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


def backfill_floor(state: SlurmState) -> int:
    """The least priority we leave a job with: 1 (0 means held), or what backfill asks of jobs it reserves for."""
    options = setting(state.config, "SchedulerParameters").split(",")
    values = [o.partition("=")[2] for o in options if o.startswith("bf_min_prio_reserve=")]
    return max([1, *(int(v) for v in values if v.isdecimal())])


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
        limit = r.time_limit or FOREVER
        found.append(Finished(r.user, r.name, volume, gpus > 0, limit, float(r.elapsed), r.keys))
    return found


def _cluster(
    state: SlurmState, speeds: SpeedMatrix, watts: NodeWatts, wanted: NamedFeatures, known: KnownNodes[SlurmNode]
) -> tuple[Cluster, list[SlurmNode]]:
    """The nodes as classes of equals, and the nodes in the order in which the classes number them."""
    found = node_classes(
        nodes_to_come(state),
        speed=speeds.speed,
        watts=watts,
        gres=gres_of,
        features=wanted.of_node,
        block=lambda node: state.topology.get(node.name, ""),
        known=known,
    )
    members = list(itertools.chain.from_iterable(same for _, same in found))
    return Cluster(state.cluster, tuple(c for c, _ in found)), members


def _left_alone(
    rows: Array, memory: JobRows, jobs: Sequence[SlurmJob], taken: float, around: Surroundings
) -> tuple[dict[int, str], frozenset[int]]:
    """Why pending jobs are not ordered, by id, also in their rows; and those that must not have a factor of ours."""
    names = memory.names["why"]
    for i in np.flatnonzero(rows["pending"] & (rows["eligible"] > taken) & ~rows["never"]).tolist():
        rows["why"][i] = names(why_left_alone(jobs[i], taken, around.known))
    alone = np.flatnonzero(rows["pending"] & (rows["why"] >= 0))
    why = zip(rows["job_id"][alone].tolist(), rows["why"][alone].tolist(), strict=True)
    return {job_id: names.texts[code] for job_id, code in why}, frozenset(rows["job_id"][rows["never"]].tolist())


def _requests(
    rows: Array, jobs: list[SlurmJob], memory: JobRows, now: int, wanted: NamedFeatures, *, topology: bool
) -> Requests:
    number = memory.names
    constraint = rows["features"].copy()
    for i in np.flatnonzero(rows["listed"]).tolist():
        constraint[i] = number["constraint"](wanted.constraint(jobs[i]))
    (constraint, prefer), constraints = number["constraint"].used(constraint, rows["wish"])
    used = {name: number[name].used(rows[name]) for name in ("user", "account", "name", "qos", "gpu_type", "partition")}
    (asked,), gres = number["gres"].used(rows["gres"])
    switches = np.zeros(len(jobs), dtype=np.int64)
    segment = np.zeros(len(jobs), dtype=np.int64)
    if topology:
        switches[:] = [_switches(j, now) for j in jobs]
        segment[:] = [j.segment if j.pending else 0 for j in jobs]
    return Requests(
        submit=np.where((rows["submit"] == 0) | (rows["submit"] > now), now, rows["submit"]),
        limit=rows["limit"].copy(),
        gpus=rows["gpus"].copy(),
        gpu_type=used["gpu_type"][0][0],
        gpu_type_names=used["gpu_type"][1],
        nodes=rows["nodes"].copy(),
        cpus=rows["cpus"].copy(),
        mem_gb=rows["mem_gb"].copy(),
        partition=used["partition"][0][0],
        partition_names=used["partition"][1],
        user=used["user"][0][0],
        users=len(used["user"][1]) or 1,
        account=used["account"][0][0],
        accounts=len(used["account"][1]) or 1,
        name=used["name"][0][0],
        qos=used["qos"][0][0],
        qos_count=len(used["qos"][1]),
        priority=rows["nice"].copy(),
        deadline=np.full(len(jobs), -1, dtype=np.int64),
        gres=asked if gres else None,
        gres_names=gres,
        constraint=constraint if (constraint >= 0).any() else None,
        prefer=prefer if (prefer >= 0).any() else None,
        constraint_names=constraints,
        exclusive=rows["exclusive"].copy() if rows["exclusive"].any() else None,
        switches=switches if switches.any() else None,
        segment=segment if segment.any() else None,
    )


def _switches(job: SlurmJob, now: int) -> int:
    """Switches that a waiting job may span: Slurm gives up on them when it has waited for as long as it insists."""
    waited = now - (job.eligible_time or job.submit_time or now)
    return job.switches if job.pending and waited < job.switch_wait else 0


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
    rows: Array,
    jobs: list[SlurmJob],
    members: list[SlurmNode],
    state: SlurmState,
    policy: PolicySpec,
    weights: Mapping[str, float],
    now: int,
    groups: Array,
) -> World:
    factors = {p.name: float(p.priority_job_factor) for p in state.partitions}
    world = new_world(
        wl,
        settings_for(policy, weights=weights),
        now=now,
        groups=groups.copy(),
        partition_factor=partition_shares(wl.partition_names, factors, raw=RAW_PARTITION in state.weights.flags),
    )
    world["calculated"] = now  # fairshare is Slurm's own: not to be calculated again
    world["live"]["version"] = 0  # estimates are made below, once
    users = world["users"]
    share = rows["share"].copy()
    for i in np.flatnonzero(np.isnan(share)).tolist():
        share[i] = state.fairshare.get((jobs[i].account, jobs[i].user), 0.0)
    fairshare = np.zeros(len(users))
    np.maximum.at(fairshare, requests.user, share)
    users["fairshare"] = fairshare
    link_slot(world, policy.row, "score")
    world["pools"]["change"] = RELEASED  # every pool gets a scheduling pass
    _fill_nodes(world, wl, members)
    _hold_running(world, wl, rows, jobs, members, now)
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
    nodes = [members[number] for number in wl.node_number.tolist()]
    usable = np.fromiter((n.usable for n in nodes), dtype=bool, count=len(nodes))
    unused = [
        (
            n.cpus - n.cpus_allocated,
            n.mem_mb - n.mem_mb_allocated,
            sum(n.gpus.values()) - sum(n.gpus_allocated.values()),
        )
        for n in nodes
    ]
    world["nodes"]["down"][~usable] = 1
    world["free"][:, ~usable, :] = 0
    world["free"][:, usable, :OTHER] = np.maximum(np.array(unused).reshape(-1, 3), 0)[usable]


def _sum_pools(world: World) -> None:
    free = world["free"]
    for pool in range(len(world["pools"])):
        mine = world["nodes"]["pool"] == pool
        world["total"][:, pool, :] = free[NOW][mine, :OTHER].sum(axis=0)


def _hold_running(
    world: World, wl: Workload, rows: Array, jobs: list[SlurmJob], members: list[SlurmNode], now: int
) -> None:
    """Enters running jobs: who holds which nodes, and until when at most."""
    index = {members[number].name: n for n, number in enumerate(wl.node_number.tolist())}
    entries, live, pools = world["entries"], world["live"], world["pools"]
    ends: list[list[tuple[int, int]]] = [[] for _ in range(len(pools))]
    spare = 1
    running = np.flatnonzero(rows["holds"])
    request = wl.jobs["request"][running]
    units_of, pool_of = wl.requests["units"][request].tolist(), wl.requests["pool"][request].tolist()
    limit_of = wl.jobs["limit"][running].tolist()
    written: list[tuple[int, int, int, int, int]] = []
    entered: list[tuple[int, int, int, int]] = []  # job, its first entry, start, expected end
    for i, units, pool, limit in zip(running.tolist(), units_of, pool_of, limit_of, strict=True):
        job = jobs[i]
        held = [index[name] for name in job.node_list if name in index][:units]
        if not held or spare + len(held) >= len(entries):
            continue
        start = job.start_time or now
        end = max(job.end_time or start + limit, now + 1)
        entered.append((i, spare, start, end))
        for k, node in enumerate(held):
            share = units // len(held) + (k < units % len(held))
            written.append((0, node, share, spare + 1 if k + 1 < len(held) else 0, 0))
            spare += 1
        ends[pool].append((end, i))
    if entered:
        entries[1:spare] = np.array(written, dtype=entries.dtype)
        at, first, start_at, end_at = np.array(entered, dtype=np.int64).T
        live["held"][at], live["start"][at], live["expected_end"][at] = first, start_at, end_at
        volume = wl.requests["volume"][wl.jobs["request"][at]]
        for table in ("user", "account"):
            rate = world[f"{table}s"]["rate"].copy()
            np.add.at(rate, wl.jobs[table][at], volume)
            world[f"{table}s"]["rate"] = rate
    entries["next"][0] = spare if spare < len(entries) else 0
    for pool, running_here in enumerate(ends):
        first_job = int(pools["first_job"][pool])
        world["running"][first_job : first_job + len(running_here)] = [i for _, i in sorted(running_here)]
        pools["running"][pool] = len(running_here)
