"""The cache of parsed traces, and time limits for those who have none."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_traces_native_swf import HEADER, same
from trace_builders import a_file

from slurm_rl.traces import cache
from slurm_rl.traces.limits import NOTE, RATIO_QUANTILES, TYPED, typed_limits, with_time_limits
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Note, make_trace

ROW = "{0},{0},10,,1,A100,,,,ann,,,"


class TestCache:
    def a_trace(self, folder: Path, *extra: str) -> Path:
        return a_file(folder, "t.csv", HEADER, *(ROW.format(i) for i in range(1, 8)), *extra)

    def test_the_second_reading_is_the_same(self, tmp_path: Path) -> None:
        path = self.a_trace(tmp_path, "x,0,-1,,1,,,,,,,,", "é,0,1,,1,,,,,,,,")
        first = read_trace(path)
        assert len(list(cache.directory().iterdir())) == 1
        second = read_trace(path)
        same(first, second)
        assert (first.name, first.notes, first.meta) == (second.name, second.notes, second.meta)
        second.run_time[0] = 99  # a caller's change does not reach the cache
        same(first, read_trace(path))

    def test_a_changed_file_or_option_is_read_anew(self, tmp_path: Path) -> None:
        read_trace(self.a_trace(tmp_path))
        assert len(read_trace(self.a_trace(tmp_path, ROW.format(9)))) == 8
        read_trace(self.a_trace(tmp_path), format="native")
        assert len(list(cache.directory().iterdir())) == 3

    def test_the_same_bytes_under_another_name_keep_their_own_name(self, tmp_path: Path) -> None:
        path = self.a_trace(tmp_path)
        read_trace(path)
        other = path.rename(tmp_path / "other.csv")
        assert read_trace(other).name == "other"

    def test_pandas_is_not_imported_when_the_cache_answers(self, tmp_path: Path) -> None:
        path = self.a_trace(tmp_path)
        read_trace(path)
        code = f"import sys; from slurm_rl.traces.read import read_trace; read_trace({str(path)!r}); "
        result = subprocess.run(
            [sys.executable, "-c", code + "print('pandas' in sys.modules)"], capture_output=True, check=False
        )
        assert result.stdout.decode().strip() == "False", result.stderr.decode()

    def test_damaged_entries_are_ignored(self, tmp_path: Path) -> None:
        path = self.a_trace(tmp_path)
        expected = read_trace(path)
        (entry,) = cache.directory().iterdir()
        whole = entry.read_bytes()
        for damaged in (b"", whole[:100], whole[:-64], b"x" * len(whole), whole[:40] + b"}" + whole[41:]):
            entry.write_bytes(damaged)
            same(expected, read_trace(path))

    def test_it_is_optional(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = self.a_trace(tmp_path)
        read_trace(path, cache=False)
        assert not cache.directory().exists()
        (tmp_path / "a file").write_text("in the way")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
        assert len(read_trace(path)) == 7

    def test_the_oldest_go_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache, "MAX_FILES", 2)
        for i in range(3):
            path = a_file(tmp_path, f"{i}.csv", HEADER, ROW.format(i + 1))
            read_trace(path)
            for age, entry in enumerate(sorted(cache.directory().iterdir(), key=lambda e: e.stat().st_mtime_ns)):
                os.utime(entry, (1000 * i + age, 1000 * i + age))
        assert len(list(cache.directory().iterdir())) == 2
        monkeypatch.setattr(cache, "MAX_FILES", 100)
        monkeypatch.setattr(cache, "MAX_BYTES", 1)
        read_trace(a_file(tmp_path, "last.csv", HEADER, ROW.format(50)))
        assert len(list(cache.directory().iterdir())) == 1


class TestLimits:
    def many(self, n: int = 4000) -> object:
        generator = np.random.default_rng(5)
        return make_trace(
            "t",
            np.arange(n),
            run_time=np.exp(generator.normal(8, 1.5, n)).astype(np.int64) + 1,
            num_gpus=2.0 ** generator.integers(0, 4, n),
            user=[f"u{i}" for i in generator.integers(0, 300, n)],
        )

    def test_every_job_gets_a_limit_that_people_type(self) -> None:
        trace = with_time_limits(self.many(), seed=3)
        assert (trace.time_limit >= trace.run_time).all()
        assert np.isin(trace.time_limit[trace.time_limit <= TYPED[-1]], TYPED).all()
        assert (trace.time_limit[trace.time_limit > TYPED[-1]] % 604_800 == 0).all()
        assert trace.notes == (Note(NOTE, 4000),)

    def test_the_measured_ratio_is_met(self) -> None:
        trace = with_time_limits(self.many(), seed=3)
        ratio = trace.run_time / trace.time_limit
        assert 0.07 < np.median(ratio) < 0.25  # measured: 0.15, where the density is thin
        assert 0.01 < np.quantile(ratio, 0.2) < 0.03
        assert np.quantile(ratio, 0.9) > 0.7
        assert RATIO_QUANTILES[10] == 0.15038

    def test_known_limits_stay(self) -> None:
        trace = with_time_limits(make_trace("t", [0, 1], run_time=[50, 50], time_limit=[77, -1]))
        assert trace.time_limit[0] == 77
        assert trace.notes == (Note(NOTE, 1),)
        assert with_time_limits(trace) is trace

    def test_a_limit_belongs_to_the_job_not_to_its_row(self) -> None:
        trace = self.many(500)
        rows = np.random.default_rng(1).permutation(500)[:200]
        whole, part = with_time_limits(trace, 9), with_time_limits(trace.take(rows), 9)
        np.testing.assert_array_equal(whole.time_limit[rows], part.time_limit)
        assert (with_time_limits(trace, 10).time_limit != whole.time_limit).mean() > 0.3

    def test_ids_may_be_text(self) -> None:
        trace = replace(self.many(3), job_id=np.array(["a", "b", "ü"], dtype=object))
        assert (with_time_limits(trace).time_limit > 0).all()

    @pytest.mark.parametrize(
        ("run", "wished", "expected"),
        [
            (1, 1, 60),
            (60, 60, 60),
            (61, 61, 300),  # 60 is nearer but too short
            (100, 3000, 3600),
            (100, 80_000, 86_400),
            (604_801, 604_801, 1_209_600),
            (100, 3_000_000, 3_024_000),
        ],
    )
    def test_typed(self, run: int, wished: float, expected: int) -> None:
        assert typed_limits(np.array([run]), np.array([float(wished)])).tolist() == [expected]
