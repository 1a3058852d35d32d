"""The next run of this job: its expected wait, its limit, and the requeue itself."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from slurm_rl.errors import SlurmError, SlurmRlError
from slurm_rl.grow.budget import Budget
from slurm_rl.grow.pressure import Pressure

_ASK_EVERY = 60.0  # the service is not asked more often while nothing has to be decided


@dataclass(frozen=True, slots=True)
class NextRun:
    """What a requeue would bring."""

    seconds: float  # to train
    limit: float | None = None  # the longer limit to ask for, in seconds; None: the job keeps its own
    wait: float | None = None  # by the service; None: not known


class Requeue:
    """`wish`: never (False), whatever the queue is like (True), or if the wait is at most so many seconds.

    `longest` is the longest limit, in seconds, that the next run may ask for: it does if the service foresees a wait
    within `wish` for such a job and the partition allows it.
    """

    def __init__(
        self,
        budget: Budget,
        wish: bool | float,
        longest: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wish, self.longest = wish, longest
        self._budget, self._clock = budget, clock
        self._bound = math.inf if isinstance(wish, bool) else float(wish)
        self._known: tuple[float, NextRun | None] | None = None
        self.done = False

    def __bool__(self) -> bool:
        return bool(self.wish) or (not isinstance(self.wish, bool) and self.wish >= 0)

    def ahead(self) -> float:
        """Seconds to train that a next run would add to this one; 0 if none is to be had soon enough."""
        if not self or not os.environ.get("SLURM_JOB_ID") or self._budget.ending:
            return 0.0
        now = self._clock()
        if self._known is None or now - self._known[0] >= _ASK_EVERY:
            self._known = now, self.next_run()
        found = self._known[1]
        return found.seconds if found is not None else 0.0

    def next_run(self) -> NextRun | None:
        """The next run as the queue is now; None: it would wait too long, or nobody knows."""
        own, longest = self._budget.whole, self.longest
        if longest is not None and longest > own:
            said = self._budget.pressure(time_limit=longest)
            if said is not None and said.allowed and self._soon(said):
                return NextRun(longest - self._budget.reserve, longest, said.wait)
        if self._bound == math.inf:
            return NextRun(own)
        said = self._budget.pressure()
        return NextRun(own, None, said.wait) if said is not None and self._soon(said) else None

    def _soon(self, said: Pressure) -> bool:
        return said.wait is not None and said.wait <= self._bound

    def put_back(self, tell: Callable[..., None]) -> None:
        """Asks Slurm to run this job again, once. Raises SlurmRlError if Slurm does not."""
        job = os.environ.get("SLURM_JOB_ID")
        # A job that gets SIGTERM may have been cancelled: it must not come back.
        if not self or not job or self.done or self._budget.ending:
            return
        self.done = True
        found = self.next_run()
        if found is None:
            tell("not requeued", wait="too long or unknown", bound=self._bound)
            return
        from slurm_rl.slurm.command import Commands

        commands = Commands(timeout=30.0)
        with _deaf():  # Slurm ends the job's processes at once, scontrol among them
            tell("requeued", **({"wait": found.wait} if found.wait is not None else {}))
            try:
                commands.run("scontrol", "requeue", job)
            except SlurmRlError as error:
                raise SlurmError(f"cannot requeue job {job}: {error}") from None
            if found.limit is not None:
                minutes = math.ceil(found.limit / 60)
                try:
                    commands.run("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")
                    tell("longer", minutes=minutes)
                except SlurmRlError as error:
                    tell("limit kept", why=str(error))


@contextmanager
def _deaf() -> Iterator[None]:
    """Commands started here do not end by SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
