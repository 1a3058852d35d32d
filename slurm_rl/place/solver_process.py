"""A solver in a separate process: native code that crashes or hangs costs one answer, not the service."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from slurm_rl.errors import EnvironmentMissing
from slurm_rl.place.mip import Answer, ask_solver, import_solvers
from slurm_rl.place.problem import PlacementProblem, Where

_START = 60.0  # seconds to import a solver on a busy machine
_GRACE = 2.0  # beyond the time that the solver was given


class SolverLost(Exception):
    """The process ended, or did not answer in time."""


class SolverProcess:
    """Asks a solver in another process, which is started when it is first needed, and anew when it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._owner = 0  # a process that was forked from ours must not use our pipe

    def ask(
        self, problem: PlacementProblem, where: dict[int, Where], solver: str, seconds: float, gap: float
    ) -> Answer:
        """As `ask_solver` does; SolverLost if there is no answer."""
        given = (problem.jobs, problem.kinds, problem.nodes, problem.weights, problem.mix)
        with self._lock:
            try:
                self._start()
                answer = self._exchange((given, where, solver, seconds, gap), seconds + _GRACE)
            except BaseException:
                self.end()
                raise
        if isinstance(answer, Exception):
            raise answer
        found: Answer = answer
        return found

    def _start(self) -> None:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return
        self.end()
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slurm_rl.place.solver_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # solvers print
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        self._owner = os.getpid()
        self._exchange(None, _START)

    def _exchange(self, question: object, seconds: float) -> Any:
        """What the process says next, once it has been asked (if there is a question)."""
        pipe: Any = self._pipe
        process: Any = self._process
        try:
            if question is not None:
                pipe.send(question)
            if not pipe.poll(seconds):
                raise SolverLost(f"no answer within {seconds:.1f} s")
            return pipe.recv()
        except (EOFError, OSError):
            code = process.wait(_GRACE)
            how = signal.Signals(-code).name if code < 0 else f"code {code}"
            raise SolverLost(f"its process ended with {how}") from None

    def end(self) -> None:
        """Ends the process, if it is ours."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


SHARED = SolverProcess()
atexit.register(SHARED.end)


def _serve(pipe: Connection) -> None:
    """Answers until the other end is closed."""
    with contextlib.suppress(EnvironmentMissing):  # whoever requests is told
        import_solvers()
    pipe.send("ready")
    while True:
        given, *question = pipe.recv()
        jobs, kinds, nodes, weights, mix = given
        answer: Answer | Exception
        try:
            answer = ask_solver(PlacementProblem(jobs, kinds, nodes, weights=weights, mix=mix), *question)
        except Exception as error:
            answer = error
        pipe.send(answer)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, EOFError, BrokenPipeError):
        _serve(Connection(int(sys.argv[1])))
