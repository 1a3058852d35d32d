"""`slurm-rl bench`: rows survive a kill, parts give the same table, gaps and intervals are right, bad names told."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_rl.bench import schedulers, standings
from slurm_rl.bench.rows import ROWS, append, finished
from slurm_rl.bench.statistics import difference, mean, ratio
from slurm_rl.cli import main
from slurm_rl.report.chromium import find_chromium

# `make pythons` goes without torch (conftest.py): there these suites name the missing package first.
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
SMALL = ("--seeds", "1", "--jobs", "60", "--policy", "fcfs,saf@user")


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, object]]:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, ("bench", *words)), "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def a_row(scheduler: str, **changed: object) -> dict[str, object]:
    row = {"scheduler": scheduler, "avg_jct": 100.0, "p95_jct": 200.0, "sla_missed": 0.5, "energy": 2.0,
           "slowdown": 4.0, "fairness_jain": 0.5, "regime": "r", "jobs": 10}  # fmt: skip
    return row | changed


def test_a_line_that_a_crash_tore_is_not_read_and_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / ROWS
    append(file, "a", [{"x": 1.5}], 0.1)
    with file.open("a") as torn:
        torn.write('{"unit": "b", "rows": [{"x"')
    append(file, "c", [{"x": 2.5}], 0.1)
    assert {name: kept.rows for name, kept in finished(tmp_path).items()} == {"a": [{"x": 1.5}], "c": [{"x": 2.5}]}


def test_intervals_by_hand() -> None:
    assert mean([2.0, 4.0]).value == 3.0
    assert mean([5.0, 5.0, 5.0]).as_list() == [5.0, 5.0, 5.0]
    assert ratio([1.0, 8.0], [2.0, 2.0]).value == pytest.approx(math.sqrt(0.5 * 4.0))
    assert difference([3.0, 1.0], [1.0, 1.0]).value == 1.0
    # Ten equal values of one cluster are one observation: the interval reaches from cluster to cluster.
    wide = mean([0.0] * 10 + [1.0] * 10, ["a"] * 10 + ["b"] * 10)
    assert (wide.low, wide.high) == (0.0, 1.0)
    assert mean([0.0] * 10 + [1.0] * 10).low > 0.2


def test_gaps_refer_to_the_limit_and_to_the_best_rule_of_the_run() -> None:
    rows = [a_row("fcfs"), a_row("edf", slowdown=3.0, avg_jct=50.0), a_row("rl:x", slowdown=2.5),
            a_row("sjf@oracle", slowdown=2.0, avg_jct=40.0)]  # fmt: skip
    schedulers._gaps(rows)
    fcfs, edf, learned, limit = rows
    assert (fcfs["oracle_gap"], limit["oracle_gap"], learned["oracle_gap"]) == (1.0, 0.0, 0.25)
    assert (fcfs["best_fixed_gap"], edf["best_fixed_gap"]) == (pytest.approx(1 / 3), 0.0)
    assert learned["best_fixed_gap"] == pytest.approx(2.5 / 3 - 1), "a learned one may beat the best rule"
    assert edf["mixed"] == pytest.approx(0.5**0.25), "one of four aims is halved"
    assert {r["best_fixed"] for r in rows} == {"edf"}


def test_a_winner_needs_more_than_chance() -> None:
    runs = {"a": [a_row("a", regime=f"r{i}", slowdown=1.0 + i) for i in range(8)]}
    runs["b"] = [r | {"slowdown": 1.5 * float(str(r["slowdown"]))} for r in runs["a"]]
    runs["c"] = [r | {"slowdown": float(str(r["slowdown"])) * (1.2 if i % 2 else 0.8)} for i, r in enumerate(runs["a"])]
    won = standings.winner(runs, ["a", "b"], "slowdown")
    assert (won.name, won.clear, won.lead.value) == ("a", True, pytest.approx(1 / 1.5))
    assert not standings.winner(runs, ["a", "c"], "slowdown").clear
    fairer = standings.winner({"a": runs["a"], "b": [r | {"fairness_jain": 0.9} for r in runs["a"]]}, ["a", "b"],
                              "fairness_jain")  # fmt: skip
    assert fairer.name == "b", "more is better there"


def test_killed_and_started_again_or_in_parts_it_gives_the_same_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed, parts = tmp_path / "killed", tmp_path / "parts"
    command = [sys.executable, "-m", "slurm_rl", "bench", "core", *SMALL, "--out", str(killed), "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and not (killed / ROWS).exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = (killed / ROWS).read_bytes()
    code, said = call(capsys, "core", *SMALL, "--out", killed, "--workers", 1)
    assert code == 0, said
    assert (killed / ROWS).read_bytes().startswith(before), "what was finished is not run again"
    assert len((killed / ROWS).read_bytes().split(b"\n")) in (57, 58), "56 units, one of them torn at most"

    for part in ("2/2", "1/2"):
        assert call(capsys, "core", *SMALL, "--out", parts, "--workers", 1, "--part", part)[0] == 0
    assert call(capsys, "core", *SMALL, "--out", parts, "--workers", 2)[0] == 0
    name = "core_sim_metrics.csv"
    assert (killed / name).read_bytes() == (parts / name).read_bytes()

    rows = rows_of(killed / name)
    assert list(rows[0])[:12] == list(standings.FIRST)
    assert len(rows) == 56 * 3
    assert {r["scheduler"] for r in rows} == {"fcfs", "saf@user", "sjf@oracle"}
    assert all(float(r["avg_jct"]) >= float(r["avg_wait"]) for r in rows), "completion counts from submission"
    page = (killed / "report.html").read_text()
    assert "Mixed objective" in page
    assert sorted(p.name for p in (killed / "figures").glob("*.svg")) == [
        "jct_cdf.svg", "mixed_objective.svg", "oracle_gap.svg", "utilization_gpus.svg",
    ]  # fmt: skip
    assert len(list((killed / "figures").glob("*.png"))) == (0 if find_chromium() is None else 4)

    code, said = call(capsys, "core", "--seeds", 2, *SMALL[2:], "--out", killed)
    assert (code, "another --seeds" in str(said)) == (2, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("cor",), "did you mean 'core'?"),
        (("core", "--policy", "fcsf"), "did you mean 'fcfs'?"),
        (("core", "--policy", "rl:nowhere"), "nowhere"),
        (("core", "--policy", ","), "names no policy"),
        (("core", "--policy", "meta:nowhere"), "no model 'nowhere'"),
        (("core", "--policy", "meta:default"), "write rl:default"),
        (("core", "--policy", "bandit:exp3/"), "an empty set"),
        (("core", "--part", "3/2"), "must be K/N"),
        (("core", "--seeds", "0"), "'--seeds'"),
        pytest.param(("packing", "--traces", "/nowhere"), "has no alibaba_openb_v2023.csv.gz", marks=needs_torch),
        pytest.param(("agents", "--traces", "/nowhere"), "has none of", marks=needs_torch),
    ],
)
def test_bad_names_are_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    code, said = call(capsys, *words, "--out", tmp_path / "new")
    assert code in (2, 3)
    assert told in str(said["error"])
    assert not (tmp_path / "new").exists(), "nothing half-written"


@pytest.mark.parametrize("part", [(), ("--part", "1/56")])
def test_a_place_that_cannot_be_a_directory_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        code, said = call(capsys, "core", *SMALL, *part, "--out", out)
        assert (code, "--out" in str(said), "cannot be made" in str(said)) == (2, True, True)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_of_traces_in_the_environment_is_no_option_of_core(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RL_TRACES", str(tmp_path))
    code, said = call(
        capsys, "core", "--seeds", "1", "--jobs", "60", "--policy", "fcfs", "--part", "1/56", "--out", tmp_path / "new"
    )
    assert code == 0, said
    code, said = call(capsys, "core", *SMALL, "--traces", tmp_path, "--out", tmp_path / "other")
    assert (code, "no such option" in str(said)) == (2, True)


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    code, said = call(capsys, "core", *SMALL, "--out", tmp_path)
    assert (code, "holds something else" in str(said)) == (2, True)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
