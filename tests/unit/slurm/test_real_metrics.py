"""What a real run's table has besides its metrics, and which work a job does."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.lab.real_metrics import COLUMNS, append, entropy, policy_entropy
from slurm_rl.lab.workloads import WORKLOADS, commands_of
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import make_trace
from slurm_rl_sim.replay import prepare

ONE = Cluster("one", (NodeClass(1, "A100", 1, 8, 64.0),))


def test_entropy_is_that_of_the_choice_of_the_next_job() -> None:
    """Two nearly equal jobs wait: almost a coin's toss. Without a network there is no draw."""
    assert entropy(np.zeros(2)) == pytest.approx(math.log(2))
    assert entropy(np.array([0.0, 1000.0])) == pytest.approx(0.0)
    assert entropy(np.array([0.0, math.inf, 1.0])) == 0.0  # one that starves goes first
    assert entropy(np.array([0.0, 0.0, -math.inf])) == pytest.approx(math.log(2))
    trace = make_trace("t", [0, 1, 1], run_time=[100, 50, 50], time_limit=[600, 600, 600], num_gpus=[1, 1, 1])
    prepared = prepare(trace, ONE)
    found = policy_entropy(prepared, "rl:default")
    assert found is not None
    assert 0.5 < found <= math.log(2)
    assert policy_entropy(prepared, "fcfs") is None


def test_rows_are_added_below_one_header(tmp_path: Path) -> None:
    row: dict[str, object] = dict.fromkeys(COLUMNS, 1.5) | {"sla": None}
    path = tmp_path / "real_system_metrics.csv"
    append(path, [row])
    append(path, [row])
    lines = path.read_text().splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert len(lines) == 3
    assert ",," in lines[1]


def test_jobs_run_their_command_or_work_of_their_kind(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("job_id,submit_time,run_time,num_gpus,command\n1,0,9,1,./train.sh\n2,0,9,1,\n3,0,9,0,\n")
    trace = read_trace(path)
    assert "ignored_columns" not in trace.meta
    found = commands_of(path, trace)
    assert found["1"] == "./train.sh"
    assert any(f"workloads {kind} --seconds 9" in found["2"] for kind in ("cnn", "transformer"))
    assert "workloads etl --seconds 9" in found["3"]


@pytest.mark.parametrize("kind", sorted(WORKLOADS))
def test_each_kind_of_work_makes_steps(kind: str) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    steps = WORKLOADS[kind](torch)
    values = [next(steps) for _ in range(12)]
    assert all(value == value for value in values)
    if kind != "etl":
        assert values[-1] < values[0]  # it learns


def test_a_job_loads_no_more_of_torch_than_it_needs() -> None:
    """Loading counts as the job's time, as many times as the clock is fast: torch's compiler would double it."""
    pytest.importorskip("torch")
    program = (
        "import sys, time; from slurm_rl.lab.workloads import work; "
        "assert work('cnn', 0.0, time.monotonic()) == 1; "
        "import torch; print(torch.get_num_threads(), 'torch._dynamo' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["1", "False"]
