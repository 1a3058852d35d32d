"""Commands of a user without a home that can be written, as Debian's slurm is: nothing is kept, everything works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import LabFactory
from .on_lab import until

pytestmark = [pytest.mark.soak, pytest.mark.slurm]  # kernels are compiled anew by each command: minutes


def test_every_command_of_an_admin_works_without_a_home(start_lab: LabFactory, tmp_path: Path) -> None:
    lab = start_lab("t4:4*1", accounting=True)
    config = tmp_path / "c.toml"

    def use(mode: str) -> None:
        config.write_text(f'mode = "{mode}"\nstate_dir = "{tmp_path}/state"\nslurm_conf = "{lab.slurm_conf}"\n')

    for _ in range(3):
        lab.run("sbatch", "-o", "/dev/null", "--mem=100", "-t", "5", "--gpus=1", "--wrap", "true")
    until(lambda: lab.run("sacct", "-X", "-n", "-a", "-o", "State").count("COMPLETED") == 3, "three jobs are done")
    waiting = [lab.run("sbatch", "--parsable", "-t", str(9 - i), "--gpus=4", "--wrap", "sleep 60") for i in range(4)]
    kept = {k: v for k, v in lab.env().items() if k not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}

    def slurm_rl(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "slurm_rl", *words],
            env=kept | {"HOME": "/proc/nowhere", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "Traceback" not in done.stderr
        return done.stdout

    use("shadow")
    slurm_rl("serve", "--once", "--config", str(config))
    assert slurm_rl("shadow-report", "--config", str(config))
    use("enforce")
    slurm_rl("serve", "--once", "--config", str(config))
    factors = dict(row.split() for row in lab.run("sprio", "-h", "-o", "%i %S").splitlines())
    assert any(int(factors.get(job.strip(), 0)) for job in waiting), "it has ordered the queue"
    assert "default" in slurm_rl("models", "list")
    assert slurm_rl("undo", "--config", str(config))
    assert {int(row.split()[1]) for row in lab.run("sprio", "-h", "-o", "%i %S").splitlines()} == {0}
