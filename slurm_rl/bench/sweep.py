"""A sweep: one trace under every combination of policies, backfills, placements, influences, seeds and windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from slurm_rl.bench.suite import Findings, Row, Settings, Suite, Unit
from slurm_rl.bench.sweep_file import WHOLE, combinations
from slurm_rl.bench.sweep_tables import find as find_tables
from slurm_rl.errors import InputError
from slurm_rl.policy.registry import guarded
from slurm_rl.traces.cache import map_packed, write_packed
from slurm_rl.traces.read import read_trace
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.replay import Prepared, find_cluster, parse_contenders, prepare, window_of
from slurm_rl_sim.replay import replay as run_replay
from slurm_rl_sim.workload import sorted_by_id

SUITE = Suite("sweep", "One trace under every combination of settings.", {}, "runs.parquet")
SHARED = "trace.packed"  # in OUT, while a sweep runs


def parse(settings: Settings, out: Path) -> tuple[Settings, Trace]:
    """The trace in the order of replays, and the settings with its name, digest and the file it will be shared by."""
    trace = sorted_by_id(read_trace(settings["trace"], format=settings["format"]))
    find_cluster(trace, Path(settings["trace"]), _path(settings["cluster"]))
    for window in settings["windows"]:
        _window(trace, window)
    about = {"name": trace.name, "sha256": trace.meta.get("sha256"), "shared": str((out / SHARED).resolve())}
    return settings | about, trace


@contextmanager
def shared(trace: Trace, out: Path) -> Iterator[None]:
    """Puts a parsed trace where all processes of a sweep map it, and takes it away at the end."""
    write_packed(out / SHARED, trace)
    try:
        yield
    finally:
        (out / SHARED).unlink(missing_ok=True)


def plan(settings: Settings) -> list[Unit]:
    """One unit a run."""
    return combinations(settings)


def run(unit: Unit, settings: Settings) -> list[Row]:
    """One row: what was combined, then every metric, then what the run took."""
    what = unit.what
    prepared = _prepared(settings["shared"], settings["name"], settings["trace"], settings["cluster"], what["window"],
                         what["seed"])  # fmt: skip
    contender = parse_contenders([what["policy"]], what["backfill"])[0]
    contender = replace(contender, policy=guarded(contender.policy, settings["starvation"]), backfill=what["backfill"])
    done = run_replay(
        prepared,
        [contender],
        placement=what["placement"],
        influence=what["influence"],
        preempt=settings["preempt"],
        weights=settings["weights"],
        slurm=_site(settings) if what["backfill"] == "slurm" else None,
    )[0]
    own = {"wall_seconds": done.wall_seconds, "jobs_per_second": done.jobs_per_second, "peak_rss_mb": done.peak_rss_mb}
    return [dict(what) | done.metrics | own]


def find(rows: Sequence[Row], settings: Settings) -> Findings:
    """Tables and words of all rows."""
    return find_tables(rows, settings)


@lru_cache(maxsize=1)
def _trace(file: str, name: str) -> Trace:
    try:
        trace = map_packed(Path(file))
    except (OSError, ValueError) as error:
        raise InputError(f"the parsed trace is not there: {error}", file=file,
                         remedy="give the command of the sweep again") from None  # fmt: skip
    return replace(trace, name=name)


@lru_cache(maxsize=1)  # units of one seed and window follow each other
def _prepared(file: str, name: str, trace: str, cluster: str | None, window: str, seed: int) -> Prepared:
    jobs = _trace(file, name)
    where = find_cluster(jobs, Path(trace), _path(cluster))
    return prepare(jobs, where, window=_window(jobs, window), seed=seed)


def _window(trace: Trace, text: str) -> tuple[int, int] | None:
    return window_of(trace, None if text == WHOLE else text)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _site(settings: Settings) -> Any:
    """What a site has told Slurm; None if the file does not say."""
    from slurm_rl.backfill.slurm_settings import SlurmSettings, read_slurm_conf, with_options

    conf, options = _path(settings["slurm_conf"]), settings["slurm_options"]
    if conf is None and not options:
        return None
    return with_options(read_slurm_conf(conf) if conf is not None else SlurmSettings(), options)
