"""The holder of the lease: a process of a machine, distinct from a later one with the same pid."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def own_name() -> str:
    """Who we are in a lease: host, process, and when that process began (numbers of processes are reused)."""
    return f"{socket.gethostname()}/{os.getpid()}/{_began(os.getpid())}"


def _began(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_gone(holder: str) -> bool:
    """Whether the holder was a process of this machine that has ended; of another machine's nothing is known."""
    host, _, rest = holder.partition("/")
    pid, _, began = rest.partition("/")
    return host == socket.gethostname() and pid.isdecimal() and _began(int(pid)) != began
