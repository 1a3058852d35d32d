"""Labs of several releases: side by side, with ordinary users, the plugin, and without munge."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.cli import main
from slurm_rl.errors import InputError
from slurm_rl.lab import roots
from slurm_rl.lab.lab import Lab
from slurm_rl.lab.spec import Auth, PluginMode
from slurm_rl.slurm.cli import CliClient
from slurm_rl.slurm.model import JobUpdate

from .conftest import sbatch, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.releases]
StartLab = Callable[..., Lab]


def release_of(lab: Lab) -> str:
    return lab.run("scontrol", "--version").split()[1].rpartition(".")[0]


def mounts() -> str:
    return Path("/proc/self/mounts").read_text()


@pytest.mark.releases("installed")
def test_labs_of_all_releases_run_at_the_same_time(start_lab: StartLab) -> None:
    """Each answers with its own release, and a job of one is not seen in another."""
    labs = [start_lab("a100:2*1,t4:1*1", slurm=wanted) for wanted in ("", *roots.SUITES)]
    assert [release_of(lab) for lab in labs][1:] == list(roots.SUITES)
    for lab in labs:
        sbatch(lab, f"--job-name=of-{release_of(lab)}", "--gpus=1")
    for lab in labs:
        jobs = CliClient(lab.slurm_conf).snapshot().jobs
        assert [j.name for j in jobs] == [f"of-{release_of(lab)}"]
    ports = [line for lab in labs for line in lab.slurm_conf.read_text().splitlines() if "Port=" in line]
    assert len(ports) == 9
    assert "/roots/" not in mounts(), "what the daemons see is mounted for them alone"


def test_status_tells_the_release_and_a_shell_reaches_it(
    start_lab: StartLab, slurm_release: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = start_lab("t4:1*1")
    with pytest.raises(SystemExit):
        main(["lab", "status", "--dir", str(lab.directory), "--json"])
    status = json.loads(capsys.readouterr().out)
    assert status["release"].startswith(slurm_release)
    assert (status["root"] is None) is (slurm_release == "")
    script = "\n".join([*status["shell"], "sbatch --parsable --output=/dev/null --wrap 'sleep 60'; squeue -h -o %i"])
    env = {"PATH": os.environ["PATH"], "HOME": "/root"}
    said = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=True, cwd="/")
    assert said.stdout.split() == ["1", "1"]


def test_ordinary_users_submit_jobs_that_run_as_them(start_lab: StartLab) -> None:
    used_by_nobody(start_lab("a100:2*1", accounting=True))


@pytest.mark.releases("24.11", "26.05")
def test_without_munge_ordinary_users_submit_jobs_too(start_lab: StartLab) -> None:
    lab = start_lab("a100:2*1", accounting=True, auth=Auth.SLURM)
    assert "munged" not in [p.name for p in lab.state.processes]
    used_by_nobody(lab)
    assert not list(Path("/run").glob("slurm*/sack.socket")), "the sockets of auth/slurm lie in the lab's directory"


def used_by_nobody(lab: Lab) -> None:
    """A user's job runs as that user, who may read the queue; the accounting knows the job."""
    output = lab.directory / "tmp" / "said"
    output.touch()
    output.chmod(0o666)
    command = "id -un; echo gpus=$CUDA_VISIBLE_DEVICES; grep -c . /etc/passwd; squeue -h -o %j"
    lab.run("sbatch", "--job-name=mine", "--gpus=2", f"--output={output}", f"--wrap={command}", user="nobody")
    wait_until(lambda: output.read_text().endswith("mine\n"), "the job has run")
    users = len(Path("/etc/passwd").read_text().splitlines())
    assert output.read_text().splitlines() == ["nobody", "gpus=0,1", str(users), "mine"]
    client = CliClient(lab.slurm_conf, user="nobody")
    held = sbatch(lab, "--hold")
    assert held in [j.job_id for j in client.snapshot().jobs]
    assert CliClient(lab.slurm_conf).update([JobUpdate(job_id=held, site_factor=5)])[0].applied
    wait_until(
        lambda: lab.run("sacct", "-n", "-X", "-P", "-o", "user,state", "-a", "-S", "now-1hour").startswith(
            "nobody|COMPL"
        ),
        "the accounting has it",
    )
    assert "/roots/" not in mounts()


@pytest.mark.releases("installed")
def test_a_slurm_without_auth_slurm_is_refused(start_lab: StartLab) -> None:
    with pytest.raises(InputError, match=r"22.05\.\d+ has no auth/slurm, which came with 23.11 .*lab fetch 24.11"):
        start_lab("t4:1*1", auth=Auth.SLURM)


@pytest.mark.releases("24.11", "26.05")
def test_two_labs_without_munge_keep_apart(start_lab: StartLab) -> None:
    one, two = (start_lab("a100:1*2", auth=Auth.SLURM) for _ in range(2))
    ids = [sbatch(lab, f"--job-name={name}") for lab, name in ((one, "one"), (one, "one-more"), (two, "two"))]
    assert ids == [1, 2, 1]
    assert [j.name for j in CliClient(two.slurm_conf).snapshot().jobs] == ["two"]


def test_the_service_and_its_plugin_work_in_the_lab(start_lab: StartLab) -> None:
    """slurmctld of that release loads the shim with its own Lua, and the service answers it."""
    lab = start_lab("a100:8*1", plugin=PluginMode.ENFORCE)
    sbatch(lab, "--gpus=8", "--time=60")
    for minutes in (50, 5, 500):
        sbatch(lab, "--gpus=8", f"--time={minutes}")
    # Its kernels may have to be compiled first, which takes minutes on a busy machine.
    factors = CliClient(lab.slurm_conf).site_factors
    wait_until(lambda: any(factors().values()), "the service has put them in order", seconds=300)


def test_reconfigure_keeps_the_daemons(start_lab: StartLab) -> None:
    """Since 23.11 slurmctld executes itself anew: it must find itself again in its root."""
    lab = start_lab("a100:8*1")
    lab.run("scontrol", "reconfigure")
    wait_until(lambda: CliClient(lab.slurm_conf).health().up, "slurmctld answers again")
    sbatch(lab, "--gpus=1", seconds=0)
    wait_until(lambda: CliClient(lab.slurm_conf).snapshot().jobs == (), "the job has run")
    assert all(p.alive() for p in lab.state.processes)
