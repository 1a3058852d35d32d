"""Calls that keep the interpreter behave as Python's own."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

import pytest

from slurm_rl.obs import quick_calls


def test_a_conversation(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as door, socket.socket(socket.AF_UNIX) as guest:
        door.bind(str(tmp_path / "s"))
        door.listen()
        door.setblocking(False)
        with pytest.raises(BlockingIOError):
            quick_calls.accept(door.fileno())
        guest.connect(str(tmp_path / "s"))
        visitor = quick_calls.accept(door.fileno())
        assert not os.get_blocking(visitor)
        assert not os.get_inheritable(visitor)
        with pytest.raises(BlockingIOError):
            quick_calls.receive(visitor, 100)
        guest.sendall(b"a\0b" * 10)
        assert quick_calls.receive(visitor, 4, socket.MSG_PEEK) == b"a\0ba"
        assert quick_calls.receive(visitor, 1000) == b"a\0b" * 10
        assert quick_calls.send(visitor, b"answer", socket.MSG_NOSIGNAL) == 6
        quick_calls.close(visitor)
        assert guest.recv(100) == b"answer"
        assert guest.recv(100) == b""
        with pytest.raises(OSError, match="Bad file descriptor"):
            quick_calls.close(visitor)


def test_nobody_listens_any_more() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(BrokenPipeError):
            quick_calls.send(ours.fileno(), b"answer", socket.MSG_NOSIGNAL)
        assert quick_calls.receive(ours.fileno(), 10) == b""


def test_a_line_of_a_file_under_a_lock(tmp_path: Path) -> None:
    file = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    other = os.open(tmp_path / "f", os.O_WRONLY)
    try:
        quick_calls.lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            quick_calls.lock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert quick_calls.write(file, b"1 2 3\n") == 6
        quick_calls.lock(file, fcntl.LOCK_UN)
        quick_calls.lock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert (tmp_path / "f").read_bytes() == b"1 2 3\n"
    finally:
        os.close(file)
        os.close(other)


def test_a_full_disk_is_said() -> None:
    file = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left"):
            quick_calls.write(file, b"1\n")
    finally:
        os.close(file)
