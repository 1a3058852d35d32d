"""Submits a trace's jobs to a lab as time-scaled sleeps with their real GPU requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slurm_rl.errors import InputError, SlurmError
from slurm_rl.lab.lab import Lab
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import SlurmNode
from slurm_rl.traces.trace import Trace


@dataclass(frozen=True)
class LabSubmission:
    """One job as sbatch takes it; `after` is when, in seconds of the lab's time from the start."""

    trace_id: str
    after: float
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Rejection:
    """A job of the trace that the lab cannot hold, and why."""

    trace_id: str
    reason: str


def submissions(trace: Trace, speedup: float) -> Iterator[LabSubmission]:
    """The trace's jobs in submit order, their times divided by the speedup."""
    if not (speedup > 0 and math.isfinite(speedup)):
        raise InputError(f"{speedup} is not a positive number", field="--speedup")
    first = trace.span()[0]
    types = trace.gpu_type.strings()
    names = trace.job_name.strings()
    for i in range(len(trace)):
        run = max(float(trace.run_time[i]), 0.0) / speedup
        limit = int(trace.time_limit[i])
        # A blank limit means unknown: leave room above the run time, so that Slurm does not end the job first.
        minutes = max(1, math.ceil((limit if limit > 0 else 2 * float(trace.run_time[i])) / speedup / 60))
        nodes = max(int(trace.num_nodes[i]), 1)
        arguments = [
            f"--job-name={names[i] or trace.job_id[i]}",
            f"--comment=trace:{trace.job_id[i]}",
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            "--ntasks-per-node=1",
            f"--time={minutes}",
            "--output=/dev/null",
        ]
        arguments += _gpus(float(trace.num_gpus[i]), types[i], nodes)
        if not math.isnan(trace.cpus[i]):
            arguments.append(f"--cpus-per-task={max(1, math.ceil(float(trace.cpus[i]) / nodes))}")
        if not math.isnan(trace.mem_gb[i]):
            arguments.append(f"--mem={max(1, math.ceil(float(trace.mem_gb[i]) * 1024 / nodes))}M")
        arguments.append(f"--wrap=exec sleep {run:.3f}")
        yield LabSubmission(str(trace.job_id[i]), (int(trace.submit_time[i]) - first) / speedup, tuple(arguments))


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
        accepted[job.trace_id] = int(said.strip().partition(";")[0])
        if on_submit is not None:
            on_submit(job)
    return accepted, rejected


def _check_types(lab: Lab, trace: Trace) -> None:
    """Says before the first job that none of a type's jobs can ever run, as sbatch would say it for each."""
    nodes: tuple[SlurmNode, ...] = CliClient(lab.slurm_conf).snapshot().nodes
    present = {kind for node in nodes for kind in node.gpus}
    wanted = {part.lower() for kind in trace.gpu_type.names for part in kind.split("|")}
    if wanted and not wanted & present:
        raise InputError(
            f"the trace asks for {', '.join(sorted(wanted))}, the lab has {', '.join(sorted(present)) or 'no GPUs'}",
            remedy="start a lab with --nodes that has the trace's types",
        )
