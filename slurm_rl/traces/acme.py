"""Reads Acme's `trace_seren.csv` and `trace_kalos.csv` (Shanghai AI Laboratory): one job a row, times with zones."""

from __future__ import annotations

import numpy as np

from slurm_rl.traces.assemble import assemble, header_of, known, layout_of, require
from slurm_rl.traces.files import Source
from slurm_rl.traces.table import parse
from slurm_rl.traces.trace import Trace

_EXPECTED = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time, with "
    "mem_per_pod_GB,shared_mem_per_pod,fail_time,stop_time in Kalos"
)


def sniff(head: str) -> bool:
    names = {n.strip().lower() for n in head.split("\n", 1)[0].split(",")}
    return {"gpu_num", "node_num", "type", "submit_time"} <= names and bool(names & {"gpu_time", "mem_per_pod_gb"})


def read(source: Source) -> Trace:
    """Reads a log: the run time is `duration`, else from start to the end, the stop or the failure.

    Jobs that never started are left out. GPU types are not recorded: all are A100. The kind of work is the job's name.
    """
    names = header_of(source, source.raw)
    require(source, names, ("job_id", "submit_time", "gpu_num"), _EXPECTED)
    ends = ("end_time", "stop_time", "fail_time")
    layout = layout_of(
        names,
        numbers=("gpu_num", "cpu_num", "node_num", "duration", "mem_per_pod_gb"),
        labels=("user", "type", "state"),
        times=("submit_time", "start_time", *ends),
        ids=("job_id",),
    )
    table = parse(source, source.raw, layout)
    start = table.time("start_time")
    end = np.full(table.count, np.nan)
    for name in ends:
        end = np.where(np.isnan(end), table.time(name), end)
    duration = known(table.number("duration"))
    run = np.where(np.isnan(duration), end - start, duration)
    table.screen.skip(np.isnan(start) & np.isnan(run), "the job never started")
    nodes = np.nan_to_num(known(table.number("node_num")), nan=0.0)
    return assemble(
        table.screen,
        table.time("submit_time"),
        run,
        absolute=True,
        job_id=table.ids["job_id"],
        num_gpus=np.nan_to_num(table.checked("gpu_num"), nan=0.0),
        num_nodes=nodes,
        cpus=known(table.number("cpu_num")),
        mem_gb=known(table.number("mem_per_pod_gb")) * np.maximum(nodes, 1.0),
        user=table.label("user"),
        status=table.label("state"),
        job_name=table.label("type"),
    )
