"""Reads a file of tables, TOML or JSON, that a site keeps by hand."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from slurm_rl.errors import InputError

Made = TypeVar("Made")


def read_table(path: Path, remedy: str, make: Callable[[Any], Made]) -> Made:
    """What `make` makes of the file at `path`; errors name the file."""
    kind = "JSON" if path.suffix.lower() == ".json" else "TOML"
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", file=str(path), remedy=remedy) from None
    except (UnicodeDecodeError, json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"not readable as {kind}: {error}", file=str(path), remedy=remedy) from None
    try:
        return make(found)
    except InputError as error:
        raise InputError(error.message, file=str(path), field=error.field, remedy=error.remedy or remedy) from None
