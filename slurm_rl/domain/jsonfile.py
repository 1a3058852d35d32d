"""Reads a small JSON file that a user gave, with errors that name it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slurm_rl.errors import InputError


def read_json(path: Path, missing: str, remedy: str) -> Any:
    """The file's value; `missing` and `remedy` are said where there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(missing, file=str(path), remedy=remedy) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"not readable as JSON: {error}", file=str(path)) from None
