"""Small files and row views for the tests of traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slurm_rl.traces.trace import Trace


def a_file(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def jobs(trace: Trace, *fields: str) -> list[tuple[object, ...]]:
    """The named columns, row by row; NaN as None."""
    columns = []
    for field in fields:
        values = getattr(trace, field)
        rows = values.tolist() if isinstance(values, np.ndarray) else values.strings()
        columns.append([None if isinstance(v, float) and np.isnan(v) else v for v in rows])
    return list(zip(*columns, strict=True))
