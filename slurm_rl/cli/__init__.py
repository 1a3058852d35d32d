"""The command line: `slurm-rl COMMAND …`. Commands import their modules when they run."""

from __future__ import annotations

from slurm_rl.cli.app import main

__all__ = ["main"]
