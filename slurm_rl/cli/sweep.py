"""`slurm-rl replay --sweep FILE.toml`: runs every combination that a file names, here or on Slurm."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from slurm_rl.errors import InputError, unknown_name

# Options of `replay` that go with --sweep; what a file says is not said again on the command line.
TAKEN = ("trace", "sweep", "cluster", "out", "workers", "executor", "tasks", "retries", "slurm", "part", "as_json")
ONLY = ("out", "workers", "executor", "tasks", "retries", "slurm", "part")


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Where and how a sweep runs."""

    out: Path | None
    workers: int | None
    executor: str
    tasks: int
    retries: int
    slurm: list[str]
    part: str | None


def check_options(context: typer.Context, sweep: bool) -> None:
    """Refuses options that have no meaning with --sweep, or only with it."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        flag = "TRACE" if name == "trace" else "--json" if name == "as_json" else f"--{name.replace('_', '-')}"
        if sweep and name not in TAKEN:
            raise InputError("does not go with --sweep", field=flag, remedy="the file says what is run")
        if not sweep and name in ONLY:
            raise InputError("needs --sweep FILE.toml", field=flag)


def run_sweep(file: Path, trace: Path | None, cluster: Path | None, asked: SweepOptions, as_json: bool) -> None:
    """Runs what is missing of a sweep, then writes and tells."""
    from slurm_rl.bench.rows import begin, locked
    from slurm_rl.bench.running import part_of, processors, run_units
    from slurm_rl.bench.sweep import SUITE, parse, shared
    from slurm_rl.bench.sweep_file import read_sweep
    from slurm_rl.bench.sweep_out import require_parquet
    from slurm_rl.cli.progress import counting

    if asked.executor not in ("local", "slurm"):
        raise unknown_name("executor", asked.executor, ["local", "slurm"])
    if asked.executor == "slurm" and asked.part is not None:
        raise InputError("is for --executor local", field="--part", remedy="--executor slurm makes the parts")
    require_parquet()
    settings = read_sweep(file, trace, cluster)
    out = asked.out or Path("out") / file.stem
    workers = asked.workers or processors()
    if asked.part is not None:  # a task of a sweep: its trace is shared already, its lock is its own file
        with counting("sweep", as_json) as told:
            cut = part_of(asked.part)
            run_units(SUITE, _begun(out, settings), out, workers=workers, part=cut, told=told)
        print(json.dumps({"out": str(out), "part": asked.part}) if as_json else f"part {asked.part} is in {out}")
        return
    began = time.monotonic()
    with locked(out, "sweep"):
        settings, jobs = parse(settings, out)
        begin(out, SUITE.name, settings, "sweep", "")
        with shared(jobs, out):
            if asked.executor == "slurm":
                _on_slurm(file, trace, cluster, asked, settings, out, as_json)
            else:
                del jobs  # the workers have it now
                with counting("sweep", as_json) as told:
                    run_units(SUITE, settings, out, workers=workers, part=None, told=told)
        _tell(settings, out, file, as_json, time.monotonic() - began)


def _begun(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the sweep that OUT holds, if it is the file's."""
    from slurm_rl.bench.rows import MANIFEST

    try:
        known = json.loads((out / MANIFEST).read_text(encoding="utf-8"))["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        known = None
    if not isinstance(known, dict) or any(known.get(k) != v for k, v in settings.items()):
        raise InputError(f"{out} holds no sweep of this file", field="--part",
                         remedy="parts are run by --executor slurm")  # fmt: skip
    return known


def _on_slurm(
    file: Path,
    trace: Path | None,
    cluster: Path | None,
    asked: SweepOptions,
    settings: dict[str, Any],
    out: Path,
    quiet: bool,
) -> None:
    from slurm_rl.bench.on_slurm import run_on_slurm
    from slurm_rl.bench.sweep import SUITE
    from slurm_rl.cli.train import slurm_options

    words = ["replay", *([str(trace.resolve())] if trace is not None else []), "--sweep", str(file.resolve())]
    words += ["--cluster", str(cluster.resolve())] if cluster is not None else []
    say = (lambda text: None) if quiet else (lambda text: print(text, flush=True))
    options = slurm_options(asked.slurm)
    run_on_slurm(SUITE, settings, out, options, tasks=asked.tasks, retries=asked.retries, say=say, command=words)


def _tell(settings: dict[str, Any], out: Path, file: Path, as_json: bool, seconds: float) -> None:
    from slurm_rl.bench.sweep_out import write

    found, files = write(settings, out, file)
    if as_json:
        print(json.dumps({"sweep": str(file), "trace": settings["trace"], "out": str(out),
                          "summary": list(found.summary), "figures": found.figures, "files": [str(f) for f in files],
                          "wall_seconds": round(seconds, 1)}))  # fmt: skip
        return
    for text in found.summary:
        print(f"- {text}")
    print(", ".join(map(str, files)))
