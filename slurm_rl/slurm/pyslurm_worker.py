"""A process that speaks to Slurm through pyslurm, so that a call that hangs or exits does not touch our own.

pyslurm holds Python's global lock while it waits for slurmctld, and ends the process that imports it without a
configuration. The worker takes lines of `JOB FACTOR SECONDS` and answers each with `answer JOB ERRNO MESSAGE`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import weakref
from typing import IO

from slurm_rl.errors import SlurmError
from slurm_rl.slurm.command import PATIENCE, Commands

_READY = "ready"
_ANSWER = "answer"


class Silence(Exception):
    """The worker gave no answer; whether the update was written is not known."""


class Worker:
    """A running worker; raises SlurmError if it cannot be started. One thread may use it at a time."""

    def __init__(self, commands: Commands) -> None:
        commands.check_conf()
        self._commands = commands
        self._unread = b""
        self._last_words = "without a word"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, f"{commands.timeout + PATIENCE}"],
            env=commands.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # Slurm's library writes its errors there
            bufsize=0,
            user=commands.user,
        )
        self.end = weakref.finalize(self, _end, self._process)
        try:
            self._hear(_READY, time.monotonic() + commands.timeout)
        except Silence as silence:
            self.end()
            raise SlurmError(f"pyslurm: {silence}") from None

    @property
    def alive(self) -> bool:
        return self.end.alive and self._process.poll() is None

    def write(self, job_id: int, site_factor: int, deadline: float) -> tuple[int, str]:
        """Slurm's error number and message, 0 and "" if it took the factor; raises Silence."""
        now = time.monotonic()
        until = min(deadline, now + self._commands.timeout)
        line = f"{job_id} {site_factor} {until - now + PATIENCE:.1f}\n"
        try:
            os.write(_pipe(self._process.stdin), line.encode())
        except BrokenPipeError:
            raise Silence("the worker process ended") from None
        errno, _, message = self._hear(f"{_ANSWER} {job_id} ", until).partition(" ")
        return int(errno), message

    def _hear(self, beginning: str, deadline: float) -> str:
        """The rest of the next line that begins so."""
        began = last_word = time.monotonic()
        heard = select.poll()
        heard.register(_pipe(self._process.stdout), select.POLLIN)
        while (now := time.monotonic()) < deadline:
            if not heard.poll(1000 * min(deadline - now, PATIENCE)):
                if time.monotonic() - last_word >= PATIENCE and (why := self._commands.silent_because()):
                    raise Silence(why)
                continue
            chunk = os.read(_pipe(self._process.stdout), 65_536)
            if not chunk:
                raise Silence(f"the worker process ended: {self._last_words}")
            last_word = time.monotonic()
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                if text.startswith(beginning):
                    return text.removeprefix(beginning)
                self._last_words = text.strip() or self._last_words
        raise Silence(f"no answer within {time.monotonic() - began:.1f} s: slurmctld or munged hangs")


def _pipe(stream: IO[bytes] | None) -> int:
    if stream is None:
        raise ValueError("the worker must be started with pipes")
    return stream.fileno()


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:  # closes the pipes and waits
        process.kill()


def main() -> None:
    """The worker: ends with its standard input, or by an alarm in a call that outlives the one who asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started us
    _alarm(float(sys.argv[1]))
    import pyslurm

    _say(_READY)
    while True:
        _alarm(0)
        line = sys.stdin.readline()
        if not line:
            return
        job, factor, limit = line.split()
        _alarm(float(limit))
        try:
            pyslurm.Job(int(job)).modify(pyslurm.JobSubmitDescription(site_factor=int(factor)))
        except pyslurm.PyslurmError as error:
            errno = getattr(error, "errno", 0) or -1
            _say(f"{_ANSWER} {job} {errno} {' '.join(str(error).split())}")
        else:
            _say(f"{_ANSWER} {job} 0 ")


def _alarm(seconds: float) -> None:
    """Ends this process after so long, even inside Slurm's library; 0: never."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
