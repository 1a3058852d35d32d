"""Turns for work that takes seconds: one question per user at a time, a few users at a time, with pauses."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from slurm_rl.errors import SlurmRlError
from slurm_rl.serve.gate import Key

_MOST_KEPT = 4096  # users whose rest is remembered


class Busy(SlurmRlError):
    """The request is not taken; another time it may be."""


class Turns:
    """Who is being served; may be used from any thread."""

    def __init__(
        self, what: str, waiting: int = 8, rest: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._waiting, self._rest, self._clock = what, waiting, rest, clock
        self._asking: Counter[Key] = Counter()
        self._until: dict[Key, float] = {}
        self._lock = threading.Lock()

    def enter(self, key: Key) -> None:
        """Takes a turn; raises Busy if the user has one, everybody's are taken, or the last one was just now."""
        with self._lock:
            if self._asking[key]:
                raise Busy(f"one {self._what} at a time for each user")
            if self._asking.total() >= self._waiting:
                raise Busy(f"{self._waiting} users wait for the same: try again in some seconds")
            left = self._until.get(key, 0.0) - self._clock()
            if left > 0:
                raise Busy(f"you have had your share: try again in {left:.0f} s")
            self._asking[key] += 1

    def leave(self, key: Key, seconds: float = 0.0) -> None:
        """Gives the turn back; the next comes after a multiple of the `seconds` that this one took."""
        with self._lock:
            self._asking[key] -= 1
            if not self._asking[key]:
                del self._asking[key]
            if self._rest and seconds:
                if len(self._until) >= _MOST_KEPT:
                    now = self._clock()
                    self._until = {k: t for k, t in self._until.items() if t > now}
                self._until[key] = self._clock() + self._rest * seconds
