"""Slurm's own metrics: every name that our Grafana dashboard asks for is served by slurmctld."""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.lab.lab import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.releases("26.05")]

DASHBOARD = Path(__file__).parents[3] / "etc" / "grafana" / "slurm-rl.json"


def test_slurmctld_serves_what_the_dashboard_asks_for(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab("a100:8*1", run_nodes=False)
    conf = lab.slurm_conf.read_text()
    lab.slurm_conf.write_text("MetricsType=metrics/openmetrics\n" + conf)
    running = lab.process("slurmctld")
    os.kill(running.pid, signal.SIGTERM)
    while running.alive():
        time.sleep(0.02)
    lab.restart("slurmctld")
    lab.run("sbatch", "--hold", "--output=/dev/null", "--wrap=true")
    port = re.search(r"^SlurmctldPort=(\d+)", conf, re.MULTILINE)
    assert port is not None
    served: dict[str, str] = {}
    for part in ("jobs", "nodes", "scheduler", "partitions"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics/{part}", timeout=30) as answer:
            rows = answer.read().decode().splitlines()
        served |= {row.partition("{")[0].split()[0]: row.split()[-1] for row in rows if row and row[0] != "#"}
    asked = set(re.findall(r"\bslurm_\w+", DASHBOARD.read_text()))
    assert len(asked) >= 10
    assert asked <= set(served)
    assert (served["slurm_jobs_hold"], served["slurm_jobs_running"]) == ("1", "0")
