"""Kernels that a package brings are copied to where numba can add to them, once."""

from __future__ import annotations

from pathlib import Path

import numba
import pytest

from slurm_rl.kernel import jit


def test_a_fresh_cache_begins_with_the_shipped_kernels(tmp_path: Path) -> None:
    shipped, cache = tmp_path / "shipped", tmp_path / "home" / "kernels" / "digest"
    (shipped / "place_1").mkdir(parents=True)
    (shipped / "place_1" / "place.nbc").write_bytes(b"code")
    jit._take_shipped(shipped, cache)
    assert (cache / "place_1" / "place.nbc").read_bytes() == b"code"
    assert list(cache.parent.iterdir()) == [cache]


def test_whoever_comes_second_leaves_the_cache_as_it_is(tmp_path: Path) -> None:
    shipped, cache = tmp_path / "shipped", tmp_path / "cache"
    for directory, content in ((shipped, b"shipped"), (cache, b"newer")):
        directory.mkdir()
        (directory / "place.nbc").write_bytes(content)
    jit._take_shipped(shipped, cache)
    assert (cache / "place.nbc").read_bytes() == b"newer"


def test_without_shipped_kernels_numba_compiles_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "_SHIPPED", tmp_path / "none")
    before = numba.config.CPU_NAME  # type: ignore[attr-defined]
    assert not jit._use_shipped()
    assert before == numba.config.CPU_NAME  # type: ignore[attr-defined]


def test_a_processor_without_the_features_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_SHIPPED", tmp_path)
    monkeypatch.setattr(jit, "get_host_cpu_features", lambda: {"avx2": False})
    assert not jit._use_shipped()
