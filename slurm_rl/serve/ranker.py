"""Ranks queues for callers in a separate process, one at a time, and kills it when it takes too long.

Whatever is asked there costs neither the service's threads nor its memory; the process ends when nobody has asked for a
while, and with the service.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from slurm_rl.errors import InputError, SlurmRlError
from slurm_rl.serve.gate import Key
from slurm_rl.serve.turns import Busy, Turns

LARGEST_PRODUCT = 200_000  # jobs × nodes: 300 jobs (a request of 16 KiB) on some 650 nodes
_SECONDS = 5.0  # for one queue
_START = 120.0  # for the process to come up; kernels are in the cache by then
_IDLE = 300.0  # after which it ends
_WAITING = 8  # requests at a time, of all users; one of each
_COMMAND = [sys.executable, "-m", "slurm_rl.controller.ranking"]


class TooMuch(SlurmRlError):
    """The request is larger than what is done for anybody."""


class Ranker:
    """The process and its queue; `rank` may be called from any thread, `close` ends it."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._turns = Turns("queue", _WAITING)
        self._pool = ThreadPoolExecutor(1, "ranker")
        self._process: subprocess.Popen[bytes] | None = None
        self._settings: list[str] = []
        self._idle: threading.Timer | None = None
        self._closed = False

    def admit(self, key: Key, request: Mapping[str, Any]) -> None:
        """Refuses what is too large, and a second request of the same user; else counts it."""
        nodes = sum(c["count"] for c in request["nodes"])
        if len(request["jobs"]) * nodes > LARGEST_PRODUCT:
            raise TooMuch(f"{len(request['jobs'])} jobs on {nodes} nodes: jobs × nodes is at most {LARGEST_PRODUCT}")
        self._turns.enter(key)

    def leave(self, key: Key) -> None:
        self._turns.leave(key)

    @property
    def pool(self) -> ThreadPoolExecutor:
        """One thread: it writes to the process and waits for it."""
        return self._pool

    def work(self, request: Mapping[str, Any], policy: str, state_dir: str) -> dict[str, Any]:
        """The order of one queue; raises InputError for one that makes no sense. Runs in the pool."""
        line = msgspec.json.encode(request) + b"\n"
        process = self._running([policy, state_dir])
        try:
            _write(process, line)
            said = msgspec.json.decode(_read_line(process, self._seconds))
        except (OSError, TimeoutError, msgspec.DecodeError):
            self._kill()
            raise TooMuch(f"aborted after {self._seconds:g} s: ask for a smaller queue") from None
        self._end_later()
        if "error" in said:
            raise InputError(said["error"])
        found: dict[str, Any] = said["ranked"]
        return found

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._kill()

    def _running(self, settings: list[str]) -> subprocess.Popen[bytes]:
        if self._idle is not None:
            self._idle.cancel()
        if self._closed:
            raise Busy("the service ends")
        if self._process is None or self._process.poll() is not None or self._settings != settings:
            self._kill()
            self._settings = settings
            self._process = subprocess.Popen([*_COMMAND, *settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                _read_line(self._process, _START)
            except (OSError, TimeoutError):
                self._kill()
                raise Busy("the process that ranks did not come up") from None
        return self._process

    def _end_later(self) -> None:
        self._idle = threading.Timer(_IDLE, self._kill)
        self._idle.daemon = True
        self._idle.start()

    def _kill(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            process.wait()


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    """A request has at most some 16 KiB, which a pipe holds."""
    assert process.stdin is not None  # noqa: S101 – opened as a pipe above
    process.stdin.write(line)
    process.stdin.flush()


def _read_line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    assert process.stdout is not None  # noqa: S101 – opened as a pipe above
    descriptor, deadline, line = process.stdout.fileno(), time.monotonic() + seconds, b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise TimeoutError
        piece = os.read(descriptor, 65536)
        if not piece:
            raise BrokenPipeError
        line += piece
    return line
