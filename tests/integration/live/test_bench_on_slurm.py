"""`slurm-rl bench --executor slurm` on a real Slurm: parts as tasks, lost ones again, the same table to the byte."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from slurm_rl.bench.rows import PARTS, finished
from slurm_rl.cli import main
from slurm_rl.lab.lab import Lab
from slurm_rl.train import submit

pytestmark = pytest.mark.slurm

NAME = "core_sim_metrics.csv"
SMALL = ("core", "--seeds", "1", "--jobs", "60", "--policy", "fcfs,sjf@user")
LONGER = ("core", "--seeds", "3", "--jobs", "300", "--policy", "fcfs,sjf@user")


def bench(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, ("bench", *words)), "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


class Lose(threading.Thread):
    """Cancels a task, and requeues the other as preemption does, when each has finished something."""

    def __init__(self, lab: Lab, out: Path) -> None:
        super().__init__(daemon=True)
        self.lab, self.out, self.kept = lab, out, -1

    def run(self) -> None:
        files = [self.out / PARTS / f"{k}-of-2.jsonl" for k in (1, 2)]
        while not all(f.is_file() for f in files):
            time.sleep(0.05)
        array = json.loads((self.out / "slurm" / "jobs.json").read_text())[0].partition("_")[0]
        self.lab.run("scancel", "--signal=KILL", f"{array}_0")
        self.lab.run("scontrol", "requeue", f"{array}_1")
        self.kept = len(finished(self.out))


@pytest.mark.releases("installed")  # its jobs run this Python, which is not in a root
def test_tasks_in_parallel_give_the_same_table_and_lost_ones_run_again(
    slurm: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.slurm_conf))
    on_slurm = ("--executor", "slurm", "--tasks", 2, "--slurm", "mem=1G")
    code, said = bench(capsys, *SMALL, *on_slurm, "--slurm", "partition=nowhere", "--out", tmp_path / "wrong")
    assert (code, "nvalid partition" in said["error"]["message"]) == (5, True)

    code, said = bench(capsys, *SMALL, *on_slurm, "--out", tmp_path / "slurm")
    assert code == 0, said
    assert bench(capsys, *SMALL, "--out", tmp_path / "local", "--workers", 1)[0] == 0
    assert (tmp_path / "slurm" / NAME).read_bytes() == (tmp_path / "local" / NAME).read_bytes()
    assert sorted(p.name for p in (tmp_path / "slurm" / PARTS).iterdir()) == ["1-of-2.jsonl", "2-of-2.jsonl"]

    monkeypatch.setattr(submit, "_SILENCE", 6.0)  # seconds that a vanished job may take to show its result
    lost = tmp_path / "lost"
    killer = Lose(slurm, lost)
    killer.start()
    code, said = bench(capsys, *LONGER, *on_slurm, "--out", lost)
    killer.join(timeout=10)
    assert code == 0, said
    assert killer.kept > 0, "tasks were lost after they had finished something"
    assert bench(capsys, *LONGER, "--out", tmp_path / "whole", "--workers", 2)[0] == 0
    assert (lost / NAME).read_bytes() == (tmp_path / "whole" / NAME).read_bytes()


@pytest.mark.releases("installed")
def test_a_sweep_on_slurm_has_the_rows_of_one_here(
    slurm: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.slurm_conf))
    file = tmp_path / "s.toml"
    trace = Path(__file__).parents[3] / "traces" / "real01.csv"
    file.write_text(f'trace = "{trace}"\npolicies = ["fcfs", "sjf@user"]\nseeds = [0, 1]\n')

    def sweep(*words: object) -> pd.DataFrame:
        out = tmp_path / str(len(words))
        with pytest.raises(SystemExit) as ended:
            main([*map(str, ("replay", "--sweep", file, "--out", out, *words)), "--json"])
        said = capsys.readouterr()
        assert not ended.value.code, said
        assert not list(out.glob("trace*")), "the parsed trace is taken away"
        table = pd.read_parquet(out / "runs.parquet")
        return table.drop(
            columns=["wall_seconds", "jobs_per_second", "peak_rss_mb", "decision_p50_us", "decision_p99_us"]
        )

    there = sweep("--executor", "slurm", "--tasks", 2, "--slurm", "mem=1G")
    pd.testing.assert_frame_equal(there, sweep("--workers", 1))
