"""`slurm-rl show-conf`: the settings in effect, and the origin of each."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def show_conf(
    config: Annotated[Path | None, typer.Option(help="The configuration file.")] = None,
    template: Annotated[bool, typer.Option("--template", help="Print a commented file with all defaults.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Print every setting with its origin: default, file or environment.

    Examples:

      slurm-rl show-conf

      slurm-rl show-conf --template > slurm-rl.toml
    """
    from slurm_rl import config as settings

    if template:
        text = settings.template()
        print(json.dumps({"template": text}) if as_json else text, end="\n" if as_json else "")
        return
    loaded = settings.load(config)
    values = asdict(loaded.config)
    if as_json:
        rows = {name: {"value": value, "origin": loaded.origins[name]} for name, value in values.items()}
        print(json.dumps({"file": str(loaded.file) if loaded.file else None, "settings": rows}))
        return
    print(f"# file: {loaded.file or 'none'}")
    rows_text = [(f"{name} = {settings.as_toml(value)}", loaded.origins[name]) for name, value in values.items()]
    width = max(len(text) for text, _ in rows_text)
    for text, origin in rows_text:
        print(f"{text:<{width}}  # {origin}")
