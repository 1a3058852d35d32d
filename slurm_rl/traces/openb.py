"""Reads Alibaba's v2023 GPU trace: `openb_pod_list` (pods that share GPUs) and `openb_node_list` (the cluster)."""

from __future__ import annotations

import numpy as np

from slurm_rl.traces.assemble import assemble, header_of, layout_of, require
from slurm_rl.traces.files import Source
from slurm_rl.traces.table import parse
from slurm_rl.traces.trace import Trace

_EXPECTED = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
)


def sniff(head: str) -> bool:
    return {"cpu_milli", "num_gpu", "gpu_milli"} <= {n.strip() for n in head.split("\n", 1)[0].split(",")}


def sniff_files(files: dict[str, bytes]) -> bool:
    return any("openb_pod_list" in name for name in files)


def read(source: Source) -> Trace:
    """Reads pods: thousandths of GPUs and CPUs become fractions, and a pod runs from its scheduling to its deletion."""
    raw = next((raw for name, raw in source.files.items() if "openb_pod_list" in name), source.raw)
    names = header_of(source, raw)
    require(source, names, ("name", "num_gpu", "creation_time", "deletion_time"), _EXPECTED)
    layout = layout_of(
        names,
        numbers=("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time"),
        labels=("gpu_spec", "qos", "pod_phase"),
        ids=("name",),
    )
    table = parse(source, raw, layout)
    count, milli = table.checked("num_gpu"), table.checked("gpu_milli")
    scheduled, deleted = table.checked("scheduled_time"), table.checked("deletion_time")
    table.screen.skip(np.isnan(scheduled), "the pod was never scheduled")
    return assemble(
        table.screen,
        table.checked("creation_time"),
        deleted - scheduled,
        absolute=False,
        job_id=table.ids["name"],
        num_gpus=np.round(np.nan_to_num(count) * np.where(np.isnan(milli), 1000.0, milli) / 1000.0, 6),
        gpu_type=table.label("gpu_spec"),
        num_nodes=np.ones(table.count),
        cpus=table.checked("cpu_milli") / 1000.0,
        mem_gb=table.checked("memory_mib") / 1024.0,
        qos=table.label("qos"),
        status=table.label("pod_phase"),
    )
