"""A driver that is replaced under a running agent: it starts itself anew, as the same process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from fake_nvml import MISMATCH, World

PROGRAM = """
import sys
from slurm_rl.telemetry import run
run._YOUNGEST_TO_RESTART = 0.0  # a test does not wait a minute
from slurm_rl.cli.app import main
main(sys.argv[1:])
"""


def test_a_replaced_driver_is_loaded_by_a_new_start(library: Path, tmp_path: Path) -> None:
    world = World(tmp_path / "world", 2)
    words = ["node-agent", "--node", "n1", "--dir", str(tmp_path / "kept"), "--spool", str(tmp_path), "--listen", ""]
    environment = os.environ | {"LD_LIBRARY_PATH": str(library), "NVML_WORLD": str(tmp_path / "world")}
    log = tmp_path / "log"
    with log.open("wb") as file:
        command = [sys.executable, "-c", PROGRAM, *words, "--interval", "0.1", "--conf", "/nowhere"]
        agent = subprocess.Popen(command, env=environment, stdout=file, stderr=file)

    def events() -> list[str]:
        lines = log.read_text().splitlines()
        return [json.loads(line)["event"] for line in lines if line.startswith("{") and line.endswith("}")]

    def until(count: int, event: str) -> None:
        deadline = time.monotonic() + 60
        while events().count(event) < count:
            assert agent.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    try:
        until(1, "sampling")
        world.state.init_error = MISMATCH
        until(1, "the driver was replaced: restarting to load its library")
        world.state.init_error = 0
        until(2, "sampling")
        calls = world.state.calls
        deadline = time.monotonic() + 60
        while world.state.calls < calls + 100:  # it reads again
            assert agent.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        agent.terminate()
        assert agent.wait(timeout=60) == 0
