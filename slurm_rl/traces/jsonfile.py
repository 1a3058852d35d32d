"""Decodes JSON traces and numbers their entries, which have no line numbers."""

from __future__ import annotations

from typing import Any

import msgspec

from slurm_rl.traces.files import Source
from slurm_rl.traces.table import Screen
from slurm_rl.traces.trace import Ints


def decode(source: Source, raw: bytes) -> Any:
    """The whole file as plain values."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise source.error(f"not readable as JSON: {error}", remedy="is the file complete?") from None


def entries_screen(source: Source, count: int) -> Screen:
    """A screen whose line numbers are the entries' positions, from 1."""

    def position(rows: Ints) -> list[int]:
        return [r + 1 for r in rows.tolist()]

    return Screen(source, count, position)
