"""The terms of priority/multifactor that are the same in a replay and live: size (M1) and partition (M3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from slurm_rl.kernel.arrays import Array

RELATIVE_TO_TIME = "SMALL_RELATIVE_TO_TIME"  # in PriorityFlags
RAW_PARTITION = "NO_NORMAL_PART"


def size_share(
    cpus: Array, nodes: Array, all_cpus: float, all_nodes: float, limit: Array, *, small: bool, relative: bool
) -> Array:
    """M1, as priority_multifactor.c has it: a job's share of the machine, from 0 to 1.

    `small`: PriorityFavorSmall; `relative`: SMALL_RELATIVE_TO_TIME, for which `limit` is in seconds.
    """
    if relative:
        minutes = np.maximum(limit // 60, 1)
        share = np.maximum(nodes * all_cpus / all_nodes, cpus) / minutes / all_cpus
        return np.clip(1.0 - share if small else share, 0.0, 1.0)
    by_nodes, by_cpus = nodes / all_nodes, cpus / all_cpus
    if small:
        by_nodes, by_cpus = 1.0 - by_nodes, 1.0 - by_cpus
    return np.clip(np.where(cpus > 0, (by_nodes + by_cpus) / 2, by_nodes), 0.0, 1.0)


def partition_shares(names: Iterable[str], factors: Mapping[str, float], *, raw: bool) -> Array:
    """M3: PriorityJobFactor of each partition as a share of the largest; `raw`: as it is (NO_NORMAL_PART)."""
    most = 1.0 if raw else max(factors.values(), default=0.0) or 1.0
    return np.array([factors.get(name, 0.0) / most for name in names] or [0.0])
