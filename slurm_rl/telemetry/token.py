"""The agents' bearer token: a file that only its owner may read."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.config import read_token


def agent_token(file: str) -> str:
    """The token in a file, by the same rules as the service's own."""
    return read_token(Path(file))
