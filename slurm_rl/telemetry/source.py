"""Job records and watts from the service's store, or from the agents' shared directory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_rl.errors import InputError
from slurm_rl.telemetry.collect import Collector
from slurm_rl.telemetry.store import FILE, Store


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    """A store to read from; a shared directory is gathered into one that lives as long as the block."""
    if path.is_dir() and (path / FILE).is_file():
        path = path / FILE
    if not path.is_dir():
        store = Store(path, read_only=True)
        try:
            yield store
        finally:
            store.close()
        return
    with tempfile.TemporaryDirectory(prefix="slurm-rl-") as directory:
        store = Store(Path(directory) / FILE)
        try:
            collector = Collector(store, directory=path, keep_days=100_000.0)
            collector.collect()
            if collector.problems:
                raise InputError(next(iter(collector.problems.values())), file=str(path))
            if not collector.collected and not store.watts():
                raise InputError("holds no records of node agents", file=str(path), remedy=f"name {FILE} instead")
            yield store
        finally:
            store.close()
