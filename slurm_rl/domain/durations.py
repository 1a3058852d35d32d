"""Durations as Slurm writes them."""

from __future__ import annotations

import re


def seconds_of(text: str) -> int:
    """`D-HH[:MM[:SS]]`, `HH:MM:SS`, `MM:SS`, minutes, or `300 sec` as scontrol shows it; ValueError if none of them."""
    text = text.strip()
    if match := re.fullmatch(r"(\d+)\s*(sec|min)?", text):
        return int(match[1]) * (1 if match[2] == "sec" else 60)
    days, dash, rest = text.rpartition("-")
    parts = [int(p) for p in rest.split(":")]
    if dash:
        parts += [0] * (3 - len(parts))
    elif len(parts) == 2:
        parts.insert(0, 0)
    hours, minutes, seconds = parts
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
