"""One lab command at a time in a directory; what a killed one leaves does not block the next."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.errors import InputError
from slurm_rl.lab.lab import _locked


def test_the_lock_of_a_killed_command_is_waited_for(tmp_path: Path) -> None:
    """Its child, not yet a program of its own, holds the lock for a moment longer."""
    code = (
        "import os, pathlib, signal, sys, time\n"
        "from slurm_rl.lab.lab import _locked\n"
        "with _locked(pathlib.Path(sys.argv[1])):\n"
        "    if os.fork():\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    sys.stdin.read(1)\n"
        "    os._exit(0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE) as killed:
        killed.wait()
        with (tmp_path / "lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the child has it
        assert killed.stdin is not None
        killed.stdin.close()  # it ends now
        with _locked(tmp_path):
            assert (tmp_path / "lock").read_text().isdecimal()


def test_a_command_that_runs_is_not_waited_for(tmp_path: Path) -> None:
    message = "another slurm-rl lab command"
    with _locked(tmp_path), pytest.raises(InputError, match=message), _locked(tmp_path):
        raise AssertionError("two commands at a time")
