"""Commands of a user without a home that can be written, as Debian's slurm is: nothing is kept, everything works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.config import Config
from slurm_rl.controller.tick import Controller
from slurm_rl.obs.journal import Journal
from slurm_rl.slurm.cli import CliClient

from ..conftest import LabFactory
from .on_lab import until

pytestmark = [pytest.mark.soak, pytest.mark.slurm]  # each command compiles its kernels anew: minutes


def test_commands_that_compile_work_without_a_home(start_lab: LabFactory, tmp_path: Path) -> None:
    lab = start_lab("t4:4*1", accounting=True)
    settings = {"mode": "shadow", "state_dir": str(tmp_path / "state"), "slurm_conf": str(lab.slurm_conf)}
    file = tmp_path / "c.toml"
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in settings.items()))
    config = Config(**settings)
    with Journal(config.journal) as journal:
        Controller(config, CliClient(lab.slurm_conf), journal).tick()  # the shadow period begins
    for _ in range(3):
        lab.run("sbatch", "-o", "/dev/null", "--mem=100", "-t", "5", "--gpus=1", "--wrap", "true")
    until(lambda: lab.run("sacct", "-X", "-n", "-a", "-o", "State").count("COMPLETED") == 3, "three jobs are done")

    def slurm_rl(*words: str) -> str:
        kept = {k: v for k, v in lab.env().items() if k not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
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

    assert '"outcome"' in slurm_rl("serve", "--once", "--json", "--config", str(file))
    assert "default" in slurm_rl("models", "list")
    assert '"jobs":' in slurm_rl("shadow-report", "--json", "--config", str(file))
