"""A solver in a process of its own: native code that crashes or hangs costs one answer, not the service."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from typing import Any

from slurm_rl.place.mip import Answer, ask_solver
from slurm_rl.place.problem import Problem, Where

_START = 60.0  # seconds to import a solver on a busy machine
_GRACE = 2.0  # beyond the time that the solver was given
_LENGTH = struct.Struct("!Q")


class SolverLost(Exception):
    """The process ended, or did not answer in time."""


class Apart:
    """Asks a solver in another process, which is started when it is first needed, and anew when it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # a process that was forked from ours must not use our pipe

    def ask(self, problem: Problem, where: dict[int, Where], solver: str, seconds: float, gap: float) -> Answer:
        """As `ask_solver` does; SolverLost if there is no answer."""
        given = (problem.jobs, problem.kinds, problem.nodes, problem.weights, problem.mix)
        with self._lock:
            process = self._running()
            try:
                _send(process.stdin, (given, where, solver, seconds, gap))
                answer = _receive(process, seconds + _GRACE)
            except BaseException:
                self.end()
                raise
        if isinstance(answer, Exception):
            raise answer
        found: Answer = answer
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        self.end()
        path = os.pathsep.join(p for p in sys.path if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "slurm_rl.place.apart"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
        )
        self._owner = os.getpid()
        try:
            _receive(self._process, _START)
        except BaseException:
            self.end()
            raise
        return self._process

    def end(self) -> None:
        """Ends the process, if it is ours."""
        process, self._process = self._process, None
        if process is not None:
            if self._owner == os.getpid():
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


SHARED = Apart()
atexit.register(SHARED.end)


def _send(pipe: Any, value: object) -> None:
    raw = pickle.dumps(value)
    try:
        pipe.write(_LENGTH.pack(len(raw)) + raw)
        pipe.flush()
    except OSError as error:
        raise SolverLost(f"its process is gone ({error.strerror})") from None


def _receive(process: subprocess.Popen[bytes], seconds: float) -> Any:
    """What the process says next, whole."""
    pipe: Any = process.stdout
    deadline = time.monotonic() + seconds
    raw, wanted, length = b"", _LENGTH.size, -1
    while True:
        while len(raw) < wanted:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise SolverLost(f"no answer within {seconds:.1f} s")
            part = os.read(pipe.fileno(), 1 << 16)
            if not part:
                code = process.wait()
                how = signal.Signals(-code).name if code < 0 else f"code {code}"
                raise SolverLost(f"its process ended with {how}")
            raw += part
        if length >= 0:
            return pickle.loads(raw)  # noqa: S301 - from our own child
        (length,) = _LENGTH.unpack(raw[: _LENGTH.size])
        raw, wanted = raw[_LENGTH.size :], length


def _serve() -> None:
    """Answers until the other end is closed."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # solvers print
    _send(out, "ready")
    while head := sys.stdin.buffer.read(_LENGTH.size):
        (length,) = _LENGTH.unpack(head)
        given, where, solver, seconds, gap = pickle.loads(sys.stdin.buffer.read(length))  # noqa: S301 - parent
        jobs, kinds, nodes, weights, mix = given
        answer: Answer | Exception
        try:
            answer = ask_solver(Problem(jobs, kinds, nodes, weights=weights, mix=mix), where, solver, seconds, gap)
        except Exception as error:
            answer = error
        _send(out, answer)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, SolverLost):
        _serve()
