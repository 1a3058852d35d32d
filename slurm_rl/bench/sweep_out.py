"""Writes a sweep's results: one Parquet file of all runs, and one HTML page to compare them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from slurm_rl import __version__
from slurm_rl.bench import sweep
from slurm_rl.bench.page import page
from slurm_rl.bench.rows import finished, replace
from slurm_rl.bench.suite import Findings, Row, Settings
from slurm_rl.bench.sweep_tables import with_oracle_gap
from slurm_rl.errors import EnvironmentMissing

PARQUET, PAGE = "runs.parquet", "report.html"


def require_parquet() -> None:
    """Refuses before the first run what could not be written after the last."""
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise EnvironmentMissing("--sweep writes Parquet and needs pyarrow: pip install 'slurm-rl[sweep]'")


def write(settings: Settings, out: Path, file: Path) -> tuple[Findings, list[Path]]:
    """Makes the files of a sweep whose runs are all there."""
    kept = finished(out)
    plan = sweep.plan(settings)
    rows = with_oracle_gap([row for unit in plan for row in kept[unit.name].rows])
    found = sweep.find(rows, settings)
    mine = {unit.name: kept[unit.name] for unit in plan}
    text = page(f"slurm-rl replay --sweep {file}", _shown(settings), found, mine, sortable=True)
    return found, [write_parquet(out / PARQUET, rows, settings), replace(out / PAGE, text.encode())]


def _shown(settings: Settings) -> Settings:
    """What a reader of the page is told: all that was given."""
    given = {k: v for k, v in settings.items() if k != "shared" and v not in (None, [], False)}
    texts = {k: [_text(v) for v in values] for k, values in given.items() if isinstance(values, list)}
    weights = settings["weights"]
    return given | texts | ({"weights": ", ".join(f"{k} {v:g}" for k, v in weights.items())} if weights else {})


def _text(value: object) -> str:
    return "as the rule has it" if value == "" else f"{value:g}" if isinstance(value, float) else str(value)


def write_parquet(path: Path, rows: Sequence[Row], settings: Settings) -> Path:
    """One row a run, a column a metric; null where there is nothing to measure. The settings are in the metadata."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = list(rows[0])
    arrays = [_column(pa, [row[c] for row in rows]) for c in columns]
    about = {"slurm-rl": json.dumps({"version": __version__, "sweep": settings})}
    table = pa.Table.from_arrays(arrays, names=columns).replace_schema_metadata(about)
    temporary = path.with_name(f".{path.name}.new")
    parquet.write_table(table, temporary)
    temporary.replace(path)
    return path


def _column(pa: object, values: list[object]) -> object:
    """Whole numbers stay whole; a column that nothing was measured for is one of numbers all the same."""
    array, kinds = pa.array, {type(v) for v in values if v is not None}  # type: ignore[attr-defined]  # no stubs
    if kinds <= {int, float}:
        return array(values, type="int64" if kinds == {int} else "float64")
    return array(values)
