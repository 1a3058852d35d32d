"""Where the service listens, as the service and the doctor know it."""

from __future__ import annotations

from pathlib import Path

DEFAULT_SOCKET = Path("/run/slurm-rl/slurm-rl.sock")
RESERVED = ".admin"  # what the name of the socket ends with to which strangers have no access


def reserved_path(path: Path) -> Path:
    """The socket beside the public one that only root, SlurmUser and other writers can connect to."""
    return path.with_name(path.name + RESERVED)
