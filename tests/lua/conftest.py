"""The Lua versions the shim is tried with, and a directory short enough for a unix socket's path."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .shim import LUAS


@pytest.fixture(params=LUAS)
def lua(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shim") as name:
        yield Path(name)
