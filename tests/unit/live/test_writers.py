"""Whatever is written to Slurm goes through a writer, and undo is one loop over them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from reference.slurm_model import ModelSlurm

from slurm_rl.config import Config
from slurm_rl.controller import undo as module
from slurm_rl.controller.tick import Controller
from slurm_rl.controller.writers.catalogue import WRITERS
from slurm_rl.controller.writers.protocol import TakeBack, TakenBack
from slurm_rl.obs.journal import Journal


def test_a_tick_writes_in_the_catalogues_order(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.sqlite") as journal:
        slurm = ModelSlurm()
        controller = Controller(Config(policy="fcfs", state_dir=str(tmp_path)), slurm, journal, clock=lambda: slurm.now)
        assert tuple(type(writer) for writer in controller.writers) == WRITERS
    assert [writer.name for writer in WRITERS] == ["site_factor", "gpu_type", "start_time"]


def test_undo_asks_every_writer_once_the_last_to_write_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for number, writer in enumerate(WRITERS, start=1):

        def take_back(order: TakeBack, name: str = writer.name, number: int = number) -> TakenBack:
            asked.append(name)
            return TakenBack(number, number)

        monkeypatch.setattr(writer, "take_back", staticmethod(take_back))
    with Journal(tmp_path / "journal.sqlite") as journal:
        done = module.undo(ModelSlurm(), journal)
    assert asked == ["start_time", "gpu_type", "site_factor"]
    assert (done.touched, done.steered, done.deferred) == (1, 2, 3)


def test_writers_load_without_arrays_compiler_or_framework() -> None:
    code = (
        "import sys, slurm_rl.controller.writers.catalogue; "
        "print({'numpy', 'numba', 'torch', 'structlog', 'prometheus_client', 'pydantic'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
