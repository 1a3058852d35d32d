"""The live side's promises: a submission's round trip, a tick over a large queue, and the service's memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perf.conftest import ROOT
from perf.live import NODES, PENDING, large_slurm
from perf.measure import Cost, Report, Row, best_of
from perf.releases import measure
from slurm_rl.config import Config
from slurm_rl.controller.estimates import RunTimes
from slurm_rl.controller.live_policy import load_policy
from slurm_rl.controller.slurm_snapshot import observe
from slurm_rl.controller.tick import Controller
from slurm_rl.decide import Guardrails
from slurm_rl.obs.journal import Journal
from slurm_rl.policy.checkpoint import save_model
from slurm_rl.policy.network import LAYOUT, unbounded

pytestmark = pytest.mark.perf

RATE, SECONDS = 200, 20


def a_network(folder: Path) -> str:
    """The first model that is shipped, else one of random weights: what it costs is the same."""
    shipped = sorted(p.parent for p in (ROOT / "models").glob("*/manifest.toml"))
    if shipped:
        return f"rl:{shipped[0]}"
    rng = np.random.default_rng(1)
    tensors = {name: rng.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in LAYOUT.items()} | unbounded()
    return f"rl:{save_model(folder / 'random', tensors, {'algorithm': 'none'}).path}"


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "sim"), str(ROOT / "tests")])
    return os.environ | {"PYTHONPATH": path}


def test_submissions(report: Report) -> None:
    """200 a second, one connection each, while ticks go over 10,000 jobs in the same process."""
    script = str(ROOT / "tests" / "perf" / "live.py")
    with tempfile.TemporaryDirectory(prefix="srl-") as directory:
        socket = str(Path(directory) / "s")
        serving = subprocess.Popen(
            [sys.executable, script, "serve", socket, "sjf@limit"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            text=True,
        )
        with serving:
            try:
                assert serving.stdout is not None
                assert serving.stdout.readline() == "ready\n"
                command = [sys.executable, script, "submit", socket, str(RATE), str(SECONDS)]
                done = subprocess.run(
                    command, capture_output=True, text=True, env=environment(), check=True, timeout=10 * SECONDS
                )
                status = Path(f"/proc/{serving.pid}/status").read_text()
            finally:
                serving.send_signal(signal.SIGTERM)
                serving.wait(timeout=60)
    said = json.loads(done.stdout)
    took = np.array(said["milliseconds"])
    assert len(took) == RATE * SECONDS
    assert said["advised"] > len(took) / 4, "most of the answers were empty"
    report.add(Row("submission at 200/s, p50", "ms", float(np.quantile(took, 0.5)), 1.0))
    report.add(Row("submission at 200/s, p99", "ms", float(np.quantile(took, 0.99)), 5.0))
    peak = int(next(row.split()[1] for row in status.splitlines() if row.startswith("VmHWM"))) / 1024
    report.add(Row("service over 10k jobs, peak memory", "MB", peak, 600))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("chrt") is None, reason="needs root and chrt")
def test_submissions_over_a_hundred_thousand_jobs(report: Report) -> None:
    """200 a second while ticks go over 100,000 jobs on 10,000 nodes, read from programs that print them.

    Service and client run at a real-time priority: on a machine at work, the clock would tell of the others.
    """
    first = ("chrt", "--rr", "5", sys.executable, str(ROOT / "tests" / "perf" / "live.py"))
    with tempfile.TemporaryDirectory(prefix="srl-") as directory:
        programs = [sys.executable, str(ROOT / "tests" / "perf" / "programs.py"), directory, "100000", "10000"]
        socket, conf = str(Path(directory) / "s"), str(Path(directory) / "slurm.conf")
        with subprocess.Popen(programs, stdout=subprocess.PIPE, env=environment(), text=True) as site:
            try:
                assert site.stdout is not None
                assert site.stdout.readline() == "ready\n"
                command = [*first, "serve", socket, "sjf-age@user", conf]
                with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True) as serving:
                    try:
                        assert serving.stdout is not None
                        assert any(line == "ready\n" for line in serving.stdout)
                        submit = [*first, "submit", socket, str(RATE), "60"]
                        done = subprocess.run(submit, stdout=subprocess.PIPE, text=True, env=environment(), check=True)
                        status = Path(f"/proc/{serving.pid}/status").read_text()
                    finally:
                        serving.send_signal(signal.SIGTERM)
                        serving.communicate(timeout=60)
            finally:
                site.terminate()
    said = json.loads(done.stdout)
    took = np.array(said["milliseconds"])
    assert said["advised"] > len(took) / 4, "most of the answers were empty"
    report.add(Row("submission over 100k jobs, p50", "ms", float(np.quantile(took, 0.5)), 1.0))
    report.add(Row("submission over 100k jobs, p99", "ms", float(np.quantile(took, 0.99)), 5.0))
    peak = int(next(row.split()[1] for row in status.splitlines() if row.startswith("VmHWM"))) / 1024
    report.add(Row("service over 100k jobs, peak memory", "MB", peak, 1500))


@pytest.mark.parametrize("kind", ["sjf-age@user", "network"])
def test_a_tick(report: Report, folder: Path, kind: str) -> None:
    policy = a_network(folder) if kind == "network" else kind
    slurm, chosen = large_slurm(), load_policy(policy)
    run_times, guardrails = RunTimes(), Guardrails(0.5, 172_800, 10.0)
    state = slurm.snapshot()
    observe(state, run_times, chosen.spec)
    observed = best_of(5, lambda: lambda: observe(state, run_times, chosen.spec))
    view = observe(state, run_times, chosen.spec)
    assert len(view.snapshot.pending) == PENDING
    assert len(view.state.nodes) == NODES

    def decide() -> Callable[[], object]:
        return lambda: chosen.plan(view.snapshot, guardrails, dict(view.weights))

    decide()()
    decided = best_of(7, decide)
    report.add(Row(f"decide, 10k on 1k nodes, {kind}", "ms", 1e3 * decided.cpu, 250, 1e3 * decided.wall))
    report.add(Row(f"observe, 10k on 1k nodes, {kind}", "ms", 1e3 * observed.cpu, None, 1e3 * observed.wall))
    report.add(_whole_tick(policy, kind))


def _whole_tick(policy: str, kind: str) -> Row:
    """All but Slurm's own part: observe, decide, diff, journal, advice and what is foreseen."""
    with tempfile.TemporaryDirectory(prefix="srl-") as state:
        slurm = large_slurm()
        config = Config(mode="enforce", policy=policy, updates_per_second=1e5, state_dir=state)
        controller = Controller(config, slurm, Journal(config.journal), clock=lambda: slurm.now)
        controller.tick()
        costs = []
        for _ in range(3):
            wall, cpu = time.perf_counter(), time.process_time()
            controller.tick()
            costs.append(Cost(time.perf_counter() - wall, time.process_time() - cpu))
        best = min(costs, key=lambda c: c.cpu)
        return Row(f"tick without RPCs, {kind}", "ms", 1e3 * best.cpu, None, 1e3 * best.wall)


def test_the_installed_slurm(report: Report) -> None:
    """Reading 10,000 jobs and writing 1,000 SiteFactors on a real slurmctld, by the clock."""
    release, snapshot, with_array, updates = measure("")
    report.add(Row(f"Slurm {release}: snapshot of 10,000 jobs", "s", snapshot, 1.5))
    report.add(Row(f"Slurm {release}: snapshot of 2,000 jobs and an array of 10,000", "s", with_array, 1.5))
    report.add(Row(f"Slurm {release}: 1,000 SiteFactors", "s", updates, 2.0))
