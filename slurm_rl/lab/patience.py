"""How long a lab waits for its daemons: while they work, not by the clock alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from slurm_rl.lab.processes import PROC, Process

STILL = 60.0  # seconds without work after which a daemon will not answer any more
LONGEST = 1800.0  # seconds after which it will not, whatever it does
_LEAST = 1 / 120  # share of a core below which a daemon does not work: a thread that polls takes as much
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(processes: Iterable[Process]) -> float:
    """Processor time that processes and their ended children have taken; of one that is gone, none."""
    return sum(_cpu_seconds(p) for p in processes)


def _cpu_seconds(process: Process) -> float:
    try:
        text = (PROC / str(process.pid) / "stat").read_text()
    except OSError:
        return 0.0
    fields = text[text.rindex(")") + 2 :].split()
    return sum(map(int, fields[11:15])) / _TICKS


class Patience:
    """Ends when the watched processes have not worked for `still` seconds, or after `longest`.

    On a busy machine a start takes as long as it takes: a daemon that compiles or imports goes on taking processor
    time, one that waits for something which never comes does not.
    """

    def __init__(
        self,
        spent: Callable[[], float],
        still: float = STILL,
        longest: float = LONGEST,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spent, self._still, self._longest, self._now = spent, still, longest, now
        self._began = self._since = now()
        self._before = spent()

    def over(self) -> bool:
        """Whether there is nothing left to wait for."""
        now = self._now()
        if now - self._began > self._longest:
            return True
        if now - self._since <= self._still:
            return False
        spent = self._spent()
        worked = spent - self._before >= _LEAST * (now - self._since)
        self._since, self._before = now, spent
        return not worked

    @property
    def waited(self) -> float:
        """Seconds so far."""
        return self._now() - self._began
