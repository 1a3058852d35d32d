"""Nodes with scripted GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_nvml import World, build
from fake_nvml.node import Node


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub, loaded: pynvml then gets it by its soname."""
    directory = build(tmp_path_factory.mktemp("nvml"))
    ctypes.CDLL(str(directory / "libnvidia-ml.so.1"))
    return directory


@pytest.fixture
def world(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    def make(gpus: int = 8) -> World:
        path = tmp_path / "world"
        monkeypatch.setenv("NVML_WORLD", str(path))
        return World(path, gpus)

    return make


@pytest.fixture
def node(world: Callable[..., World], tmp_path: Path) -> Callable[..., Node]:
    def make(gpus: int = 8, **options: object) -> Node:
        return Node(tmp_path, world(gpus), **options)  # type: ignore[arg-type]

    return make
