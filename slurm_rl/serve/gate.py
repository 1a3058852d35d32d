"""The allowance of one stranger: connections, requests a second, and seconds of work.

Strangers are users without a say in the service, and everybody who comes over TCP. They are told apart by the accepted
socket (a uid, an address) before a byte of theirs is read. What they leave is for the plugin, root and operators.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Key = int | str  # a uid behind a unix socket, an address behind TCP

_MOST_KEPT = 4096  # strangers that are remembered


@dataclass(frozen=True, slots=True)
class Allowance:
    """What somebody may have at a time, and how quickly it comes back."""

    connections: int
    requests: float  # a second, and twice that at once
    work: float  # seconds of processor time a second, and ten times that at once


EACH = Allowance(connections=8, requests=20.0, work=0.05)


class _Share:
    """What somebody has left."""

    __slots__ = ("allowance", "at", "open", "requests", "work")

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.allowance = allowance
        self.open = 0
        self.requests = 2 * allowance.requests
        self.work = 10 * allowance.work
        self.at = now

    def renew(self, now: float) -> None:
        since, self.at = max(0.0, now - self.at), now
        self.requests = min(2 * self.allowance.requests, self.requests + since * self.allowance.requests)
        self.work = min(10 * self.allowance.work, self.work + since * self.allowance.work)

    @property
    def untouched(self) -> bool:
        return self.open == 0 and self.requests >= 2 * self.allowance.requests and self.work >= 10 * self.allowance.work


class Gate:
    """Keeps the accounts; used by the loop's thread, `charge` by any."""

    def __init__(
        self,
        writers: Callable[[], frozenset[int]] = frozenset,
        connections: int = 128,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.writers = writers
        self._clock = clock
        # Half of all connections is kept for those who are no strangers. A flood on TCP is no concern of local users.
        everybody = Allowance(max(2, connections // 2), 5 * EACH.requests, 3 * EACH.work)
        self._local, self._remote = (_Share(everybody, clock()) for _ in range(2))
        self._shares: dict[Key, _Share] = {}

    def is_stranger(self, key: Key) -> bool:
        return not (isinstance(key, int) and key in self.writers())

    def enter(self, key: Key) -> str:
        """Counts a new connection; why it is turned away, or "". One that was let in must `leave`."""
        if not self.is_stranger(key):
            return ""
        shares = self._renewed(key)
        if any(s.open >= s.allowance.connections for s in shares):
            return "too many connections at a time"
        if any(s.requests < 1 for s in shares):
            return "too many requests: try again in a second"
        for share in shares:
            share.open += 1
            share.requests -= 1
        return ""

    def leave(self, key: Key) -> None:
        for share in (self._shares.get(key), self._everybody(key)):
            if share is not None and share.open > 0:
                share.open -= 1

    def wait_for_work(self, key: Key) -> float:
        """Seconds until a stranger may have more done for it; 0: now."""
        return max(0.0, *(0.01 - s.work / s.allowance.work if s.work <= 0 else 0.0 for s in self._renewed(key)))

    def charge(self, key: Key, seconds: float) -> None:
        """Puts work that was done on a stranger's account."""
        for share in (self._shares.get(key), self._everybody(key)):
            if share is not None:
                share.work -= seconds

    def _everybody(self, key: Key) -> _Share:
        return self._local if isinstance(key, int) else self._remote

    def _renewed(self, key: Key) -> tuple[_Share, _Share]:
        now = self._clock()
        share = self._shares.get(key)
        if share is None:
            if len(self._shares) >= _MOST_KEPT:
                self._forget(now)
            share = self._shares[key] = _Share(EACH, now)
        everybody = self._everybody(key)
        share.renew(now)
        everybody.renew(now)
        return share, everybody

    def _forget(self, now: float) -> None:
        """Drops accounts that are as good as new; if there are none, those without a connection."""
        for share in self._shares.values():
            share.renew(now)
        self._shares = {k: s for k, s in self._shares.items() if not s.untouched}
        if len(self._shares) >= _MOST_KEPT:
            self._shares = {k: s for k, s in self._shares.items() if s.open}
