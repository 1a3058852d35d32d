"""What the measurements share: one report, one folder of inputs, one cache of compiled kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.measure import Report

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The verdict comes last, whichever file measures."""
    items.sort(key=lambda item: item.name == "test_targets_are_met")


@pytest.fixture(scope="session")
def report() -> Report:
    """Filled by the measurements, shown and judged by the last test."""
    return Report()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where generated inputs go."""
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory that is empty at first, as on a fresh machine."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def traces() -> Path:
    """The recorded traces beside the repository."""
    path = ROOT.parent / "shared" / "traces"
    if not path.is_dir():
        pytest.skip("needs the recorded traces in ../shared/traces")
    return path
