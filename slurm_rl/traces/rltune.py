"""Reads RLTune's 19-column CSV: the fields of SWF with GPUs for processors, then the virtual cluster and GPU type."""

from __future__ import annotations

import numpy as np

from slurm_rl.traces.assemble import assemble, known, renamed
from slurm_rl.traces.files import Source
from slurm_rl.traces.table import ColumnLayout, parse, whole
from slurm_rl.traces.trace import Trace

_NAMES = (
    "job_id submit_time wait_time run_time num_gpus cpu_time used_memory request_cpus request_time request_memory "
    "status user group executable queue partition preceding_job vc gpu_type"
).split()
_TYPES = {"0": "T4", "1": "MISC", "2": "P100", "3": "V100_16GB", "4": "V100_32GB", "-1": ""}
_STATUS = {"0": "FAILED", "1": "COMPLETED", "5": "CANCELLED", "-1": ""}  # as in SWF; other codes stay numbers
_UNKNOWN = {"-1": ""}


def sniff(head: str) -> bool:
    """True for 19 fields without a header: numbers everywhere but in the first."""
    fields = head.split("\n", 1)[0].strip().split(",")
    return len(fields) == len(_NAMES) and all(_is_number(f) for f in fields[1:17]) and fields[18].strip() in _TYPES


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read(source: Source) -> Trace:
    """Reads a trace; -1 is unknown, memory is in GB, and a job's GPU type is one of five codes."""
    layout = ColumnLayout(
        tuple(_NAMES),
        numbers=("submit_time", "run_time", "num_gpus", "request_cpus", "request_time", "request_memory"),
        labels=("status", "user", "group", "queue", "vc", "gpu_type"),
        ids=("job_id",),
        header=False,
    )
    table = parse(source, source.raw, layout)
    unread = [n for n in table.labels["gpu_type"].names if n not in _TYPES]
    for name in unread:
        code = table.labels["gpu_type"].names.index(name)
        table.screen.drop(table.labels["gpu_type"].codes == code, f"gpu_type {name!r} is none of 0 to 4 and -1")
    numbers = {name: known(table.checked(name, low=-1)) for name in layout.numbers}
    limit = numbers["request_time"]
    gpus = numbers["num_gpus"]
    table.screen.drop(np.isnan(gpus), "num_gpus is unknown")
    return assemble(
        table.screen,
        numbers["submit_time"],
        numbers["run_time"],
        absolute=False,
        job_id=table.ids["job_id"],
        time_limit=whole(np.where(limit > 0, limit, np.nan), blank=-1),
        num_gpus=np.nan_to_num(gpus, nan=0.0),
        gpu_type=renamed(table.label("gpu_type"), _TYPES),
        cpus=numbers["request_cpus"],
        mem_gb=numbers["request_memory"],
        user=renamed(table.label("user"), _UNKNOWN),
        account=renamed(table.label("group"), _UNKNOWN),
        partition=renamed(table.label("vc"), _UNKNOWN),
        qos=renamed(table.label("queue"), _UNKNOWN),
        status=renamed(table.label("status"), _STATUS),
    )
