"""Which jobs are here and whose a process is: cgroups of both kinds, slurmd's spool, environments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_rl.telemetry.presence import Presence


def presence(root: Path) -> Presence:
    return Presence("gpu01", root / "spool", proc=root / "proc", cgroups=root / "cgroup")


def process(root: Path, pid: int, cgroup: str = "0::/\n", environ: dict[str, str] | None = None, began: int = 5) -> int:
    where = root / "proc" / str(pid)
    where.mkdir(parents=True, exist_ok=True)
    (where / "stat").write_text(f"{pid} (a (b) c) S " + "0 " * 18 + f"{began} 0\n")
    (where / "cgroup").write_text(cgroup)
    (where / "environ").write_text("".join(f"{k}={v}\0" for k, v in (environ or {}).items()))
    return pid


def test_jobs_are_found_by_the_sockets_of_their_steps(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    for name in ("gpu01_7.0", "gpu01_7.4294967291", "gpu01_9.4294967292", "gpu01_12.3.1", "gpu011_8.0", "job00004"):
        (tmp_path / "spool" / name).touch()
    assert presence(tmp_path).jobs() == {7, 9, 12}


@pytest.mark.parametrize(
    "directory",
    [
        "system.slice/slurmstepd.scope/job_31/step_batch",
        "system.slice/gpu01_slurmstepd.scope/job_31/step_batch",
        "devices/slurm/uid_1000/job_31/step_batch",
        "memory/slurm_gpu01/uid_1000/job_31/step_0",
    ],
)
def test_jobs_are_found_by_their_cgroups(tmp_path: Path, directory: str) -> None:
    (tmp_path / "cgroup" / directory).mkdir(parents=True)
    (tmp_path / "cgroup" / directory / "cgroup.procs").write_text("41\n42\n")
    here = presence(tmp_path)
    assert here.jobs() == {31}
    assert here.pids_of(31) == [41, 42]
    assert here.pids_of(32) == []


@pytest.mark.parametrize(
    "line",
    [
        "0::/system.slice/slurmstepd.scope/job_31/step_0/user/task_0",
        "0::/system.slice/gpu01_slurmstepd.scope/job_31/step_extern/user/task_special",
        "9:devices:/slurm/uid_1000/job_31/step_batch/task_0\n0::/",
        "4:memory:/slurm_gpu01/uid_0/job_31",
        "0::/system.slice/slurmstepd.scope/job_31/step_0/user/task_0/docker/1f2e",
    ],
)
def test_a_process_is_known_by_its_cgroup(tmp_path: Path, line: str) -> None:
    process(tmp_path, 50, line + "\n", {"SLURM_JOB_ID": "99"})
    assert presence(tmp_path).job_of(50, {31: 1000, 99: 1000}) == 31


@pytest.mark.parametrize("line", ["0::/user.slice/job_31/x", "0::/system.slice/myslurm/job_31", "0::/"])
def test_a_path_that_looks_like_it_is_not_believed(tmp_path: Path, line: str) -> None:
    process(tmp_path, 50, line + "\n")
    assert presence(tmp_path).job_of(50, {31: 1000}) == 0


def test_without_cgroups_the_environment_tells_if_the_job_is_its_owners(tmp_path: Path) -> None:
    process(tmp_path, 50, environ={"SLURM_JOB_ID": "31"})
    here = presence(tmp_path)
    assert here.job_of(50, {31: os.getuid() + 1}) == 0  # somebody claims another's job
    assert here.job_of(50, {30: os.getuid()}) == 0  # or one that is not here
    assert here.job_of(50, {31: os.getuid()}) == 31


def test_what_only_slurm_knows_is_asked_for(tmp_path: Path) -> None:
    process(tmp_path, 50)
    here = presence(tmp_path)
    assert here.job_of(50, {31: 1000}) == 0
    assert here.wants_list
    here.listed = {50: 31}
    assert here.job_of(50, {31: 1000}) == 31


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    process(tmp_path, 50, "0::/system.slice/slurmstepd.scope/job_31/step_0\n")
    here = presence(tmp_path)
    assert here.job_of(50, {31: None, 32: None}) == 31
    process(tmp_path, 50, "0::/system.slice/slurmstepd.scope/job_32/step_0\n", began=6)
    assert here.job_of(50, {31: None, 32: None}) == 32
    assert here.job_of(51, {31: None}) == 0  # there is none


def test_a_jobs_environment_names_its_gpus(tmp_path: Path) -> None:
    process(tmp_path, 50, environ={"SLURM_JOB_ID": "31"})
    process(tmp_path, 51, environ={"SLURM_JOB_ID": "31", "SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"})
    process(tmp_path, 52, environ={"SLURM_JOB_ID": "32", "CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"})
    here = presence(tmp_path)
    assert here.environment_of(31, [49, 50, 51]).gpus == (2, 3)
    assert here.environment_of(32, [50, 52]).uuids == ("MIG-a", "MIG-b")
    assert here.environment_of(33, [50, 51, 52]).gpus == ()
