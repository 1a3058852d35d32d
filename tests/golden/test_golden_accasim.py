"""Strict FCFS and strict SJF on a homogeneous pool, start by start as another simulator gives them.

Recorded from AccaSim 1.1.3 by `record_accasim.py`: its FIFO and SJF dispatchers (by requested time) with first-fit
allocation, which stops at the first job that does not fit. Both are `--backfill none` here. Ties go by submit time and
then by id in both; AccaSim adds no overhead to a start. EASY is not compared: AccaSim gives no node at all to
a job that would overlap the reservation, where ours may use the extra (docs/backfill.md).
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.kernel.build import build
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.read import read_trace
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.workload import requests_of, sorted_by_id

HERE = Path(__file__).parent


@pytest.mark.parametrize(("policy", "column"), [("fcfs", "fifo"), ("sjf", "sjf")])
@pytest.mark.parametrize("nodes", [1, 8], ids=["one node of 64", "8 nodes of 8"])
def test_same_starts_as_accasim(policy: str, column: str, nodes: int) -> None:
    with (HERE / "accasim_starts.csv").open() as f:
        recorded = {int(row["job_id"]): int(row[column]) for row in csv.DictReader(f)}
    trace = sorted_by_id(read_trace(HERE / "accasim.swf", cache=False))
    workload = build(requests_of(trace), Cluster("pool", (NodeClass(nodes, cpus=64 // nodes),)))
    simulation = ReplayState(workload, trace.run_time.astype(np.float64), parse_policy(policy), backfill="none")
    simulation.run()
    starts = dict(zip(trace.job_id.tolist(), simulation.world["live"]["start"].tolist(), strict=True))
    assert len(recorded) == 500
    assert starts == recorded
