"""Two ranks (gloo) grow alike, and keep the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch


def test_two_ranks_grow_alike(tmp_path: Path) -> None:
    worker = Path(__file__).with_name("ddp_worker.py")
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(worker), str(rank), str(tmp_path)], env=env, stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    try:
        for process in ranks:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said
    finally:
        for process in ranks:
            process.kill()
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    assert len(first["steps"]) >= 3
    assert first["steps"] == second["steps"]
    assert {s["action"] for s in first["steps"]} == {"widen", "deepen"}
    for name, tensor in first["state"].items():
        assert torch.equal(tensor, second["state"][name]), name
    assert first["losses"] != second["losses"], "each had its own data"
    assert first["losses"][-1] < first["losses"][0]
