"""The lab's parts that need no Slurm: its specification, its files, its processes and its state."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_rl.errors import EnvironmentMissing, InputError
from slurm_rl.lab import conf, lab, processes, requirements, service, state
from slurm_rl.lab.spec import LabNodes, LabSpec, PluginMode, check_directory, parse_nodes
from slurm_rl.lab.submit import submissions
from slurm_rl.slurm.release import Release
from slurm_rl.traces.trace import make_trace


def test_nodes_are_declared_with_defaults_by_gpu() -> None:
    assert parse_nodes("a100:8*4, t4:4*2:cpus=32:mem=128,cpu:0*1") == (
        LabNodes("a100", 8, 4, 64, 524_288),
        LabNodes("t4", 4, 2, 32, 131_072),
        LabNodes("cpu", 0, 1, 8, 65_536),
    )
    assert parse_nodes("A100:1")[0].names() == ["a100-1"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no nodes given"),
        ("a100", "cannot read 'a100'"),
        ("a100:8*0", "declares no node"),
        ("a100:8*2,a100:4*1", "given twice"),
        ("a100:8*2:disk=5", "unknown option 'disk'"),
        ("a100:8*2:cpus=many", "not a positive number"),
        ("a100:8*1001", "too many"),
        ("a100:8*2;rm", "cannot read"),
    ],
)
def test_wrong_nodes_are_one_clear_error(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_nodes(text)


def test_a_directory_unix_sockets_fit_below() -> None:
    assert check_directory(Path("/tmp/lab")) == Path("/tmp/lab")
    with pytest.raises(InputError, match="shorter"):
        check_directory(Path("/tmp") / ("x" * 60))
    with pytest.raises(InputError, match="characters"):
        check_directory(Path("/tmp/a b"))


def test_slurm_conf_declares_what_was_asked_for() -> None:
    spec = LabSpec(Path("/lab"), parse_nodes("a100:8*2,t4:1*1"), extra_conf=("KillWait=9",))
    ports = conf.Ports(1000, 1001, (1002, 1003, 1004))
    text = conf.slurm_conf(spec, ports, "here")
    lines = text.splitlines()
    assert "SlurmctldHost=here(127.0.0.1)" in lines
    assert (
        "NodeName=a100-2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=1003 CPUs=64 RealMemory=524288 "
        "Gres=gpu:a100:8 Features=a100 State=UNKNOWN"
    ) in lines
    assert "slurmdbd" not in text
    assert "JobSubmitPlugins" not in text
    assert lines[-1] == "KillWait=9"
    assert conf.gres_conf(spec) == (
        "NodeName=a100-1,a100-2 Name=gpu Type=a100 File=/lab/dev/nvidia[0-7]\n"
        "NodeName=t4-1 Name=gpu Type=t4 File=/lab/dev/nvidia0\n"
    )


def test_accounting_and_plugin_add_their_lines() -> None:
    spec = LabSpec(Path("/lab"), parse_nodes("a100:8*1"), accounting=True, plugin=PluginMode.SHADOW)
    text = conf.slurm_conf(spec, conf.Ports(1000, 1001, (1002,)), "here")
    assert "AccountingStoragePort=1001" in text
    assert "AccountingStorageTRES=gres/gpu,gres/gpu:a100" in text
    assert "JobSubmitPlugins=lua" in text
    assert "DbdPort=1001" in conf.slurmdbd_conf(spec, conf.Ports(1000, 1001, (1002,)))


@pytest.mark.parametrize(("release", "switched_off"), [(Release(22, 5, 8), False), (Release(24, 5, 0), True)])
def test_cgroups_are_switched_off_where_that_can_be_said(tmp_path: Path, release: Release, switched_off: bool) -> None:
    spec = LabSpec(tmp_path, parse_nodes("a100:2*1"))
    conf.write_all(spec, conf.free_ports(1), release)
    assert (tmp_path / "cgroup.conf").exists() is switched_off
    assert sorted(p.name for p in (tmp_path / "dev").iterdir()) == ["nvidia0", "nvidia1"]
    assert (tmp_path / "munge.key").stat().st_mode & 0o777 == 0o600


def test_free_ports_differ() -> None:
    ports = conf.free_ports(50)
    assert len({ports.slurmctld, ports.slurmdbd, *ports.nodes}) == 52


def test_a_reused_pid_is_not_ours() -> None:
    mine = processes._stat(os.getpid())
    assert mine is not None
    assert processes.Process("me", os.getpid(), mine.started).alive()
    assert not processes.Process("someone before me", os.getpid(), mine.started - 1).alive()


def test_end_kills_what_is_recorded_and_no_bystander(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ours = processes.start("ours", ["sleep", "1000"], log, dict(os.environ))
    stopped = processes.start("stopped", ["sleep", "1000"], log, dict(os.environ))
    os.kill(stopped.pid, signal.SIGSTOP)
    # Its arguments and its working directory lie in the lab's directory, as those of a user's tail -f do.
    with subprocess.Popen(["tail", "-f", str(log)], cwd=tmp_path) as bystander:
        try:
            ended = processes.end([ours, stopped, processes.Process("reused", bystander.pid, 1)], tmp_path)
            assert [p.name for p in ended] == ["ours", "stopped"]
            assert not ours.alive()
            assert not stopped.alive()
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_end_finds_detached_processes_by_their_sockets_and_their_children(tmp_path: Path) -> None:
    """As slurmstepd does: detached from slurmd, with a socket in the spool directory, and the job below it."""
    script = (
        "import socket, subprocess, sys\n"
        f"s = socket.socket(socket.AF_UNIX); s.bind({str(tmp_path / 'step')!r}); s.listen()\n"
        "child = subprocess.Popen(['sleep', '1000']); print(child.pid, flush=True); child.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as step:
        assert step.stdout is not None
        child = int(step.stdout.readline())
        processes.end([], tmp_path)
        step.wait(30)  # `end` has reaped it, so its code is not to be had; alive, it would time out
    deadline = time.monotonic() + 5
    while (seen := processes._stat(child)) is not None and seen.state != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen is None or seen.state == "Z"


def test_the_state_survives_and_processes_of_another_boot_are_not_ours(tmp_path: Path) -> None:
    saved = state.LabState(
        directory=tmp_path,
        release="22.05.8",
        nodes=("a100-1",),
        accounting=False,
        plugin="off",
        boot_id=state.boot_id(),
        processes=(processes.Process("munged", 12, 34),),
        up=True,
    )
    saved.save()
    assert state.load(tmp_path) == saved
    assert state.load(tmp_path).own_processes() == saved.processes
    value = json.loads((tmp_path / "lab.json").read_text())
    assert value["slurm_conf"] == f"{tmp_path}/slurm.conf"
    (tmp_path / "lab.json").write_text(json.dumps(value | {"boot_id": "earlier"}))
    assert state.load(tmp_path).own_processes() == ()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"version": 99}'])
def test_a_damaged_state_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "lab.json").write_text(content)
    with pytest.raises(InputError, match=r"lab\.json"):
        state.load(tmp_path)


def test_no_lab_here(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no lab in"):
        state.load(tmp_path)


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("…")
    with pytest.raises(InputError, match="not empty and holds no lab"):
        lab._empty(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_two_commands_at_once_in_one_directory(tmp_path: Path) -> None:
    with lab._locked(tmp_path), pytest.raises(InputError, match="another slurm-rl lab command"), lab._locked(tmp_path):
        pass


def test_missing_packages_are_named_with_the_command_that_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "find", lambda program: None if program in ("slurmd", "mariadbd") else "/x")
    with pytest.raises(EnvironmentMissing, match="apt-get install mariadb-server slurmd"):
        requirements.check(accounting=True)
    with pytest.raises(EnvironmentMissing, match="packages slurmd: as root"):
        requirements.check(accounting=False)


def test_without_root_there_is_no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "find", lambda program: "/x")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EnvironmentMissing, match="needs root"):
        requirements.check(accounting=False)


def test_without_a_service_there_is_no_plugin_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentMissing, match="no slurm-rl serve"):
        service.check()


def test_a_trace_becomes_scaled_sleeps_with_its_gpu_requests() -> None:
    trace = make_trace(
        "t",
        [100, 700],
        run_time=[600, 1200],
        time_limit=[3600, -1],
        num_gpus=[8, 1],
        gpu_type=["A100", "t4|v100"],
        num_nodes=[2, 0],
        cpus=[16, math.nan],
        mem_gb=[32, math.nan],
    )
    first, second = submissions(trace, speedup=60)
    assert (first.after, second.after) == (0, 10)
    assert first.arguments == (
        "--job-name=1",
        "--comment=trace:1",
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--time=1",
        "--output=/dev/null",
        "--gpus-per-node=a100:4",
        "--cpus-per-task=8",
        "--mem=16384M",
        "--wrap=exec sleep 10.000",
    )
    assert "--gpus-per-node=1" in second.arguments
    assert "--constraint=t4|v100" in second.arguments
    assert "--wrap=exec sleep 20.000" in second.arguments


@pytest.mark.parametrize("speedup", [0.0, -1.0, math.inf, math.nan])
def test_a_speedup_must_be_positive(speedup: float) -> None:
    with pytest.raises(InputError, match="--speedup"):
        list(submissions(make_trace("t", [0]), speedup))
