"""Replays of a few jobs, for tests of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builders import Job, a_cluster, a_trace

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl_sim.replay import Prepared, Run, parse_contenders, prepare, replay

ROOT = Path(__file__).resolve().parents[3]
Case = tuple[Prepared, list[Run]]


def a_case(jobs: Sequence[Job], policies: str, cluster: Cluster | None = None, backfill: str = "none") -> Case:
    """Jobs replayed under policies; the cluster is one node of four GPUs unless told otherwise."""
    prepared = prepare(a_trace(jobs), cluster or a_cluster(NodeClass(1, gpus=4, gpu_type="V100")))
    return prepared, replay(prepared, parse_contenders(policies, backfill))
