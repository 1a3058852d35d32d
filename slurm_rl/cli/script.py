"""Runs a training script as Slurm would under a time limit: a warning, then SIGTERM, then SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def run_script(
    script: Path, args: Sequence[str], budget: float, warn: float, policy: str, *, quiet: bool
) -> dict[str, Any]:
    """What happened: events of its Grower in seconds since the start, the time it took, and its exit code."""
    with tempfile.TemporaryDirectory(prefix="slurm-rl-grow-") as scratch:
        log = Path(scratch) / "events"
        began = time.time()
        env = os.environ | {
            "SLURM_RL_BUDGET_END": str(began + budget),
            "SLURM_RL_GROW_LOG": str(log),
            "SLURM_RL_GROW_POLICY": policy,
        }
        # A warning before the script listens, while it still imports torch, must not end it.
        words = ["/bin/sh", "-c", 'trap "" USR1; exec "$@"', "sh", sys.executable, str(script), *args]
        process = subprocess.Popen(words, env=env, stdout=2 if quiet else None)
        schedule = [(budget, signal.SIGTERM), (budget + _GRACE, signal.SIGKILL)]
        if 0 < warn < budget:
            schedule.insert(0, (budget - warn, signal.SIGUSR1))
        try:
            for at, number in schedule:
                try:
                    process.wait(max(began + at - time.time(), 0.0))
                    break
                except subprocess.TimeoutExpired:
                    process.send_signal(number)
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        seconds = time.time() - began
        lines = log.read_text().splitlines() if log.exists() else []
    events = [json.loads(line) for line in lines]
    told = [{"at": round(e.pop("time") - began, 3), **e} for e in events]
    return {"events": told, "seconds": round(seconds, 3), "budget": budget, "exit_code": code}
