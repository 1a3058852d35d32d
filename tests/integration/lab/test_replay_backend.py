"""`replay --backend slurm`: a trace on a real slurmctld, with the report of a simulation, and no job left behind."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.lab.lab import Lab

from .conftest import wait_until
from .test_lab_lifecycle import processes_with

pytestmark = [pytest.mark.slurm]
StartLab = Callable[..., Lab]
PROGRAM = [sys.executable, "-c", "from slurm_rl.cli import main; main()", "replay"]
CLUSTER = [{"count": 2, "gpu_type": "A100", "gpus": 4, "cpus": 32, "mem_gb": 64, "partition": "batch"}]


@pytest.fixture
def trace(tmp_path: Path) -> Callable[..., Path]:
    (tmp_path / "t.cluster.json").write_text(json.dumps(CLUSTER))

    def write(rows: list[tuple[int, int, int, int, str]]) -> Path:
        path = tmp_path / "t.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow("job_id,submit_time,run_time,time_limit,num_gpus,num_nodes,user".split(","))
            for i, (submit, run, limit, gpus, user) in enumerate(rows, 1):
                writer.writerow([i, submit, run, limit, gpus, 1 if gpus <= 4 else 2, user])
        return path

    return write


def replay(path: Path, *options: str, tmpdir: Path) -> dict[str, Any]:
    # torch makes a directory for itself
    env = os.environ | {"TMPDIR": str(tmpdir), "TORCHINDUCTOR_CACHE_DIR": str(path.parent)}
    command = [*PROGRAM, str(path), "--backend", "slurm", "--json", *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture
def tmpdir(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A short directory for labs, which must be empty in the end."""
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="srl-b-"))
    path.chmod(0o755)
    yield path
    assert list(path.iterdir()) == []
    assert processes_with(str(path)) == []
    path.rmdir()


def test_a_trace_runs_and_reports_as_in_simulation(trace: Callable[..., Path], tmpdir: Path, tmp_path: Path) -> None:
    # The second waits for the first; the third, short and small, may go ahead; the fourth is killed at its
    # limit; the fifth can never run.
    path = trace([(0, 300, 600, 8, "u"), (10, 120, 600, 8, "u"), (20, 60, 120, 1, "u"), (30, 900, 60, 4, "v")])
    with path.open("a") as file:
        file.write("5,40,60,60,9,1,u\n")
    out = tmp_path / "jobs.csv"
    options = ("--clock", "120", "--policy", "fcfs", "--jobs-out", str(out), "--record", str(tmp_path / "run.csv"))
    value = replay(path, *options, "--report", str(tmp_path / "report.html"), tmpdir=tmpdir)
    run = value["runs"][0]
    assert run["policy"] == "fcfs"
    assert run["backfill"] == "sched/backfill"
    figures = run["metrics"]
    assert (figures["jobs"], figures["completed"], figures["killed"], figures["rejected"]) == (5, 3, 1, 1)
    assert 0 < figures["utilization"] <= 1
    with out.open() as file:
        jobs = {row["job_id"]: row for row in csv.DictReader(file)}
    assert int(jobs["2"]["start_time"]) >= int(jobs["1"]["end_time"])
    assert int(jobs["1"]["end_time"]) - int(jobs["1"]["start_time"]) >= 300
    assert jobs["4"]["state"] == "TIMEOUT"
    assert jobs["5"]["state"] == "REJECTED"
    assert (jobs["1"]["nodes"], jobs["1"]["gpus"], jobs["1"]["gpu_type"]) == ("2", "8", "A100")
    assert run["real"]["clock"] == 120
    assert "sched/backfill" in (tmp_path / "report.html").read_text()
    with (tmp_path / "run.csv").open() as file:
        recorded = list(csv.DictReader(file))
    assert {row["job_id"] for row in recorded} == {"1", "2", "3", "4"}
    assert {row["scheduler"] for row in recorded} <= {"Main", "Backfill"}


def test_a_policy_of_ours_orders_the_real_queue(trace: Callable[..., Path], tmpdir: Path) -> None:
    """One node's worth of GPUs; five equal jobs but for their limits, all submitted while the first runs."""
    limits = [2400, 3000, 1800, 600, 1200]
    path = trace([(0, 600, 900, 8, "a"), *((20 + i, 60, limit, 8, "b") for i, limit in enumerate(limits))])
    out = tmpdir.parent / f"{tmpdir.name}.csv"
    try:
        value = replay(path, "--clock", "60", "--policy", "sjf@limit", "--jobs-out", str(out), tmpdir=tmpdir)
        with out.open() as file:
            start = {row["job_id"]: int(row["start_time"]) for row in csv.DictReader(file)}
    finally:
        out.unlink(missing_ok=True)
    real = value["runs"][0]["real"]
    assert real["ticks"] > 0
    assert real["tick_seconds"] == 60
    waited = sorted(list(start)[1:], key=lambda job: start[job])
    assert waited == ["5", "6", "4", "2", "3"]  # by limit, not by submission


@contextmanager
def started(command: list[str], **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A running command that takes SIGINT, which programs in the background ignore, and ends with the test."""
    words = ["env", "--default-signal=INT", *command]
    running = subprocess.Popen(words, env=os.environ | variables, stderr=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_on_a_real_cluster_it_leaves_no_job(
    trace: Callable[..., Path], start_lab: StartLab, number: int
) -> None:
    site = start_lab("a100:4*2")
    path = trace([(i // 4, 3000, 6000, 4, "u") for i in range(40)])
    command = [*PROGRAM, str(path), "--backend", "slurm", "--on", str(site.slurm_conf)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "--confirm" in refused.stderr
    assert site.run("squeue", "-h").strip() == ""
    with started([*command, "--confirm"]) as running:
        wait_until(lambda: len(site.run("squeue", "-h").splitlines()) > 4, "jobs are there")
        running.send_signal(number)
        assert "interrupted" in running.communicate(timeout=60)[1]
    assert running.returncode == 130
    wait_until(lambda: site.run("squeue", "-h").strip() == "", "the cancelled ones have gone")


def test_interrupted_on_its_own_lab_it_leaves_nothing(trace: Callable[..., Path], tmpdir: Path) -> None:
    path = trace([(0, 30000, 60000, 4, "u") for _ in range(20)])
    command = [*PROGRAM, str(path), "--backend", "slurm", "--clock", "60"]
    with started(command, TMPDIR=str(tmpdir)) as running:
        wait_until(lambda: bool(processes_with(f"{tmpdir}/")) and _running(tmpdir), "its jobs run")
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 130


def _running(tmpdir: Path) -> bool:
    return any(path.name.startswith("job") for path in tmpdir.glob("srl-run-*/spool/*/*"))


def test_commands_do_real_work(tmpdir: Path, tmp_path: Path) -> None:
    """At natural speed: a command of the trace, a built-in network, and an ETL task; then the row of figures."""
    path = tmp_path / "work.csv"
    (tmp_path / "work.cluster.json").write_text(json.dumps(CLUSTER))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow("job_id,submit_time,run_time,time_limit,num_gpus,user,deadline,command".split(","))
        writer.writerow([1, 0, 2, 600, 1, "a", 600, f"echo $CUDA_VISIBLE_DEVICES > {tmp_path}/said; sleep 1"])
        writer.writerow([2, 0, 1, 600, 2, "b", "", ""])
        writer.writerow([3, 1, 1, 600, 0, "b", "", ""])
    figures = tmp_path / "real_system_metrics.csv"
    value = replay(path, "--commands", "--policy", "fcfs", "--real-metrics", str(figures), tmpdir=tmpdir)
    assert value["runs"][0]["real"]["clock"] == 1
    assert value["runs"][0]["metrics"]["completed"] == 3
    assert (tmp_path / "said").read_text().strip().isdecimal()  # it had a GPU of its own
    with figures.open() as file:
        (row,) = csv.DictReader(file)
    assert (row["trace"], row["policy"], row["jobs"], row["sla"]) == ("work", "fcfs", "3", "1.0")
    assert float(row["jct"]) >= 1
    assert 0 < float(row["utilization"]) <= 1
    assert float(row["energy_kwh"]) > 0
    assert 0 < float(row["jain"]) <= 1
    assert row["policy_entropy"] == ""  # fcfs draws nothing
    assert float(row["oracle_gap"]) >= -0.01
