"""`slurm-rl study`: makes the tables of the guides from public traces."""

from __future__ import annotations

import contextlib
import csv
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from slurm_rl.errors import EnvironmentMissing, InputError, SlurmRlError, unknown_name

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_HELP = """Make a table of the guides again, or all of them.

`list` names the studies, the public traces that each needs, and the missing ones. `all` makes every study whose
traces are there, into OUT/NAME.txt, names the others, and writes OUT/times.csv. `policy`, `placement` and `meta`
take the arguments that the guides print. `--quick` takes few seeds and workloads: minutes in place of hours, for a
check that all of it runs. docs/studies.md says where the traces come from; OUT/times.csv says how long each study took,
by the clock and in processor time.

Examples:

  slurm-rl study list --traces ~/traces

  slurm-rl study styles

  slurm-rl study table-easy --traces ~/traces

  slurm-rl study policy table easy 5 venus,hetero --traces ~/traces

  slurm-rl study all --traces ~/traces --out out/paper

  slurm-rl study all --quick --traces ~/traces --out out/quick
"""


@app.command(help=_HELP)
def study(
    name: Annotated[str, typer.Argument(help="list, all, the name of a study, policy, or placement.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments instead of the guides'.")] = None,
    traces: Annotated[
        Path | None, typer.Option(help="Folder of public traces.", envvar="SLURM_RL_TRACES", show_envvar=True)
    ] = None,
    out: Annotated[Path, typer.Option(help="With all: directory for the tables.")] = Path("out/paper"),
    quick: Annotated[bool, typer.Option("--quick", help="Few seeds and workloads, to check that it runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With list and all: print one JSON value.")] = False,
) -> None:
    """Runs a study; `_HELP` is what users see."""
    catalogue = importlib.import_module("slurm_rl.studies.catalogue")  # above this layer
    studies = catalogue.STUDIES
    if traces is not None:
        os.environ["SLURM_RL_TRACES"] = str(traces)
    if name in ("policy", "placement", "meta") and arguments:
        _main(name)(*arguments)
    elif name == "list":
        _list(studies, traces, as_json)
    elif name == "all":
        _all(studies, traces, out, quick, as_json)
    elif name not in studies:
        raise unknown_name("study", name, ["list", "all", *studies])
    else:
        missing = studies[name].lacks(traces)
        if missing:
            raise InputError(
                f"{name} needs {', '.join(missing)}",
                field="--traces",
                remedy="docs/studies.md says where they come from",
            )
        _main(studies[name].module)(*(arguments or _arguments(studies[name], quick)))


def _arguments(study: Any, quick: bool) -> tuple[str, ...]:
    found: tuple[str, ...] = study.quick if quick else study.arguments
    return found


def _main(module: str) -> Any:
    """The study's own function."""
    try:
        return importlib.import_module(f"slurm_rl.studies.{module}").main
    except ImportError as error:
        raise EnvironmentMissing(f"a study needs {error.name}: pip install 'slurm-rl[all,test]'") from None


def _list(studies: dict[str, Any], traces: Path | None, as_json: bool) -> None:
    rows = [
        {"name": s.name, "makes": s.makes, "needs": list(s.needs), "missing": s.lacks(traces)} for s in studies.values()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        lacking = f"missing: {', '.join(row['missing'])}" if row["missing"] else "ready"
        print(f"{row['name']:<18} {row['makes']:<44} {lacking}")


def _processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    return sum(os.times()[:4])


def _all(studies: dict[str, Any], traces: Path | None, out: Path, quick: bool, as_json: bool) -> None:
    """Makes what can be made, names what is missing, and goes on."""
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for s in studies.values():
        missing, began, used, problem = s.lacks(traces), time.monotonic(), _processor_seconds(), ""
        if missing:
            problem = f"missing: {', '.join(missing)}"
        else:
            try:
                with (out / f"{s.name}.txt").open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
                    _main(s.module)(*_arguments(s, quick))
            except SlurmRlError as error:
                problem = str(error)
        seconds = None if missing else round(time.monotonic() - began, 1)
        cpu = None if missing else round(_processor_seconds() - used, 1)
        rows.append({"name": s.name, "seconds": seconds, "cpu_seconds": cpu, "problem": problem})
        print(f"{s.name}: {problem or f'{seconds:.0f} s'}", file=sys.stderr, flush=True)
        with (out / "times.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["study", "seconds", "cpu_seconds", "problem"])
            table.writerows(r.values() for r in rows)
    if as_json:
        print(json.dumps(rows))
    if all(r["problem"] for r in rows):
        raise InputError("no study could be made", field="--traces")
