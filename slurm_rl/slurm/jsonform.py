"""Reads Slurm's JSON about jobs and nodes, of every release family, into the same plain data.

It names its fields, so it is what we read of a release whose text we do not know; for known ones text is faster.

openapi v0.0.36–38 (22.05) has plain numbers and null; data_parser v0.0.40 and later wrap numbers as
{set, infinite, number}, turn states into lists, and write GRES as gres/gpu.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from slurm_rl.errors import SlurmError
from slurm_rl.slurm.gres import asked_of_each_node, gpus_by_unit, node_counts, reports_parts, shared_parts
from slurm_rl.slurm.model import PriorityFactors, SlurmJob, SlurmNode
from slurm_rl.slurm.quantities import array_tasks, expand_hosts, gpus_in_gres, present, tres
from slurm_rl.slurm.scontrol import used
from slurm_rl.slurm.squeue import NO_COMMENT, requested_gpus

_NO_VALUE = frozenset({0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF, 0xFFFE, 0xFFFF})


def number(value: Any) -> int | None:
    """A number in any family's form; None if not set or infinite."""
    if isinstance(value, dict):
        if value.get("infinite") or not value.get("set", True):
            return None
        value = value.get("number")
    if isinstance(value, str):
        value = int(value) if value.lstrip("-").isdecimal() else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _NO_VALUE:
        return None
    return int(value)


def words(value: Any) -> list[str]:
    """A list of words, whether written as a list, a comma-separated text, or null."""
    if isinstance(value, list):
        return [str(item) for item in value]
    return [item for item in value.split(",") if item] if isinstance(value, str) else []


def string(value: Any) -> str:
    """A text as it is: JSON has null where text has a word for nothing, so "None" is somebody's word."""
    return value if isinstance(value, str) else ""


def _decode(data: bytes, key: str) -> list[dict[str, Any]]:
    try:
        value = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise SlurmError(f"Slurm's JSON is unreadable: {error}") from None
    found = value.get(key)
    if not isinstance(found, list):
        raise SlurmError(f"Slurm's JSON has no list of {key}")
    errors = [str(e.get("error") or e.get("description") or e) for e in value.get("errors") or [] if e]
    if errors:
        raise SlurmError(f"Slurm answered with errors: {'; '.join(errors)}")
    return found


def jobs(
    data: bytes, factors: Mapping[int, PriorityFactors], exclusive: Collection[int] = frozenset()
) -> list[SlurmJob]:
    """Jobs from `squeue --json`; `exclusive` are known to be so, where the release's JSON does not say it."""
    return [_job(j, factors, exclusive) for j in _decode(data, "jobs")]


def _job(j: Mapping[str, Any], factors: Mapping[int, PriorityFactors], exclusive: Collection[int]) -> SlurmJob:
    job_id = number(j.get("job_id"))
    if job_id is None:
        raise SlurmError("Slurm's JSON has a job without job_id")
    states = words(j.get("job_state"))
    nodes, tasks = number(j.get("node_count")) or 1, number(j.get("tasks")) or 1
    running = bool(states) and states[0] != "PENDING"
    counts = tres(string(j.get("tres_alloc_str")) if running else string(j.get("tres_req_str")))
    task_id = number(j.get("array_task_id"))
    waiting, count, limit = array_tasks(string(j.get("array_task_string")))
    if task_id is not None:
        waiting, count = str(task_id), 1
    is_array = bool(number(j.get("array_job_id")))
    per = [string(j.get(f"tres_per_{what}")) for what in ("job", "node", "task", "socket")]
    gpus = requested_gpus(counts, per[0], per[1], per[2], nodes, tasks)
    gres, problem = asked_of_each_node(per[0], per[1], per[2], per[3], nodes, tasks)
    minutes = number(j.get("time_limit"))
    return SlurmJob(
        job_id=job_id,
        name=string(j.get("name")),
        user=string(j.get("user_name")),
        account=string(j.get("account")),
        qos=string(j.get("qos")),
        restarts=number(j.get("restart_cnt")) or 0,
        comment=string(j.get("comment")) if j.get("comment") != NO_COMMENT else "",
        partitions=tuple(words(j.get("partition"))),
        state=states[0] if states else "",
        reason=string(j.get("state_description")) or present(string(j.get("state_reason"))),
        dependency=string(j.get("dependency")),
        reservation=string(j.get("resv_name")),
        cron=any("CRON" in flag for flag in words(j.get("flags"))),
        array_job_id=(number(j.get("array_job_id")) or 0) if is_array else 0,
        array_task_id=task_id if is_array else None,
        array_tasks=waiting if is_array else "",
        array_task_count=count if is_array else 1,
        array_max_running=(limit or number(j.get("array_max_tasks")) or 0) if is_array and task_id is None else 0,
        het_job_id=number(j.get("het_job_id")) or 0,
        het_offset=number(j.get("het_job_offset")) or 0,
        submit_time=number(j.get("submit_time")) or None,
        eligible_time=number(j.get("eligible_time")) or None,
        start_time=number(j.get("start_time")) or None,
        deadline=number(j.get("deadline")) or None,
        end_time=None if minutes is None else number(j.get("end_time")) or None,  # else a year hence
        time_limit=None if minutes is None else minutes * 60,
        nodes=nodes,
        cpus=max(number(j.get("cpus")) or 1, gpus_by_unit(string(j.get("cpus_per_tres"))) * sum(gpus.values())),
        tasks=tasks,
        mem_mb=counts.get("mem", 0),
        gpus=gpus,
        gres=gres,
        not_understood=problem,
        tres=counts,
        features=string(j.get("features")),
        prefer=string(j.get("prefer")),
        required_nodes=expand_hosts(string(j.get("required_nodes"))),
        excluded_nodes=expand_hosts(string(j.get("excluded_nodes"))),
        exclusive=job_id in exclusive or "none" in [w.lower() for w in words(j.get("shared"))],
        switches=number(j.get("required_switches")) or 0,
        switch_wait=number(j.get("maximum_switch_wait_time")) or 0,
        segment=number(j.get("segment_size")) or 0,
        node_list=expand_hosts(string(j.get("nodes"))),
        priority=number(j.get("priority")) or 0,
        nice=_nice(j, factors.get(job_id)),
        factors=factors.get(job_id),
    )


def _nice(j: Mapping[str, Any], factors: PriorityFactors | None) -> int:
    said = number(j.get("nice"))
    if said is None:  # v0.0.38 loses it
        return factors.nice if factors is not None else 0
    return said


def nodes(data: bytes) -> list[SlurmNode]:
    """Nodes from `sinfo --json` (22.05) or `scontrol show nodes --json` (since 23.02)."""
    return [_node(n) for n in _decode(data, "nodes")]


def _node(n: Mapping[str, Any]) -> SlurmNode:
    states = [s.upper() for s in words(n.get("state"))] + [s.upper() for s in words(n.get("state_flags"))]
    if not n.get("name") or not states:
        raise SlurmError("Slurm's JSON has a node without name or state")
    return SlurmNode(
        name=str(n["name"]),
        state=states[0],
        flags=tuple(states[1:]),
        cpus=number(n.get("cpus")) or 0,
        cpus_allocated=number(n.get("alloc_cpus")) or 0,
        mem_mb=number(n.get("real_memory")) or 0,
        mem_mb_allocated=number(n.get("alloc_memory")) or 0,
        gpus=gpus_in_gres(string(n.get("gres"))),
        gpus_allocated=used(gpus_in_gres(string(n.get("gres_used")))),
        gres=node_counts(string(n.get("gres"))),
        gres_allocated=node_counts(string(n.get("gres_used"))),
        shared=shared_parts(string(n.get("gres_used"))),
        shared_known=reports_parts(string(n.get("gres_used"))),
        features=tuple(words(n.get("active_features"))),
        partitions=tuple(words(n.get("partitions"))),
    )
