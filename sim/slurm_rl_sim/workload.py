"""A trace as requests to a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.domain.keys import KEY_LEVELS
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.build import Requests
from slurm_rl.kernel.codes import number
from slurm_rl.traces.trace import KEY_COLUMNS, Trace

_NO = ("0", "no", "false", "user", "mcs", "topo")  # of `--exclusive`: those that do not mean whole nodes


def sorted_by_id(trace: Trace) -> Trace:
    """Sorted by (submit time, id), the order that breaks all ties."""
    ids: Array = trace.job_id if trace.job_id.dtype != object else trace.job_id.astype(str)
    submit = trace.submit_time
    tied = submit[1:] == submit[:-1]
    if bool(np.all(submit[1:] >= submit[:-1])) and bool(np.all(ids[1:][tied] >= ids[:-1][tied])):
        return trace
    return trace.take(np.lexsort((ids, submit)))


def requests_of(trace: Trace) -> Requests:
    """The observable part of a trace that is sorted by (submit, id); a blank user or group is a user or group."""
    user, users = number(trace.user.codes)
    account, accounts = number(trace.account.codes)
    return Requests(
        submit=trace.submit_time,
        limit=trace.time_limit,
        gpus=np.nan_to_num(trace.num_gpus, nan=0.0),
        gpu_type=trace.gpu_type.codes,
        gpu_type_names=trace.gpu_type.names,
        nodes=np.maximum(trace.num_nodes, 0),
        cpus=trace.cpus,
        mem_gb=trace.mem_gb,
        partition=trace.partition.codes,
        partition_names=trace.partition.names,
        user=user,
        users=users,
        account=account,
        accounts=accounts,
        name=trace.job_name.codes,
        qos=trace.qos.codes,
        qos_count=len(trace.qos.names),
        priority=trace.priority,
        deadline=trace.deadline,
        # The most specific ones, where a trace has more than there are levels.
        keys=tuple(trace.keys[name].codes for name in KEY_COLUMNS if name in trace.keys)[-KEY_LEVELS:],
        **_asked(trace),
    )


def _count(text: str, column: str) -> int:
    """`2`, or `2@10:00` as `--switches` has it: for how long a job insists is not modelled."""
    number = text.partition("@")[0].strip()
    if not number.isdecimal():
        raise InputError(f"must be a whole number, got {text!r}", field=column)
    return int(number)


def _asked(trace: Trace) -> dict[str, Any]:
    """The columns that only some traces have; wishes and constraints share one list of names."""
    found: dict[str, Any] = {}
    if "gres" in trace.asked:
        found |= {"gres": trace.asked["gres"].codes, "gres_names": trace.asked["gres"].names}
    names: dict[str, int] = {}
    for column in ("constraint", "prefer"):
        if column in trace.asked:
            label = trace.asked[column]
            table = np.array([*(names.setdefault(n, len(names)) for n in label.names), -1], dtype=np.int32)
            found[column] = table[label.codes]
    if "exclusive" in trace.asked:
        label = trace.asked["exclusive"]
        yes = np.array([*(n.lower() not in _NO for n in label.names), False])
        found["exclusive"] = yes[label.codes]
    for column in ("switches", "segment"):
        if column in trace.asked:
            label = trace.asked[column]
            counts = np.array([*(_count(n, column) for n in label.names), 0], dtype=np.int64)
            found[column] = counts[label.codes]
    return found | {"constraint_names": tuple(names)}
