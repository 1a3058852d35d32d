"""Comparisons are paired, and the commands around them answer with one JSON value."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.cli.app import main
from slurm_rl.errors import InputError
from slurm_rl.evaluate.paired import (
    PairedWindows,
    PolicyFigures,
    before,
    compare,
    drawn_windows,
    gap_closed,
    replicate,
    tuned_weights,
)
from slurm_rl_sim.replay import parse_contenders, prepare, replay
from tests.unit.test_decide import CLUSTER, a_workload

ROOT = Path(__file__).resolve().parents[3]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, object]:
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--json"])
    return int(end.value.code or 0), json.loads(capsys.readouterr().out)


def test_the_base_stands_at_one_and_replicates_are_paired() -> None:
    trace = a_workload(1, jobs=150)
    fcfs, sjf = parse_contenders("fcfs,sjf@oracle", "easy")
    standings = compare(trace, CLUSTER, [fcfs, sjf], base=fcfs, replicates=3)
    assert [s.policy for s in standings] == ["fcfs", "sjf@oracle"]
    assert set(standings[0].ratio.values()) == {1.0}
    assert standings[0].low["mean_bsld"] == standings[0].high["mean_bsld"] == 1.0
    best = standings[1]
    assert best.low["mean_bsld"] <= best.ratio["mean_bsld"] <= best.high["mean_bsld"]
    assert best.ratio["mean_bsld"] < 1.0
    again = compare(trace, CLUSTER, [sjf], base=fcfs, replicates=3)
    assert again[1] == best


def test_replicates_move_arrivals_and_nothing_else() -> None:
    trace = a_workload(1, jobs=50)
    assert replicate(trace, 0, 0) is trace
    moved = replicate(trace, 1, 0)
    assert not np.array_equal(moved.submit_time, trace.submit_time)
    assert sorted(moved.run_time.tolist()) == sorted(trace.run_time.tolist())


def test_drawn_windows_are_warmed_up_and_lie_within_the_span() -> None:
    trace = a_workload(1, jobs=300)
    span = (int(trace.submit_time[100]), int(trace.submit_time[-1]) + 1)
    drawn = list(drawn_windows(trace, PairedWindows(30, 50), span, seed=1))
    assert len({window for _, window in drawn}) > 5
    for part, (first, last) in drawn:
        measured = (part.submit_time >= first) & (part.submit_time < last)
        assert span[0] <= first < last <= span[1]
        assert part.submit_time.max() < last
        assert measured.sum() >= 50
        assert (~measured).sum() >= 30, "jobs before fill the cluster (some share the first one's second)"
    with pytest.raises(InputError, match="fewer than a window's 500"):
        next(drawn_windows(trace, PairedWindows(1, 500), span, seed=1))


def test_windows_are_paired_and_ratios_are_those_of_their_means() -> None:
    trace = a_workload(1, jobs=300)
    fcfs, sjf = parse_contenders("fcfs,sjf@oracle", "easy")
    base, best = compare(trace, CLUSTER, [sjf], base=fcfs, windows=PairedWindows(6, 60))
    assert set(base.ratio.values()) == {1.0}
    assert best.ratio["mean_wait"] == pytest.approx(best.mean["mean_wait"] / base.mean["mean_wait"])
    assert best.low["mean_bsld"] <= best.ratio["mean_bsld"] <= best.high["mean_bsld"]
    waits = []
    for part, window in drawn_windows(trace, PairedWindows(6, 60), None, seed=0):
        run = replay(prepare(part, CLUSTER, window=window), [sjf])[0]
        waits.append(run.metrics["mean_wait"])
    assert best.mean["mean_wait"] == pytest.approx(np.mean(waits))


def test_weights_are_tuned_on_what_came_before() -> None:
    trace = a_workload(2, jobs=300)
    window = (int(np.percentile(trace.submit_time, 60)), int(trace.submit_time[-1]) + 1)
    early = before(trace, window)
    assert early is not None
    assert early.submit_time.max() < window[0]
    assert before(trace, None) is None
    weights = tuned_weights(prepare(early, CLUSTER), "easy", "best-fit")
    assert set(weights) == {"age", "fairshare", "job_size"}


def test_the_gap_to_the_oracle() -> None:
    def at(policy: str, bsld: float) -> PolicyFigures:
        return PolicyFigures(policy, "easy", {"mean_bsld": bsld}, {}, {}, {})

    standings = [at("multifactor", 100.0), at("rl:x", 10.0), at("sjf@oracle", 1.0)]
    assert gap_closed(standings, "rl:x", "multifactor") == pytest.approx(0.5)
    assert gap_closed(standings, "nobody", "multifactor") is None
    assert gap_closed([*standings[:2], replace(standings[2], mean={"mean_bsld": 200.0})], "rl:x", "multifactor") is None


def test_evaluate_prints_one_json_value(capsys: pytest.CaptureFixture[str]) -> None:
    code, value = call(
        capsys, "evaluate", "--trace", str(ROOT / "traces/small.swf.gz"), "--policy", "sjf@user", "--no-opponents",
        "--replicates", "2", "--window", "0.5:1",
    )  # fmt: skip
    assert code == 0
    assert isinstance(value, dict)
    assert [s["policy"] for s in value["standings"]] == ["multifactor", "sjf@user"]
    assert set(value["multifactor_weights"]) == {"age", "fairshare", "job_size"}
    assert math.isfinite(value["standings"][1]["ratio"]["mean_bsld"])


def test_train_writes_a_model_that_replays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if sys.version_info >= (3, 13):  # tests/conftest.py says why
        pytest.importorskip("torch")
    small = ["--iterations", "1", "--scenes", "4", "--jobs", "300", "--generations", "1", "--lessons", "6"]
    code, value = call(capsys, "train", "--out", str(tmp_path / "run"), *small)
    assert code == 0
    assert isinstance(value, dict)
    model = value["model"]
    code, value = call(capsys, "replay", str(ROOT / "traces/small.swf.gz"), "--policy", f"fcfs,rl:{model}")
    assert code == 0
    assert isinstance(value, dict)
    fcfs, learned = value["runs"]
    assert learned["policy"] == f"rl:{model}"
    assert learned["metrics"]["jobs"] == fcfs["metrics"]["jobs"] == 2000
    assert learned["metrics"]["mean_wait"] != fcfs["metrics"]["mean_wait"]


def test_wrong_options_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, value = call(capsys, "train", "--out", str(tmp_path), "--algo", "pp0")
    assert code == InputError.exit_code
    assert "did you mean 'ppo'" in str(value)
    code, value = call(capsys, "retrain", "--out", str(tmp_path))
    assert code == InputError.exit_code
    assert "either --from-slurm or --trace" in str(value)
    code, value = call(capsys, "replay", str(ROOT / "traces/small.swf.gz"), "--policy", "rl:nobody")
    assert code == 3
    assert "no model 'nobody'" in str(value)
