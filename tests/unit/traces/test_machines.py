"""Machines unlike the sample are what their names say, and the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slurm_rl.errors import InputError
from slurm_rl.traces.machines import MACHINES, machine
from slurm_rl_sim.replay import prepare
from tests.unit.evaluate.test_paired import call


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_has_its_jobs_and_every_one_of_them_fits(name: str) -> None:
    trace, cluster = machine(name, jobs=600, seed=4)
    again, _ = machine(name, jobs=600, seed=4)
    other, _ = machine(name, jobs=600, seed=5)
    assert len(trace) == 600
    assert np.array_equal(trace.run_time, again.run_time)
    assert not np.array_equal(trace.run_time, other.run_time)
    assert (trace.run_time <= trace.time_limit).all()
    assert prepare(trace, cluster).workload.rejected == {}


def test_a_capability_machine_runs_wide_jobs_on_whole_nodes() -> None:
    trace, cluster = machine("capability")
    assert cluster.gpus == 0
    assert cluster.nodes == 4096
    assert (trace.num_nodes.min(), trace.num_nodes.max()) == (128, 4096)
    assert (trace.cpus == 64 * trace.num_nodes).all()
    offered = float((trace.run_time * trace.num_nodes).sum()) / (cluster.nodes * trace.span()[1])
    assert 0.75 < offered < 0.85


def test_high_throughput_is_single_cores() -> None:
    trace, _ = machine("throughput", jobs=5000)
    assert (trace.cpus == 1).all()
    assert np.median(trace.run_time) < 3600


def test_one_user_has_nearly_all_of_the_load() -> None:
    trace, _ = machine("one-user")
    work = trace.run_time * trace.num_gpus
    mine = np.array(list(trace.user.strings())) == "u000"
    assert 0.93 < float(work[mine].sum() / work.sum()) < 0.97
    assert len(set(trace.user.strings())) > 20


def test_an_interactive_partition_stands_beside_the_batch_one() -> None:
    trace, cluster = machine("interactive", jobs=1000)
    assert set(cluster.partitions) == {"interactive", "batch"}
    short = np.array(list(trace.partition.strings())) == "interactive"
    assert np.median(trace.run_time[short]) < np.median(trace.run_time[~short])


def test_the_command_makes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "wide.csv.gz"
    code, said = call(capsys, "traces", "generate", "--out", str(out), "--machine", "capability", "--jobs", "50")
    assert isinstance(said, dict)
    assert (code, said["jobs"]) == (0, 50)
    with pytest.raises(InputError, match="machine"):
        machine("nonesuch")
