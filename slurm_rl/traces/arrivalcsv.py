"""Reads the simplest trace there is: a CSV with `arrival_time,runtime,gpus,priority`."""

from __future__ import annotations

import numpy as np

from slurm_rl.traces.assemble import assemble, header_of, layout_of, require
from slurm_rl.traces.files import Source
from slurm_rl.traces.table import parse
from slurm_rl.traces.trace import Trace

_EXPECTED = "arrival_time,runtime,gpus,priority"


def sniff(head: str) -> bool:
    return {"arrival_time", "runtime", "gpus"} <= {n.strip().lower() for n in head.split("\n", 1)[0].split(",")}


def read(source: Source) -> Trace:
    """Reads the four columns; a job's id is its row number unless there is a `job_id` column."""
    names = header_of(source, source.raw)
    require(source, names, ("arrival_time", "runtime", "gpus"), _EXPECTED)
    layout = layout_of(
        names,
        numbers=("arrival_time", "runtime", "gpus", "priority"),
        labels=("gpu_type", "user"),
        ids=("job_id",),
    )
    table = parse(source, source.raw, layout)
    gpus = table.checked("gpus")
    table.screen.drop(np.isnan(gpus), "gpus is blank")
    return assemble(
        table.screen,
        table.checked("arrival_time"),
        table.checked("runtime"),
        absolute=False,
        job_id=table.ids.get("job_id", np.arange(1, table.count + 1)),
        num_gpus=np.nan_to_num(gpus, nan=0.0),
        gpu_type=table.label("gpu_type"),
        user=table.label("user"),
        priority=table.checked("priority", low=-1e15),
    )
