"""Submits a trace's jobs to a Slurm as sleeps, or as given commands, with their real requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_rl.errors import InputError, SlurmError
from slurm_rl.lab.lab import Lab
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import SlurmNode
from slurm_rl.traces.trace import Trace


@dataclass(frozen=True)
class LabSubmission:
    """One job as sbatch takes it; `after` is when, in seconds from the start."""

    trace_id: str
    after: float
    arguments: tuple[str, ...]
    user: str | None = None  # the account it is submitted under; None: ours


@dataclass(frozen=True)
class Rejection:
    """A job of the trace that Slurm cannot hold, and why."""

    trace_id: str
    reason: str


@dataclass(frozen=True)
class Manner:
    """How a trace's jobs are submitted."""

    speedup: float = 1.0  # all times are divided by this
    tag: str = "trace"  # begins the jobs' comments, by which they are found again
    partitions: tuple[str, ...] = ()  # of the cluster, if it has several
    typed: bool = True  # False: the nodes name no GPU types, so a request's type means nothing
    commands: Mapping[str, str] = field(default_factory=dict)  # by trace id; others sleep
    accounts: Sequence[str] = ()  # stand for the trace's users
    options: tuple[str, ...] = ()  # for every sbatch


def submissions(trace: Trace, speedup: float | Manner = 1.0) -> Iterator[LabSubmission]:
    """The trace's jobs in submit order, their times divided by the speedup."""
    manner = speedup if isinstance(speedup, Manner) else Manner(speedup)
    if not (manner.speedup > 0 and math.isfinite(manner.speedup)):
        raise InputError(f"{manner.speedup} is not a positive number", field="--speedup")
    first = trace.span()[0]
    users = trace.user.codes.tolist()
    for i in range(len(trace)):
        after = (int(trace.submit_time[i]) - first) / manner.speedup
        account = manner.accounts[users[i] % len(manner.accounts)] if manner.accounts and users[i] >= 0 else None
        yield LabSubmission(str(trace.job_id[i]), after, tuple(_arguments(trace, i, manner)), account)


def minutes_of(limit: float) -> int:
    """A time limit as Slurm takes it: whole minutes."""
    return max(1, math.ceil(limit / 60))


def _arguments(trace: Trace, i: int, manner: Manner) -> list[str]:
    name = str(trace.job_id[i])
    run = max(float(trace.run_time[i]), 0.0)
    limit = int(trace.time_limit[i])
    # A blank limit means unknown: leave room above the run time, so that Slurm does not end the job first.
    minutes = minutes_of((limit if limit > 0 else 2 * run) / manner.speedup)
    nodes = max(int(trace.num_nodes[i]), 1)
    kind = _label(trace, "gpu_type", i) if manner.typed else ""
    arguments = [
        f"--job-name={_label(trace, 'job_name', i) or name}",
        f"--comment={manner.tag}:{name}",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--time={minutes}",
        "--output=/dev/null",
        *manner.options,
        *_gpus(float(trace.num_gpus[i]), kind, nodes),
    ]
    if not math.isnan(trace.cpus[i]):
        arguments.append(f"--cpus-per-task={max(1, math.ceil(float(trace.cpus[i]) / nodes))}")
    if not math.isnan(trace.mem_gb[i]):
        arguments.append(f"--mem={max(1, math.ceil(float(trace.mem_gb[i]) * 1024 / nodes))}M")
    partition = _label(trace, "partition", i)
    if len(manner.partitions) > 1 and partition in manner.partitions:
        arguments.append(f"--partition={partition}")
    return [*arguments, f"--wrap={manner.commands.get(name) or f'exec sleep {run / manner.speedup:.3f}'}"]


def _label(trace: Trace, column: str, i: int) -> str:
    labels = getattr(trace, column)
    code = int(labels.codes[i])
    return str(labels.names[code]) if code >= 0 else ""


def _gpus(count: float, kind: str, nodes: int) -> list[str]:
    """A type is asked for by GRES; "a|b", either of two, by the feature each lab node has of its GPU type."""
    if count <= 0:
        return []
    per_node = math.ceil(count / nodes)  # a fraction of a GPU becomes a whole one: Slurm's fake GPUs have no shards
    if kind and "|" not in kind:
        return [f"--gpus-per-node={kind.lower()}:{per_node}"]
    return [f"--gpus-per-node={per_node}", *([f"--constraint={kind.lower()}"] if kind else [])]


def submit(
    lab: Lab,
    trace: Trace,
    speedup: float,
    on_submit: Callable[[LabSubmission], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[dict[str, int], list[Rejection]]:
    """Submits every job at its time; returns Slurm's job ids by trace id, and what sbatch refused."""
    _check_types(lab, trace)
    accepted: dict[str, int] = {}
    rejected: list[Rejection] = []
    began = time.monotonic()
    for job in submissions(trace, speedup):
        early = job.after - (time.monotonic() - began)
        if early > 0:
            sleep(early)
        try:
            said = lab.run("sbatch", "--parsable", *job.arguments)
        except SlurmError as error:
            rejected.append(Rejection(job.trace_id, str(error)))
            continue
        accepted[job.trace_id] = job_id_of(said)
        if on_submit is not None:
            on_submit(job)
    return accepted, rejected


def job_id_of(said: str) -> int:
    """The job id that `sbatch --parsable` printed."""
    return int(said.strip().partition(";")[0])


def _check_types(lab: Lab, trace: Trace) -> None:
    """Says before the first job that none of a type's jobs can ever run, as sbatch would say it for each."""
    nodes: tuple[SlurmNode, ...] = CliClient(lab.slurm_conf).snapshot().nodes
    present = {kind for node in nodes for kind in node.gpus}
    wanted = {part.lower() for kind in trace.gpu_type.names for part in kind.split("|")}
    if wanted and not wanted & present:
        raise InputError(
            f"the trace requests {', '.join(sorted(wanted))}, the lab has {', '.join(sorted(present)) or 'no GPUs'}",
            remedy="start a lab with --nodes that has the trace's types",
        )
