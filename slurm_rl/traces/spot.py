"""Reads Alibaba's v2026 spot-GPU trace: `job_info_df.csv` (HP and Spot jobs) and `node_info_df.csv` (the cluster)."""

from __future__ import annotations

import numpy as np

from slurm_rl.traces.assemble import assemble, header_of, known, layout_of, renamed, require
from slurm_rl.traces.files import Source
from slurm_rl.traces.table import parse
from slurm_rl.traces.trace import Labels, Trace

_EXPECTED = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type"
HIGH, SPOT = 1.0, 0.0  # submitters' priorities: with --preempt a Spot job gives way to an HP job


def sniff(head: str) -> bool:
    names = {n.strip().lower() for n in head.split("\n", 1)[0].split(",")}
    return {"gpu_model", "worker_num", "gpu_request", "job_type"} <= names


def sniff_files(files: dict[str, bytes]) -> bool:
    return any("job_info_df" in name for name in files)


def read(source: Source) -> Trace:
    """Reads jobs: requests are those of one worker, and all workers run together.

    HP jobs have priority 1 and Spot jobs 0, which `--policy static-priority --preempt` honours; `qos` says HP or Spot.
    """
    raw = next((raw for name, raw in source.files.items() if "job_info_df" in name), source.raw)
    names = header_of(source, raw)
    require(source, names, ("job_name", "gpu_request", "worker_num", "submit_time", "duration"), _EXPECTED)
    layout = layout_of(
        names,
        numbers=("cpu_request", "gpu_request", "worker_num", "duration"),
        labels=("organization", "gpu_model", "job_type"),
        times=("submit_time",),
        ids=("job_name",),
    )
    table = parse(source, raw, layout)
    workers = np.maximum(np.nan_to_num(known(table.number("worker_num")), nan=1.0), 1.0)
    kind = table.label("job_type")
    lower = [name.strip().lower() for name in kind.names]
    odd = np.array([name not in ("hp", "spot") for name in lower] + [True])[kind.codes]
    table.screen.note(odd, "job_type is neither HP nor Spot: taken as HP")
    spot = np.array([name == "spot" for name in lower] + [False])[kind.codes]
    return assemble(
        table.screen,
        table.time("submit_time"),
        table.checked("duration"),
        absolute=False,
        job_id=table.ids["job_name"],
        num_gpus=np.nan_to_num(table.checked("gpu_request"), nan=0.0) * workers,
        gpu_type=_models(table.label("gpu_model")),
        num_nodes=np.where(table.checked("gpu_request") >= 1.0, workers, 0.0),
        cpus=known(table.number("cpu_request")) * workers,
        user=table.label("organization"),
        account=table.label("organization"),
        qos=Labels.of(["Spot" if s else "HP" for s in spot.tolist()]),
        priority=np.where(spot, SPOT, HIGH),
    )


def _models(labels: Labels) -> Labels:
    """GPU models; a job without one may run on any."""
    return renamed(labels, {name: "" for name in labels.names if name.lower() in ("none", "nan", "cpu")})
