"""AccaSim 1.1.3, the peer: installed into an environment of its own and run as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = ("accasim==1.1.3", "setuptools<81")  # it imports pkg_resources, which later setuptools lack
RUNNER = Path(__file__).with_name("peer_run.py")


class Unavailable(Exception):
    """AccaSim could not be installed; the message says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """What AccaSim did and what it took."""

    start: dict[int, int]
    wall: float
    cpu: float


def install(folder: Path) -> Path:
    """Makes the environment once; the path of its python."""
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if ready.exists():
        return python
    for step in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "-q", *REQUIREMENTS],
    ):
        done = subprocess.run(step, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise Unavailable(f"{' '.join(step[1:4])} … failed: {' '.join(last)}")
    ready.touch()
    return python


def run(python: Path, workload: Path, nodes: int, cores: int, dispatcher: str) -> Run:
    """Replays an SWF file on `nodes` nodes of `cores` cores."""
    system = workload.with_name(f"accasim-{nodes}x{cores}.json")
    description = {
        "system_name": "bench",
        "start_time": 0,
        "equivalence": {"processor": {"core": 1}},
        "groups": {"node": {"core": cores}},
        "resources": {"node": nodes},
    }
    system.write_text(json.dumps(description))
    command = [str(python), str(RUNNER), str(workload), str(system), dispatcher]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=workload.parent, check=False)
    if done.returncode:
        raise RuntimeError(f"AccaSim failed: {done.stderr.strip().splitlines()[-1:]}")
    value = json.loads(done.stdout)
    return Run({int(j): s for j, s in value["started"].items()}, value["wall"], value["cpu"])
