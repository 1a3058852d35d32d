"""Measured watts instead of published ones: GPU types' idle and busy power into a cluster's nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slurm_rl.domain.cluster import Cluster, NodeWatts, default_watts
from slurm_rl.telemetry.account import Watts

LEAST_SECONDS = 3600.0  # of GPUs held, and of GPUs free, before their mean is believed


@dataclass(frozen=True, slots=True)
class Fitted:
    """A GPU type: watts of one card while no job holds it and while one does, and from how many GPU-hours."""

    gpu_type: str
    idle: float
    busy: float
    free_hours: float
    held_hours: float


def fit(sums: Mapping[str, Watts], gpu_type: str, least: float = LEAST_SECONDS) -> Fitted | None:
    """The mean power of a type, as far as it was measured long enough both held and free.

    The energy metric reckons a GPU that is allocated as busy. So busy is the mean while a job holds a GPU, whatever
    the job does with it, and not the power at full load.
    """
    found = [w for name, w in sums.items() if _same(name, gpu_type)]
    free, held = sum(w.free_seconds for w in found), sum(w.held_seconds for w in found)
    if free < least or held < least:
        return None
    idle, busy = sum(w.free_joules for w in found) / free, sum(w.held_joules for w in found) / held
    return Fitted(gpu_type, idle, busy, free / 3600, held / 3600)


def measured_cluster(
    cluster: Cluster, sums: Mapping[str, Watts], least: float, node: tuple[float, float] | None = None
) -> tuple[Cluster, list[Fitted]]:
    """The cluster with measured watts where there are enough measurements; all else stays as it is.

    `node` is what a node draws without its GPUs, idle and busy: agents do not measure it.
    """
    classes, fitted = [], {}
    for c in cluster.classes:
        found = fit(sums, c.gpu_type, least) if c.gpus and c.gpu_type else None
        if found is None:
            classes.append(c)
            continue
        fitted[c.gpu_type] = found
        idle, busy = node or default_watts(c.gpu_type, 0)
        watts = [round(own + c.gpus * gpu, 1) for own, gpu in ((idle, found.idle), (busy, found.busy))]
        classes.append(replace(c, watts_idle=watts[0], watts_busy=watts[1]))
    return replace(cluster, classes=tuple(classes)), list(fitted.values())


def measured_watts(sums: Mapping[str, Watts], least: float = LEAST_SECONDS) -> NodeWatts:
    """A node's idle and busy watts: its GPUs' as measured if there are enough measurements, else as published."""
    fitted: dict[str, Fitted | None] = {}

    def watts(gpu_type: str, gpus: int) -> tuple[float, float]:
        if gpu_type not in fitted:
            fitted[gpu_type] = fit(sums, gpu_type, least) if gpu_type else None
        found = fitted[gpu_type]
        if found is None or not gpus:
            return default_watts(gpu_type, gpus)
        idle, busy = default_watts(gpu_type, 0)
        return idle + gpus * found.idle, busy + gpus * found.busy

    return watts


def _same(measured: str, gpu_type: str) -> bool:
    """`a100` is Slurm's `A100`, and NVIDIA's `NVIDIA A100-SXM4-40GB` where Slurm names no type."""
    return gpu_type.lower() in [measured.lower(), *re.split(r"[^a-z0-9]+", measured.lower())]
