"""Small builders for tests of the simulator: a cluster, a job, and a replay of jobs on a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.domain.limits import Limits
from slurm_rl.domain.reservations import Reservation
from slurm_rl.kernel.build import build
from slurm_rl.place.plan import Planner
from slurm_rl.policy.registry import parse_policy, with_lane
from slurm_rl.traces.trace import ASKED_COLUMNS, Labels, Trace, make_trace
from slurm_rl_sim.limits import with_limits
from slurm_rl_sim.reservations import with_reservations
from slurm_rl_sim.simulation import NodeEvents, ReplayState
from slurm_rl_sim.workload import requests_of, sorted_by_id

STATES = ("waiting", "queued", "running", "completed", "killed", "rejected")


@dataclass(frozen=True)
class Job:
    """A row of a trace; None or "" is blank."""

    id: int
    submit: int = 0
    run: int = 10
    limit: int = 10
    cpus: float | None = 1
    gpus: float = 0
    gpu_type: str = ""
    nodes: int = 0
    mem_gb: float | None = None
    user: str = ""
    account: str = ""
    partition: str = ""
    priority: float | None = None
    deadline: int = -1
    name: str = ""
    gres: str = ""
    constraint: str = ""
    prefer: str = ""
    exclusive: bool = False
    switches: int = 0
    segment: int = 0
    qos: str = ""
    licenses: str = ""
    reservation: str = ""


@dataclass(frozen=True)
class Event:
    """A node, by its number in the cluster file, goes down or comes back."""

    time: int
    node: int
    up: bool


@dataclass(frozen=True)
class Ran:
    """What became of a job: times are -1 if it never ran; nodes are (number in the cluster file, units)."""

    start: int
    end: int
    state: str
    nodes: tuple[tuple[int, int], ...]


def a_cluster(*classes: NodeClass | int, cpus: int | None = None) -> Cluster:
    """`a_cluster(4, cpus=2)`: four nodes of two CPUs; or the node classes themselves."""
    return Cluster("test", tuple(NodeClass(c, cpus=cpus) if isinstance(c, int) else c for c in classes))


_next_id = 0


def a_job(submit: int = 0, run: int = 10, limit: int | None = None, **more: object) -> Job:
    """A job of one CPU unless told otherwise; its limit is its run time unless told otherwise; ids ascend."""
    global _next_id  # noqa: PLW0603  # ids only have to ascend in the order of writing
    _next_id += 1
    fields: dict[str, object] = {"id": _next_id, "submit": submit, "run": run}
    fields["limit"] = max(run, 1) if limit is None else limit
    if "gpus" in more:
        fields["cpus"] = None
    return Job(**(fields | more))  # type: ignore[arg-type]


def a_trace(jobs: Sequence[Job]) -> Trace:
    """The jobs as the trace that a file with these rows would give."""

    def amount(value: float | None) -> float:
        return math.nan if value is None else value

    return sorted_by_id(
        make_trace(
            "test",
            [j.submit for j in jobs],
            job_id=np.array([j.id for j in jobs], dtype=np.int64),
            run_time=[j.run for j in jobs],
            time_limit=[j.limit for j in jobs],
            num_gpus=[j.gpus for j in jobs],
            gpu_type=[j.gpu_type for j in jobs],
            num_nodes=[j.nodes for j in jobs],
            cpus=[amount(j.cpus) for j in jobs],
            mem_gb=[amount(j.mem_gb) for j in jobs],
            user=[j.user for j in jobs],
            account=[j.account for j in jobs],
            partition=[j.partition for j in jobs],
            job_name=[j.name for j in jobs],
            qos=[j.qos for j in jobs],
            priority=[amount(j.priority) for j in jobs],
            deadline=[j.deadline for j in jobs],
            asked={
                name: labels
                for name in ASKED_COLUMNS
                if ((labels := Labels.of(_text(getattr(j, name)) for j in jobs)).codes >= 0).any()
            },
        )
    )


def _text(value: str | bool | int) -> str:
    if isinstance(value, bool):
        return "yes" * value
    return str(value or "")


def a_simulation(
    cluster: Cluster,
    jobs: Sequence[Job],
    policy: str = "fcfs",
    backfill: str = "none",
    placement: str = "first-fit",
    *,
    preempt: bool = False,
    influence: float = 1.0,
    events: Sequence[Event] = (),
    lane: float = 0.0,
    slurm: SlurmSettings | None = None,
    index: str | None = None,
    limits: Limits | None = None,
    reservations: Sequence[Reservation] = (),
    planner: Planner | None = None,
) -> tuple[ReplayState, list[int]]:
    """A simulation that has not begun, and the jobs' ids in the order of its rows."""
    trace = a_trace(jobs)
    workload = build(requests_of(trace), cluster)
    if limits is not None:
        workload = with_limits(workload, trace, limits, own_limit=trace.time_limit > 0)
    workload = with_reservations(workload, trace, reservations)
    simulation = ReplayState(
        workload,
        trace.run_time.astype(np.float64),
        with_lane(parse_policy(policy), lane) if lane else parse_policy(policy),
        backfill=backfill,
        placement=placement,
        preempt=preempt,
        influence=influence,
        events=NodeEvents(
            np.array([e.time for e in events], dtype=np.int64),
            np.array([e.node for e in events], dtype=np.int32),
            np.array([e.up for e in events], dtype=np.int8),
        ),
        slurm=slurm,
        index=index,
        planner=planner,
    )
    return simulation, trace.job_id.tolist()


def outcome(simulation: ReplayState, ids: Sequence[int]) -> dict[int, Ran]:
    """What has become of each job so far, by its id."""
    live, log, more = (simulation.world[name] for name in ("live", "log", "log_more"))
    number = simulation.workload.node_number
    result = {}
    for row, job in zip(live, ids, strict=True):
        units: dict[int, int] = {}
        for at in range(row["log_first"], row["log_first"] + row["log_count"]):
            for n in range(int(log["node"][at]), int(log["node"][at]) + 1 + (int(more[at]) if len(more) else 0)):
                units[int(number[n])] = units.get(int(number[n]), 0) + int(log["units"][at])
        result[job] = Ran(int(row["start"]), int(row["end"]), STATES[row["state"]], tuple(sorted(units.items())))
    return result


def replay(cluster: Cluster, jobs: Sequence[Job], *args: str, **more: object) -> dict[int, Ran]:
    """Runs jobs on a cluster to the end (see `a_simulation`): what became of each, by its id."""
    simulation, ids = a_simulation(cluster, jobs, *args, **more)  # type: ignore[arg-type]
    simulation.run()
    return outcome(simulation, ids)


def starts(cluster: Cluster, jobs: Sequence[Job], *args: str, **more: object) -> list[int]:
    """Start times in the order of the jobs given."""
    ran = replay(cluster, jobs, *args, **more)
    return [ran[j.id].start for j in jobs]
