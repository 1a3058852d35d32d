"""Reads the node lists that published traces come with, as clusters."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from pathlib import Path

from slurm_rl.domain.cluster import KNOWN_GPUS, Cluster, NodeClass, default_watts
from slurm_rl.errors import InputError
from slurm_rl.traces.files import load, source_of, trace_name

_KNOWN = "openb_node_list (sn,cpu_milli,memory_mib,gpu,model), pai_machine_spec, node_info_df, Philly's list"
_Shape = tuple[str, int, int | None, float | None]  # GPU type, GPUs, CPUs, memory in GB


def read_nodes(path: str | Path) -> Cluster:
    """A cluster of one partition from openb_node_list, node_info_df, pai_machine_spec or cluster_machine_list."""
    path = Path(path)
    stored, _, is_directory = load(path)
    source = source_of(path, stored, is_directory)
    rows = list(csv.reader(io.StringIO(source.raw.decode("utf-8", errors="replace"))))
    rows = [[f.strip() for f in row] for row in rows if any(row)]
    if not rows:
        raise source.error("the file is empty")
    shapes: Counter[_Shape] = Counter()
    for line, row in enumerate(rows, 1):
        if line == 1 and not any(re.fullmatch(r"\d+(\.\d+)?", f) for f in row):
            continue  # a header
        try:
            shapes[_shape(row)] += 1
        except (ValueError, IndexError):
            raise InputError(f"unreadable node {row!r}", file=str(path), line=line, remedy=f"known: {_KNOWN}") from None
    classes = [
        NodeClass(count, kind, gpus, cpus, mem, "batch", _speed(kind), *default_watts(kind, gpus))
        for (kind, gpus, cpus, mem), count in sorted(shapes.items(), key=lambda item: (-item[1], str(item[0])))
    ]
    return Cluster(trace_name(path), tuple(classes))


def _shape(row: list[str]) -> _Shape:
    if len(row) == 3:  # m31,8, 24GB
        return f"GPU-{row[2]}", int(row[1]), None, None
    if len(row) == 4:  # node_name,gpu_model,gpu_capacity_num,cpu_num
        gpus = int(float(row[2]))
        return row[1] if gpus else "", gpus, int(float(row[3])), None
    if len(row) != 5:
        raise ValueError
    if re.fullmatch(r"\d+(\.\d+)?", row[1]):  # sn,cpu_milli,memory_mib,gpu,model
        gpus = int(float(row[3]))
        return row[4] if gpus else "", gpus, int(float(row[1])) // 1000, float(row[2]) / 1024
    gpus = int(float(row[4]))  # machine,gpu_type,cap_cpu,cap_mem,cap_gpu
    return row[1] if gpus else "", gpus, int(float(row[2])), float(row[3])


def _speed(kind: str) -> float:
    key = next((k for k in KNOWN_GPUS if kind.upper().startswith(k)), "")
    return KNOWN_GPUS[key].speed if key else 1.0
