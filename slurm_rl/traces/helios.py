"""Reads Helios' `cluster_log.csv` (SenseTime): one Slurm job a row, dates as text, virtual clusters as partitions."""

from __future__ import annotations

import numpy as np

from slurm_rl.traces.assemble import assemble, header_of, layout_of, require
from slurm_rl.traces.files import Source
from slurm_rl.traces.table import parse
from slurm_rl.traces.trace import Trace

_EXPECTED = "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"


def sniff(head: str) -> bool:
    return {"gpu_num", "cpu_num", "submit_time", "vc"} <= {n.strip() for n in head.split("\n", 1)[0].split(",")}


def read(source: Source) -> Trace:
    """Reads a log; the run time is `duration`, else from start to end. GPU types are not recorded."""
    names = header_of(source, source.raw)
    require(source, names, ("job_id", "submit_time", "gpu_num"), _EXPECTED)
    layout = layout_of(
        names,
        numbers=("gpu_num", "cpu_num", "node_num", "duration"),
        labels=("user", "vc", "jobname", "state"),
        times=("submit_time", "start_time", "end_time"),
        ids=("job_id",),
    )
    table = parse(source, source.raw, layout)
    submit, start, end = table.time("submit_time"), table.time("start_time"), table.time("end_time")
    duration = table.checked("duration")
    return assemble(
        table.screen,
        submit,
        np.where(np.isnan(duration), end - start, duration),
        absolute=True,
        job_id=table.ids["job_id"],
        num_gpus=np.nan_to_num(table.checked("gpu_num"), nan=0.0),
        num_nodes=np.nan_to_num(table.checked("node_num"), nan=0.0),
        cpus=table.checked("cpu_num"),
        user=table.label("user"),
        partition=table.label("vc"),
        status=table.label("state"),
        job_name=table.label("jobname"),
    )
