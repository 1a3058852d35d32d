"""Where studies find traces: the bundled ones, and public ones in a folder of the user's."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_rl.errors import InputError
from slurm_rl.traces.files import bundled

__all__ = ["bundled", "public"]

VARIABLE = "SLURM_RL_TRACES"


def public() -> Path:
    """The folder of public traces that the user has downloaded and converted."""
    given = os.environ.get(VARIABLE)
    if not given:
        raise InputError("needs public traces", remedy="give their folder: --traces DIR (docs/studies.md says which)")
    return Path(given)
