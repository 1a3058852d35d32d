"""Schedules compared by hand-made cases, and the simulator beside recorded runs of a real slurmctld."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.backfill.slurm_settings import SITE
from slurm_rl.domain.cluster import read_cluster
from slurm_rl.errors import InputError
from slurm_rl.evaluate.fidelity import JobRun, agreement, divergences, fidelity, phases, simulate
from slurm_rl.lab.observed import Observed, read_observed, write_observed
from slurm_rl.traces.read import read_trace

RECORDED = Path(__file__).parents[4] / "shared" / "fidelity"
# How far the simulator may be from a real run: tau below the least of real against real, and ratios from 1.
BELOW_REAL, MEAN, P99 = 0.05, 0.10, 0.15


def ran(submit: float, start: float, length: float, *nodes: str, by: str = "Main") -> JobRun:
    return JobRun(submit, start, start + length, frozenset(nodes), by)


def test_a_schedule_agrees_with_itself() -> None:
    one = {str(i): ran(i, 10.0 * i, 5, "a") for i in range(1, 6)}
    same = agreement(one, one)
    assert (same.tau, same.mean_wait_ratio, same.p99_wait_ratio, same.same_nodes) == pytest.approx((1.0, 1.0, 1.0, 1.0))
    assert set(same.differences.values()) == {0.0}
    assert divergences(one, one) == []


def test_waits_count_from_each_schedules_own_submissions() -> None:
    real = {"1": ran(0, 100, 10, "a"), "2": ran(50, 250, 10, "a"), "3": ran(0, 300, 10, "a")}
    late = {job: JobRun(r.submit + 7, r.start + 7, r.end + 7, r.nodes) for job, r in real.items()}
    assert agreement(real, late).mean_wait_ratio == 1.0
    twice = {job: ran(r.submit, r.submit + 2 * r.wait, 10, "b") for job, r in real.items()}
    doubled = agreement(real, twice)
    assert doubled.mean_wait_ratio == 2.0
    assert doubled.differences["p50"] == 200.0
    assert doubled.same_nodes == 0.0
    swapped = agreement(real, {"1": real["1"], "2": ran(50, 400, 10, "a"), "3": real["3"]})
    assert swapped.tau == pytest.approx(1 / 3)


def test_too_few_jobs_are_refused() -> None:
    with pytest.raises(InputError, match="fewer than two"):
        agreement({"1": ran(0, 0, 1)}, {"1": ran(0, 0, 1)})


def test_causes_are_told_from_what_ran_before() -> None:
    real = {
        "1": ran(0, 0, 500, "a"),
        "2": ran(0, 500, 100, "a"),
        "3": ran(0, 0, 1000, "b"),
        "4": ran(10, 1000, 100, "b", by="Backfill"),
    }
    longer = real | {"1": ran(0, 0, 900, "a"), "2": ran(0, 900, 100, "a")}
    (only,) = divergences(real, longer)
    assert only.job == "2"
    assert only.cause == "job 1 before it ran 400 s longer in the simulator"
    elsewhere = real | {"3": ran(0, 0, 1000, "c"), "4": ran(10, 10, 100, "b")}
    (only,) = divergences(real, elsewhere)
    assert only.cause == "Slurm had put job 3 on b, the simulator on c"
    chain = longer | {"5": ran(5, 1000, 10, "a")}
    assert [d.job for d in divergences(real | {"5": ran(5, 850, 10, "a")}, chain)] == ["2", "5"]
    assert "follows job 2" in divergences(real | {"5": ran(5, 850, 10, "a")}, chain)[1].cause


def test_a_recorded_run_reads_back(tmp_path: Path) -> None:
    rows = [
        Observed("1", 0.0, 5.0, 60.0, "COMPLETED", ("a-1", "a-2"), "Main", 1_700_000_037),
        Observed("x", 3.0, None, None, "CANCELLED"),
    ]
    write_observed(tmp_path / "run.csv", rows)
    assert read_observed(tmp_path / "run.csv") == rows
    (tmp_path / "bad.csv").write_text("job_id,submit_time\n1,2\n")
    with pytest.raises(InputError, match="start_time"):
        read_observed(tmp_path / "bad.csv")


def test_the_minute_of_the_first_submission_is_known_or_tried() -> None:
    """Backfill plans in whole minutes of the clock, so that the same jobs half a minute later may start otherwise."""
    known = [Observed("1", 0.0, 5.0, 60.0, "COMPLETED", ("a-1",), "Main", 1_700_000_037)]
    assert phases(known, SITE) == [1_700_000_037 % 60]
    unknown = phases([replace(known[0], origin=None)], SITE)
    assert unknown == list(range(0, 60, 5))
    (path, *_) = _runs("mid")
    trace, cluster = read_trace(RECORDED / "mid.csv"), read_cluster(RECORDED / "cluster.json")
    rows = read_observed(path)
    waits = {
        p: sum(r.wait for r in simulate(trace, cluster, rows, "fcfs", lengths=True, phase=p).values()) for p in unknown
    }
    assert len(set(waits.values())) > 3
    made, ((_, shown),) = fidelity(trace, cluster, [rows])
    assert sum(r.wait for r in shown.values()) == sorted(waits.values())[5]
    assert min(waits.values()) / len(trace) < made.lengths[0].mean_wait[1] < max(waits.values()) / len(trace)
    ((_, at_37),) = fidelity(trace, cluster, [[replace(r, origin=37) for r in rows]])[1]
    assert at_37 == simulate(trace, cluster, rows, "fcfs", lengths=True, phase=37)


def _runs(name: str) -> list[Path]:
    found = sorted(RECORDED.glob(f"{name}.run*.csv"))
    if not found:
        pytest.skip("the recorded schedules are not here")
    return found


@pytest.mark.parametrize("name", ["small", "mid"])
def test_the_simulator_is_like_recorded_runs(name: str) -> None:
    runs = [read_observed(path) for path in _runs(name)]
    trace, cluster = read_trace(RECORDED / f"{name}.csv"), read_cluster(RECORDED / "cluster.json")
    made, _ = fidelity(trace, cluster, runs)
    floor = min(a.tau for a in made.floor)
    for found in made.simulated:
        assert found.jobs == len(trace)
        assert found.tau >= floor - BELOW_REAL
        assert found.mean_wait_ratio == pytest.approx(1.0, abs=MEAN)
        assert found.p99_wait_ratio == pytest.approx(1.0, abs=P99)


def test_the_command_tells_table_json_and_page(tmp_path: Path) -> None:
    paths = _runs("small")[:2]
    command = [sys.executable, "-c", "from slurm_rl.cli import main; main()", "fidelity", str(RECORDED / "small.csv")]
    command += ["--cluster", str(RECORDED / "cluster.json"), *(f"--recorded={p}" for p in paths)]
    page = tmp_path / "page.html"
    said = subprocess.check_output([*command, "--report", str(page)], text=True)
    assert max(len(line) for line in said.splitlines() if not line.startswith("report: ")) <= 80
    assert "real against real" in said
    text = page.read_text()
    assert text.count("<svg") == 2
    assert text.count("<rect") >= 2 * 120
    value = json.loads(subprocess.check_output([*command, "--json"], text=True))
    assert value["runs"] == 2
    assert len(value["simulated"]) == len(value["lengths"]) == 2
    assert len(value["floor"]) == 1
    assert {"tau", "mean_wait_ratio", "p99_wait_ratio", "differences"} <= set(value["floor"][0])
    assert value["divergences"]
