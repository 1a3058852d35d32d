"""What was measured, as columns of a native trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.telemetry.join import with_measurements
from slurm_rl.telemetry.store import Store
from slurm_rl.traces.native import write_native
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Trace, make_trace

from .test_collect import a_record


@dataclass
class Row:
    job_id: int
    display_id: str
    start_time: int | None


def a_trace(*ids: int) -> Trace:
    n = len(ids)
    return make_trace("t", list(range(n)), job_id=np.array(ids), run_time=[60] * n, num_gpus=[1] * n)


@pytest.fixture
def store(tmp_path: Path):
    made = Store(tmp_path / "telemetry.sqlite")
    yield made
    made.close()


def test_jobs_are_matched_by_id_and_start(store: Store) -> None:
    records = [
        a_record(5, start=100.0, energy_j=3.6e6),
        a_record(5, start=900.0, energy_j=7.2e6),
        a_record(8, start=50.0),
    ]
    store.add("n1", "r", records)
    # 5 was requeued, 8 is another job that had the number later, 9 was never measured.
    history = [Row(5, "5", 101), Row(5, "5", 900), Row(8, "8", 5000), Row(9, "9", 10), Row(5, "5", None)]
    trace, found = with_measurements(a_trace(5, 8, 9), history, store)
    assert found == 1
    assert trace.measured["energy_kwh"].tolist()[:1] == [2.0]
    assert np.isnan(trace.measured["energy_kwh"][1:]).all()


def test_array_tasks_and_heterogeneous_jobs(store: Store) -> None:
    store.add("n1", "r", [a_record(j, start=100.0, gpus_used=2) for j in (14, 20, 21, 30)])
    history = [
        Row(14, "12_3", 100),
        Row(20, "20+0", 100),
        Row(21, "20+1", 100),
        Row(30, "30+0", 100),
        Row(31, "30+1", 100),
    ]
    trace, found = with_measurements(a_trace(14, 20, 30), history, store)
    assert found == 2  # of job 30 one part is not known
    assert trace.measured["gpus_used"].tolist()[:2] == [2, 4]
    assert trace.measured["energy_kwh"].tolist()[:2] == [1.0, 2.0]
    assert np.isnan(trace.measured["gpus_used"][2])


def test_measured_columns_are_written_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plain = a_trace(1, 2, 3)
    write_native(plain, tmp_path / "plain.csv")
    assert "energy_kwh" not in (tmp_path / "plain.csv").read_text()
    assert read_trace(tmp_path / "plain.csv").measured == {}
    measured = {"gpu_util": np.array([11.5, np.nan, 0.0]), "energy_kwh": np.array([0.125, 2.0, np.nan])}
    write_native(replace(plain, measured=measured), tmp_path / "t.csv.gz")
    for _ in range(2):  # parsed, then from the cache
        read = read_trace(tmp_path / "t.csv.gz")
        assert set(read.measured) == {"gpu_util", "energy_kwh"}
        for name, values in measured.items():
            np.testing.assert_array_equal(read.measured[name], values)
        assert "ignored_columns" not in read.meta
        kept = read.take(np.array([2, 0]))
        np.testing.assert_array_equal(kept.measured["gpu_util"], [0.0, 11.5])
