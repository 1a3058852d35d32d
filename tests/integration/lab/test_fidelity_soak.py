"""120 jobs on a live lab at 120 times real time, twice, beside the simulator."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.soak]
PROGRAM = [sys.executable, "-c", "from slurm_rl.cli import main; main()"]
NODES = [
    {"count": 2, "gpu_type": "A100", "gpus": 8, "cpus": 64, "mem_gb": 512, "partition": "batch"},
    {"count": 2, "gpu_type": "T4", "gpus": 4, "cpus": 32, "mem_gb": 256, "partition": "batch"},
]


def test_a_live_lab_agrees_with_the_simulator(tmp_path: Path) -> None:
    cluster, trace = tmp_path / "t.cluster.json", tmp_path / "t.csv"
    cluster.write_text(json.dumps(NODES))
    made = ["--cluster", str(cluster), "--jobs", "120", "--days", "0.04", "--load", "1.5", "--users", "12"]
    options = [*made, "--max-gpus", "8", "--seed", "19"]
    subprocess.check_output([*PROGRAM, "traces", "generate", "--out", str(trace), *options])
    began = time.monotonic()
    asked = ["fidelity", str(trace), "--cluster", str(cluster), "--clock", "120", "--runs", "2", "--json"]
    value = json.loads(subprocess.check_output([*PROGRAM, *asked], text=True))
    seconds = time.monotonic() - began
    floor, found = value["floor"][0], value["lengths"]
    assert floor["jobs"] == 120
    assert seconds / 2 < 180  # a run of 120 jobs, its lab included
    assert floor["tau"] > 0.8
    assert all(a["tau"] > floor["tau"] - 0.15 for a in found)
