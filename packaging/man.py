"""Writes manual pages from what `--help` prints: slurm-rl.1, and slurm-rl-COMMAND.1 for each command."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from slurm_rl import __version__
from slurm_rl.cli import main as slurm_rl
from slurm_rl.cli.app import COMMANDS


def _help(words: Sequence[str]) -> str:
    said = io.StringIO()
    narrow = mock.patch.dict(os.environ, COLUMNS="78")
    with narrow, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        slurm_rl([*words, "--help"])
    return said.getvalue().strip()


def page(name: str, purpose: str, body: str, also: Sequence[str]) -> str:
    """One page in man(7)'s language; the text of --help stands as it is."""
    plain = body.replace("\\", "\\e").replace("-", "\\-")
    plain = "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in plain.splitlines())
    references = ",\n".join(f".BR {other} (1)" for other in also)
    return (
        f'.TH {name.upper()} 1 "" "slurm\\-rl {__version__}" "User Commands"\n'
        f".SH NAME\n{name} \\- {purpose}\n.SH DESCRIPTION\n.nf\n{plain}\n.fi\n.SH SEE ALSO\n{references}\n"
    )


def _subcommands(command: str) -> list[str]:
    import importlib

    import typer

    app = getattr(importlib.import_module(COMMANDS[command][0]), "app", None)
    inner = None if app is None else getattr(typer.main.get_command(app), "commands", None)
    return list(inner or ())


def pages() -> dict[str, str]:
    """Every page by its file name."""
    names = [f"slurm-rl-{name}" for name in COMMANDS]
    made = {"slurm-rl.1": page("slurm-rl", "a learned batch-scheduler backend for Slurm", _help([]), names)}
    for name, (_, purpose) in COMMANDS.items():
        inner = _subcommands(name)
        texts = [_help([name]), *(_help([name, sub]) for sub in inner)]
        made[f"slurm-rl-{name}.1"] = page(f"slurm-rl-{name}", purpose, "\n\n".join(texts), ["slurm-rl"])
    return made


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        with gzip.GzipFile(directory / f"{name}.gz", "wb", mtime=0) as file:
            file.write(text.encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
