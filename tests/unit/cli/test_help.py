"""Every command explains itself in one style, with an example, and fits 80 columns."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from slurm_rl.cli import main
from slurm_rl.cli.app import COMMANDS


def _leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words
    else:
        for name, sub in inner.items():
            yield from _leaves(sub, (*words, name))


def _lines() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, (module, _) in COMMANDS.items():
        app = getattr(importlib.import_module(module), "app", None)
        found += [(name,)] if app is None else _leaves(typer.main.get_command(app), (name,))
    return found


@pytest.mark.parametrize("words", _lines(), ids=" ".join)
def test_help_has_an_example_and_fits_a_terminal(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0
    assert "Example" in shown
    assert f"slurm-rl {words[0]}" in shown.partition("Example")[2]
    assert "╭" not in shown, "boxes are another style"
    assert max(map(len, shown.splitlines())) <= 80
