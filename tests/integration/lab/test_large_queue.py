"""Large queues, on each release: a snapshot is exact, and takes at most 1.5 s (10,000 jobs, 200 nodes)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from slurm_rl.lab.lab import Lab
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import JobUpdate

from ..conftest import crowding
from .conftest import sbatch, separate_jobs

pytestmark = [pytest.mark.slurm, pytest.mark.releases]


def test_ten_thousand_jobs_and_two_hundred_nodes(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab("a100:8*100,t4:4*100", run_nodes=False)
    separate_jobs(lab, 10_000, "--gpus=a100:8", "--nodes=1", "--mem=1G")
    client = CliClient(lab.slurm_conf)
    began = time.monotonic()
    state = client.snapshot()
    print(f"{state.release}: {(time.monotonic() - began) / crowding():.2f} s")
    assert sum(j.pending for j in state.jobs) == 10_000
    assert sum(j.array_task_count for j in state.jobs) == 10_000
    assert len(state.nodes) == 200
    began = time.monotonic()
    written = client.update([JobUpdate.of(j, site_factor=1 + n) for n, j in enumerate(state.jobs[:1000])])
    print(f"{state.release}: 1,000 SiteFactors in {(time.monotonic() - began) / crowding():.2f} s")
    assert all(r.applied for r in written)
    shown = client.site_factors()
    assert [shown[j.job_id] for j in state.jobs[:1000]] == list(range(1, 1001))


def test_two_thousand_records_and_an_array_of_ten_thousand_tasks(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab("a100:8*2", run_nodes=False)
    separate_jobs(lab, 2000, "--gpus=a100:8", "--mem=1G")
    large = sbatch(lab, "--array=0-9999%50", "--gpus=a100:8", "--mem=1G")
    client = CliClient(lab.slurm_conf)
    began = time.monotonic()
    state = client.snapshot()
    print(f"{state.release}: {(time.monotonic() - began) / crowding():.2f} s")
    jobs = {j.job_id: j for j in state.jobs}
    assert len(jobs) == 2001
    assert (jobs[large].array_tasks, jobs[large].array_task_count) == ("0-9999", 10_000)
    assert jobs[large].array_max_running == 50
