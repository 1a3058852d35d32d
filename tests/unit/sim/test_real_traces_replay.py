"""Real traces replay end to end, and nothing is lost: every job is completed, killed or rejected with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slurm_rl.domain.cluster import read_cluster
from slurm_rl.kernel.build import build
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.limits import with_time_limits
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.simulation import ReplayState
from slurm_rl_sim.state import COMPLETED, KILLED, REJECTED
from slurm_rl_sim.workload import requests_of, sorted_by_id

SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces"
NAMES = (
    "helios_venus_sept2020",
    "alibaba_openb_v2023",
    "alibaba_openb_v2023_gpuspec33",
    "drac_cedar_2021_queued",
    "microsoft_itp_2021",
    "alibaba_pai_2020_jobpool",
    "pwa_ricc_2010",
)
MOST = {"fcfs": 150_000, "multifactor": 25_000}  # jobs: the whole of all but the longest traces, in seconds


def a_trace(name: str) -> Trace:
    path = SHARED / f"{name}.csv.gz"
    if not path.is_file():
        pytest.skip(f"../shared/traces/{path.name} is not here")
    return sorted_by_id(with_time_limits(read_trace(path)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", ["fcfs", "multifactor"])
def test_nothing_is_lost(name: str, policy: str) -> None:
    trace = a_trace(name)
    trace = trace.take(np.arange(min(len(trace), MOST[policy])))
    workload = build(requests_of(trace), read_cluster(SHARED / f"{name}.cluster.json"))
    simulation = ReplayState(workload, trace.run_time.astype(np.float64), parse_policy(policy), backfill="easy")
    assert simulation.run()
    live = simulation.world["live"]
    count = np.bincount(live["state"], minlength=6)
    assert count[COMPLETED] + count[KILLED] + count[REJECTED] == len(trace)
    assert count[REJECTED] == len(workload.rejected) < len(trace)
    ran = live["state"] != REJECTED
    assert (live["start"][ran] >= trace.submit_time[ran]).all()
    killed = live["state"] == KILLED
    assert (live["end"][killed] - live["start"][killed] == workload.jobs["limit"][killed]).all()
    # Everything was given back.
    assert (simulation.world["free"][0, :, 0] == workload.nodes["cpu"]).all()
    assert (simulation.world["free"][0, :, 2] == workload.nodes["gpu"]).all()
