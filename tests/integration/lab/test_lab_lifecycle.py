"""A lab comes up, is used, and leaves nothing behind, whatever happened to it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.cli import main
from slurm_rl.errors import InputError, SlurmError
from slurm_rl.lab.lab import Lab, attach, up
from slurm_rl.lab.spec import LabSpec, parse_nodes
from slurm_rl.lab.submit import submit as submit_trace
from slurm_rl.slurm.cli import CliClient
from slurm_rl.traces.trace import make_trace

from .conftest import sbatch, wait_until

pytestmark = pytest.mark.slurm
StartLab = Callable[..., Lab]

# Where Slurm, munge and MariaDB keep things by default; a lab must leave them alone.
OUTSIDE = (
    *("/etc/slurm", "/etc/munge", "/etc/mysql", "/run/munge", "/run/slurm", "/run/mysqld", "/var/log/slurm"),
    *("/var/log/munge", "/var/log/mysql", "/var/spool/slurm", "/var/lib/slurm", "/var/lib/munge", "/var/lib/mysql"),
)


def processes_with(word: str) -> list[str]:
    """Command lines of living processes that hold a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in command:
            found.append(command)
    return found


def changed_since(moment: float) -> list[str]:
    changed = []
    for root in OUTSIDE:
        for directory, _, files in os.walk(root):
            for name in files:
                path = os.path.join(directory, name)
                try:
                    if os.stat(path, follow_symlinks=False).st_mtime >= moment:
                        changed.append(path)
                except OSError:
                    continue
    return changed


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    """A `slurm-rl lab` command with --json: its one value."""
    with pytest.raises(SystemExit) as ended:
        main(["lab", *arguments, "--json"])
    value: dict[str, object] = json.loads(capsys.readouterr().out)
    assert ended.value.code == (0 if "error" not in value else ended.value.code)
    return value


@pytest.mark.releases
def test_up_status_and_down_leave_nothing_behind(slurm_release: str, capsys: pytest.CaptureFixture[str]) -> None:
    directory = Path(f"/tmp/srl-lab-{os.getpid()}-{random.randrange(10**6)}")
    began = time.time()
    where = ("--dir", str(directory))
    try:
        started = run_command(
            capsys, "up", "--nodes", "a100:8*2,t4:4*1", "--accounting", "--slurm", slurm_release, *where
        )
        assert started.get("status") == "up", started
        assert started["node_names"] == ["a100-1", "a100-2", "t4-1"]
        refused = run_command(capsys, "up", *where)
        assert "a lab is running" in str(refused["error"])

        sleep = f"{random.randrange(10**5, 10**6)}.25"
        lab = attach(directory)
        sbatch(lab, "--gpus=a100:2", seconds=float(sleep))
        wait_until(lambda: bool(processes_with(f"sleep {sleep}")), "the job's process is there")
        status = run_command(capsys, "status", *where)
        assert status["jobs"] == {"pending": 0, "running": 1}
        assert status["nodes"]["t4-1"] == "IDLE"  # type: ignore[index]

        ended = run_command(capsys, "down", *where)
        assert set(ended["ended"]) == {  # type: ignore[call-overload]
            "munged",
            "mariadbd",
            "slurmdbd",
            "slurmctld",
            "slurmd-a100-1",
            "slurmd-a100-2",
            "slurmd-t4-1",
        }
        assert processes_with(str(directory)) == []
        assert processes_with(f"sleep {sleep}") == []
        assert changed_since(began) == []
        assert run_command(capsys, "status", *where)["status"] == "down"
        assert run_command(capsys, "down", *where)["ended"] == []
    finally:
        run_command(capsys, "down", "--delete", *where)
    assert not directory.exists()


@pytest.mark.releases
def test_down_ends_a_crashed_lab_with_its_jobs_and_spares_bystanders(start_lab: StartLab) -> None:
    lab = start_lab("a100:8*1,t4:4*1")
    sleep = f"{random.randrange(10**5, 10**6)}.75"
    sbatch(lab, "--gpus=a100:1", seconds=float(sleep))
    sbatch(lab, "--gpus=t4:1", seconds=float(sleep))
    wait_until(lambda: len(processes_with(f"sleep {sleep}")) == 2, "the jobs' processes are there")
    for name in ("slurmctld", "slurmd-a100-1", "munged"):
        os.kill(lab.process(name).pid, signal.SIGKILL)
        wait_until(lambda name=name: not lab.process(name).alive(), "it is dead")  # type: ignore[misc]
    os.kill(lab.process("slurmd-t4-1").pid, signal.SIGSTOP)
    log = lab.directory / "log" / "slurmctld.log"
    with subprocess.Popen(
        ["tail", "-f", str(log)], env=lab.env(), cwd=lab.directory, stdout=subprocess.DEVNULL
    ) as user:
        try:
            assert attach(lab.directory).down() == ["slurmd-t4-1"]
            assert user.poll() is None
        finally:
            user.kill()
    assert processes_with(f"sleep {sleep}") == []
    assert processes_with(str(lab.directory)) == []


def test_a_lab_can_be_started_again_in_its_directory(start_lab: StartLab, capsys: pytest.CaptureFixture[str]) -> None:
    lab = start_lab("a100:2*1")
    where = ("--dir", str(lab.directory))
    sbatch(lab, "--hold")
    run_command(capsys, "down", *where)
    assert run_command(capsys, "up", "--nodes", "t4:1*1", *where)["node_names"] == ["t4-1"]
    assert CliClient(attach(lab.directory).slurm_conf).snapshot().jobs == ()


@pytest.mark.releases
def test_a_lab_that_cannot_start_says_why_and_leaves_no_process(slurm_release: str) -> None:
    directory = Path(f"/tmp/srl-bad-{os.getpid()}")
    spec = LabSpec(directory, parse_nodes("a100:2*1"), slurm=slurm_release, extra_conf=("SelectType=select/nonsense",))
    try:
        with pytest.raises(SlurmError, match=r"slurmctld ended while starting.*nonsense"):
            up(spec)
        assert processes_with(str(directory)) == []
        assert attach(directory).state.processes == ()
    finally:
        shutil.rmtree(directory)


@pytest.mark.releases
def test_twenty_nodes_with_accounting_are_up_in_twenty_seconds(start_lab: StartLab) -> None:
    began = time.monotonic()
    lab = start_lab("a100:8*4,v100:8*4,t4:4*8,cpu:0*4:cpus=32:mem=64", accounting=True)
    assert time.monotonic() - began <= 20
    said = lab.run("mariadb", f"--socket={lab.directory}/run/mariadb.socket", "-N", "-e", "SELECT @@tmpdir")
    assert said.strip() == f"{lab.directory}/tmp", "servers that share one clear it of each other's tables"
    nodes = {n.name: n for n in CliClient(lab.slurm_conf).snapshot().nodes}
    assert len(nodes) == 20
    assert (nodes["cpu-1"].cpus, nodes["cpu-1"].mem_mb, nodes["cpu-1"].gpus) == (32, 65_536, {})
    assert all(n.usable for n in nodes.values())


@pytest.mark.releases
def test_jobs_see_their_gpus(start_lab: StartLab) -> None:
    lab = start_lab("a100:8*1")
    output = lab.directory / "gpus"
    lab.run("sbatch", "--gpus=a100:3", f"--output={output}", "--wrap=echo gpus=$CUDA_VISIBLE_DEVICES")
    wait_until(lambda: output.exists() and "gpus=" in output.read_text(), "the job has run")
    assert output.read_text().strip() == "gpus=0,1,2"


def test_a_trace_is_submitted_with_its_times_and_gpus(slurm: Lab) -> None:
    trace = make_trace(
        "t",
        [0, 600, 600, 1200],
        run_time=[36_000] * 4,
        time_limit=[72_000] * 4,
        num_gpus=[8, 1, 0, 64],
        gpu_type=["a100", "", "", "a100"],
        num_nodes=[1, 1, 1, 1],
        cpus=[8, 2, 4, 8],
        mem_gb=[16, 4, 1, 8],
    )
    began = time.monotonic()
    accepted, rejected = submit_trace(slurm, trace, speedup=600)
    assert 1.9 <= time.monotonic() - began < 10
    assert set(accepted) == {"1", "2", "3"}
    assert [r.trace_id for r in rejected] == ["4"]  # no node has 64 GPUs
    jobs = {j.name: j for j in CliClient(slurm.slurm_conf).snapshot().jobs}
    assert [(jobs[i].gpus, jobs[i].cpus, jobs[i].mem_mb, jobs[i].time_limit) for i in ("1", "2", "3")] == [
        ({"a100": 8}, 8, 16_384, 120),
        (jobs["2"].gpus, 2, 4096, 120),
        ({}, 4, 1024, 120),
    ]
    assert jobs["2"].gpu_count == 1


def test_a_trace_of_other_gpus_is_refused_before_the_first_job(slurm: Lab) -> None:
    trace = make_trace("t", [0], run_time=[1], num_gpus=[1], gpu_type=["h200"])
    with pytest.raises(InputError, match="the trace requests h200, the lab has a100, t4, v100"):
        submit_trace(slurm, trace, speedup=1)


def test_a_trace_file_is_submitted_by_the_command(
    slurm: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "job_id,submit_time,run_time,time_limit,num_gpus,gpu_type,num_nodes,cpus,mem_gb,user,group,vc,status\n"
        "7,0,3600,7200,4,t4,1,4,8,ada,phys,,\n8,10,3600,7200,1,,1,1,1,ada,phys,,\n9,20,3600,7200,1,,1,1,1,ada,phys,,\n"
    )
    value = run_command(capsys, "submit", str(trace), "--speedup", "100", "--limit", "2", "--dir", str(slurm.directory))
    assert value["rejected"] == {}
    jobs = {j.job_id: j for j in CliClient(slurm.slurm_conf).snapshot().jobs}
    submitted: dict[str, int] = value["submitted"]  # type: ignore[assignment]
    assert set(submitted) == {"7", "8"}
    assert jobs[submitted["7"]].gpus == {"t4": 4}


def test_two_hundred_nodes_in_two_gigabytes(start_lab: StartLab) -> None:
    lab = start_lab("a100:8*100,t4:4*100")
    nodes = CliClient(lab.slurm_conf).snapshot().nodes
    assert sum(n.usable for n in nodes) == 200
    resident = 0
    for process in lab.state.processes:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        resident += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    assert resident / 1024 <= 2048
