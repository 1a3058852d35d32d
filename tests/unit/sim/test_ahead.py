"""Where kernels are not on disk, two processes compile them: each is compiled by one, and found by the other."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.kernel import jit
from slurm_rl_sim import ahead
from slurm_rl_sim.replay import parse_contenders

CONTENDERS = parse_contenders("rl:default,fcfs", "easy")


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(jit, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(ahead.subprocess, "Popen", None)  # to start one would fail


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, two_processors: None) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(ahead, "_compile", lambda name: names.append(name.rpartition(":")[2]))
    return names


def test_nothing_is_compiled_where_kernels_are_on_disk(monkeypatch: pytest.MonkeyPatch, compiled: list[str]) -> None:
    monkeypatch.setattr(jit, "on_disk", lambda where: True)
    assert not ahead.compile_ahead(CONTENDERS, "best-fit")
    assert compiled == []


@pytest.mark.usefixtures("two_processors")
def test_one_processor_or_a_placement_from_outside_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ahead.compile_ahead(CONTENDERS, "examples/own.py:somewhere")
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda _: {0})
    assert not ahead.compile_ahead(CONTENDERS, "best-fit")


def test_what_somebody_compiles_at_this_moment_comes_last(
    monkeypatch: pytest.MonkeyPatch, compiled: list[str], tmp_path: Path
) -> None:
    """And no third process is started. A fixed order (fcfs) is never sorted: its score is no kernel here."""
    held = (tmp_path / "advance.lock").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    with (tmp_path / "easy_pass.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert ahead._in_work(["backfill_pass=slurm_rl.backfill.easy:easy_pass"])

    def let_go(name: str) -> None:
        compiled.append(name.rpartition(":")[2])
        held.close()  # the other is ready

    monkeypatch.setattr(ahead, "_compile", let_go)
    assert ahead.compile_ahead(CONTENDERS, "best-fit")
    assert compiled == ["score_by_network", "order_queue", "place", "easy_pass", "advance"]


@pytest.mark.soak
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_the_other_process_leaves_its_kernels_on_disk(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from slurm_rl_sim.ahead import compile_ahead\n"
        "from slurm_rl_sim.replay import parse_contenders\n"
        "did = compile_ahead(parse_contenders('fcfs', 'easy'), 'best-fit')\n"
        "from slurm_rl.backfill.easy import easy_pass\n"
        "from slurm_rl_sim.engine import advance\n"
        "json.dump([did, [sum(k.stats.cache_hits.values()) for k in (easy_pass, advance)]], sys.stdout)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | {"XDG_CACHE_HOME": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == [True, [1, 0]]
