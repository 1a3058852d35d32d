"""Forecasts scored on history: which ones are made, what they may know, and what the command prints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.cli.app import main
from slurm_rl.domain.cluster import NodeClass
from slurm_rl.errors import InputError
from slurm_rl.evaluate.forecasts import forecast_history, moments, report_of, site_of
from slurm_rl.evaluate.limit_advice import suggested_limits, worth_of_advice
from slurm_rl.traces.native import write_native
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import prepare
from tests.builders import a_cluster, a_job, a_trace

CLUSTER = a_cluster(NodeClass(2, cpus=16, gpus=4))


def a_busy_trace(days: int = 2, seed: int = 1) -> Trace:
    """Three users on eight GPUs, with limits far above what jobs take; one in five jobs lasts long."""
    rng = np.random.default_rng(seed)
    jobs, at = [], 0.0
    while at < days * 86_400:
        at += rng.exponential(850)
        user = int(rng.integers(0, 3))
        run = int(600 * (user + 1) * np.exp(rng.normal(0, 0.5)) * (6 if rng.random() < 0.2 else 1))
        jobs.append(a_job(int(at), run, 36_000, gpus=int(rng.choice([1, 2, 4])), user=f"u{user}", name=f"n{user}"))
    return a_trace(jobs)


def test_forecasts_are_made_at_submission_and_at_full_hours() -> None:
    submit, start = np.array([100, 200, 300]), np.array([100, 8000, 400])
    asked = moments(submit, start, (0, 10_000), 100, 0)
    assert {(t, j) for t, j, new in asked if new} == {(200, 1), (300, 2)}, "job 0 starts at once"
    assert {(t, j) for t, j, new in asked if not new} == {(3600, 1), (7200, 1)}


def test_a_window_in_which_nobody_waits_is_refused() -> None:
    with pytest.raises(InputError, match="no job waits"):
        moments(np.array([1, 2]), np.array([1, 2]), (0, 10), 10, 0)


def test_forecasts_beat_limits_and_their_ranges_hold() -> None:
    prepared = prepare(a_busy_trace(), CLUSTER)
    window = (86_400, 2 * 86_400)
    rows, earlier = forecast_history(prepared, site_of("fcfs", "easy"), window=window, count=60, draws=10)
    made = report_of(rows, earlier)
    ours, limits = made.methods[0], made.methods[2]
    assert earlier > 20
    assert all(window[0] <= r.time < window[1] for r in rows)
    assert ours.coverage is not None
    assert ours.coverage > 0.6
    assert made.ratio == ours.log_error / limits.log_error < 0.6
    assert limits.bias < -0.5, "limits promise starts far too late"


def test_what_comes_later_does_not_change_a_forecast() -> None:
    """The same history until noon of the second day, and another future: forecasts made before noon are the same."""
    noon = 86_400 + 43_200
    one, other = a_busy_trace(3), a_busy_trace(3)
    later = np.flatnonzero(other.submit_time >= noon)
    other.run_time[later] = 7
    told = []
    for trace in (one, other):
        prepared = prepare(trace, CLUSTER)
        rows, _ = forecast_history(prepared, site_of("fcfs", "easy"), window=(86_400, noon), count=40, draws=4)
        told.append({(r.job, r.time): r.raw for r in rows})
    both = told[0].keys() & told[1].keys()  # which ones are made is a matter of who waits
    assert len(both) > 15
    assert {k: told[0][k] for k in both} == {k: told[1][k] for k in both}


def test_the_command_prints_a_table_a_page_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, cluster, page = tmp_path / "busy.csv", tmp_path / "busy.cluster.json", tmp_path / "page.html"
    write_native(a_busy_trace(1), trace)
    cluster.write_text('[{"count": 2, "gpus": 4, "cpus": 16, "gpu_type": ""}]')
    command = ["forecast-report", str(trace), "--forecasts", "12", "--draws", "4", "--policy", "fcfs"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--report", str(page)])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert "backfill by limits" in out
    assert page.read_text().count("<svg") == 2
    with pytest.raises(SystemExit):
        main([*command, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["methods"][0]["method"] == "forecast"
    assert said["forecasts"] > 0


def test_limits_are_suggested_by_runs_that_had_ended_by_then() -> None:
    """Ann's jobs take 600 s and ask for ten hours: ten teach, five try the advice, and the next are told 15 min."""
    jobs = [a_job(5000 * i, 600, 36_000, user="ann", name="a") for i in range(19)]
    prepared = prepare(a_trace(jobs), a_cluster(1, cpus=1))
    start = prepared.workload.jobs["submit"]
    limits = suggested_limits(prepared, start, start + 600)
    assert limits.tolist() == [36_000] * 15 + [900] * 4


def test_shorter_limits_let_others_backfill() -> None:
    """Three CPUs are held for an hour and a job of four is next: ten minutes fit on the last one, ten hours do not."""
    jobs = [a_job(900 * i, 600, 36_000, cpus=1, user="ann", name="a") for i in range(200)]
    for hour in range(0, 50, 4):
        jobs.append(a_job(3600 * hour + 1, 3500, 3600, cpus=3, user="bob", name="b"))
        jobs.append(a_job(3600 * hour + 2, 100, 3600, cpus=4, user="cyd", name="c"))
    prepared = prepare(a_trace(jobs), a_cluster(1, cpus=4))
    worth = worth_of_advice(prepared, site_of("fcfs", "easy"))
    assert worth.advised > 150
    assert worth.killed_by_advice == 0
    assert worth.after["wait_of_advised"] < 0.8 * worth.before["wait_of_advised"]
