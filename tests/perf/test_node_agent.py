"""What the node agent costs: its own CPU time beside eight busy GPUs, and how often it calls NVML."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from fake_nvml import World, build

pytestmark = pytest.mark.perf

SECONDS = 60
GPUS = 8


def test_overhead_at_eight_gpus(tmp_path: Path) -> None:
    """A real agent for a minute, eight jobs with a process each on eight GPUs, scraped every 15 seconds."""
    library = build(tmp_path)
    world = World(tmp_path / "world", GPUS)
    spool = tmp_path / "spool"
    spool.mkdir()
    workers = []
    for i, gpu in enumerate(world):
        environment = os.environ | {"SLURM_JOB_ID": str(i + 1), "SLURM_JOB_GPUS": str(i)}
        workers.append(subprocess.Popen(["sleep", "1000"], env=environment))
        gpu.util = 50
        gpu.run(workers[-1].pid)
        (spool / f"n1_{i + 1}.4294967291").touch()
    command = [sys.executable, "-m", "slurm_rl", "node-agent", "--node", "n1", "--dir", str(tmp_path / "kept")]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command += ["--spool", str(spool), "--listen", f"127.0.0.1:{port}", "--conf", "/nowhere"]
    environment = os.environ | {"LD_LIBRARY_PATH": str(library), "NVML_WORLD": str(tmp_path / "world")}
    agent = subprocess.Popen(command, env=environment)
    try:
        deadline = time.monotonic() + 60
        while not answers(port):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        time.sleep(5)  # jobs are looked up, modules are loaded
        cpu, calls, began = cpu_seconds(agent.pid), world.state.calls, time.monotonic()
        for _ in range(SECONDS // 15):
            time.sleep(15)
            assert answers(port, "/metrics")
        elapsed = time.monotonic() - began
        share = (cpu_seconds(agent.pid) - cpu) / elapsed
        calls_a_second = (world.state.calls - calls) / elapsed
        memory = int(Path(f"/proc/{agent.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    finally:
        for process in (agent, *workers):
            process.terminate()
            process.wait()
    print(f"\nnode agent, {GPUS} GPUs: {share:.2%} of a core, {calls_a_second:.0f} NVML calls/s, {memory:.0f} MB")
    assert share <= 0.01
    assert calls_a_second <= 15 * GPUS


def answers(port: int, route: str = "/healthz") -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{route}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
