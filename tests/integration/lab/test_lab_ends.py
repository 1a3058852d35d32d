"""A lab ends whole: after kill -9 of what starts it, and with daemons somebody started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_rl.errors import SlurmError
from slurm_rl.lab import conf
from slurm_rl.lab.lab import Lab, attach
from slurm_rl.slurm.cli import CliClient

from .conftest import sbatch, wait_until
from .test_lab_lifecycle import processes_with

pytestmark = [pytest.mark.slurm, pytest.mark.releases]
StartLab = Callable[..., Lab]


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, as unix sockets want it; whatever a failed test left in it is ended."""
    path = Path(tempfile.mkdtemp(prefix="srl-end-"))
    yield path
    if (path / "lab.json").exists():
        attach(path).down()
    shutil.rmtree(path)


def ended(directory: Path) -> bool:
    return processes_with(str(directory)) == [] and str(directory) not in Path("/proc/self/mounts").read_text()


@pytest.mark.parametrize("moment", ["mariadb-install-db", "slurmdbd", "slurmctld", "slurmd-a100-1"])
def test_kill_9_in_the_middle_of_up(slurm_release: str, directory: Path, moment: str) -> None:
    program = [sys.executable, "-c", "from slurm_rl.cli import main; main()", "lab", "up", "--accounting"]
    command = [*program, "--nodes", "a100:2*2", "--slurm", slurm_release, "--dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starting:
        state = directory / "lab.json"
        wait_until(lambda: state.exists() and f'"{moment}"' in state.read_text(), f"{moment} is started")
        starting.kill()
        assert starting.communicate()[0] == ""
    left = attach(directory)
    assert moment in left.down()
    assert ended(directory)
    assert "/roots/" not in Path("/proc/self/mounts").read_text()


def test_down_ends_daemons_that_were_started_by_hand(start_lab: StartLab) -> None:
    """As after a crash: an administrator starts slurmctld again, and the lab's file knows only the old one."""
    lab = start_lab("a100:2*1")
    sbatch(lab, "--hold")
    os.kill(lab.process("slurmctld").pid, signal.SIGTERM)
    wait_until(lambda: not lab.process("slurmctld").alive(), "it has ended")
    lab.run("slurmctld", "-f", str(lab.slurm_conf))  # goes to the background by itself
    wait_until(lambda: CliClient(lab.slurm_conf).health().up, "slurmctld answers again")
    assert "slurmctld" in attach(lab.directory).down()
    assert ended(lab.directory)


def test_down_ends_what_another_run_restarted(start_lab: StartLab) -> None:
    """Two programs that each restart a daemon: neither may forget what the other one started."""
    lab = start_lab("a100:2*1", run_nodes=False)
    other = attach(lab.directory)
    for who, name in ((lab, "slurmctld"), (other, "munged")):
        os.kill(who.process(name).pid, signal.SIGKILL)
        wait_until(lambda who=who, name=name: not who.process(name).alive(), "it is dead")  # type: ignore[misc]
        who.restart(name)
    recorded = {p.name: p.alive() for p in attach(lab.directory).state.processes}
    assert recorded == {"slurmctld": True, "munged": True}
    assert set(other.down()) == {"slurmctld", "munged"}
    assert ended(lab.directory)


def test_a_port_taken_meanwhile_is_another_try(start_lab: StartLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another lab chose the same port between our look at it and slurmctld's bind."""
    choose, tries = conf.free_ports, []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        def unlucky_once(nodes: int) -> conf.Ports:
            chosen = choose(nodes)
            tries.append(chosen)
            return conf.Ports(other.getsockname()[1], chosen.slurmdbd, chosen.nodes) if len(tries) == 1 else chosen

        monkeypatch.setattr(conf, "free_ports", unlucky_once)
        lab = start_lab("t4:1*1")
    assert len(tries) == 2
    assert lab.state.up


@pytest.mark.releases("installed")  # a lab of a root has its own scontrol
def test_a_slurm_that_cannot_run_several_slurmd_is_refused(
    start_lab: StartLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """scontrol of a Slurm built without --enable-multiple-slurmd leaves one line out of its configuration."""
    real = shutil.which("scontrol")
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\n{real} "$@" | grep -v MULTIPLE_SLURMD\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SlurmError, match=r"built without --enable-multiple-slurmd.*lab up --slurm"):
        start_lab("a100:2*1")
    assert start_lab("a100:2*1", run_nodes=False).state.up, "without nodes it does not matter"
