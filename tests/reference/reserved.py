"""Reservations in plain Python: which nodes they leave to a job that starts at some time (V1 to V5, V9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from builders import Job

from reference.model import View
from slurm_rl.domain.reservations import Reservation


class Reserving(Protocol):
    """What reservations look at."""

    row: Job
    account: str
    limit: int


def masked(view: View, allowed: set[int]) -> View:
    """A view with nothing on the nodes outside of `allowed`."""
    left = view.copy()
    for n in set(range(len(view.cpu))) - allowed:
        left.cpu[n] = left.mem[n] = left.gpus[n] = 0
        left.others[n] = dict.fromkeys(left.others[n], 0)
        if left.used is not None:
            left.used[n] = [card.parts for card in left.nodes[n].cards]
    return left


class Reserved:
    """All reservations of a replay, in the order of their file."""

    def __init__(self, reservations: Sequence[Reservation]) -> None:
        self.all = list(reservations)
        self.nodes = {r.name: {int(n) for n in r.nodes} for r in self.all}

    def own(self, job: Reserving) -> Reservation | None:
        return next((r for r in self.all if r.name == job.row.reservation), None)

    def lasts(self, job: Reserving, at: int) -> bool:
        """V2."""
        own = self.own(job)
        return own is None or "FLEX" in own.flags or own.start <= at < own.end

    def keeping(self, job: Reserving, at: int) -> list[Reservation]:
        """V1, V3: those that keep their nodes from a job that starts at `at`."""
        own = self.own(job)
        found = [r for r in self.all if r is not own and r.start < at + job.limit and r.end > at]
        if own is not None and "MAINT" in own.flags:
            return []
        if own is not None and "OVERLAP" in own.flags:
            return [r for r in found if "MAINT" in r.flags]
        return found

    def open(self, job: Reserving, at: int, everything: set[int]) -> set[int]:
        """The nodes that are left to a job that starts at `at`."""
        own = self.own(job)
        left = set(everything)
        if own is not None and "FLEX" not in own.flags:
            left &= self.nodes[own.name] if self.lasts(job, at) else set()
        for r in self.keeping(job, at):
            left -= self.nodes[r.name]
        return left

    def end_of(self, job: Reserving) -> int | None:
        """V5: when a job of a reservation is killed at the latest."""
        own = self.own(job)
        return None if own is None or "FLEX" in own.flags else own.end

    def refuses(self, row: Job, account: str) -> bool:
        """V9, but for room."""
        own = next((r for r in self.all if r.name == row.reservation), None)
        if own is None:
            return bool(self.all and row.reservation)
        return not own.admits(row.user, account) or ("FLEX" not in own.flags and row.submit >= own.end)

    def boundaries(self) -> list[int]:
        return sorted({t for r in self.all for t in (r.start, r.end)})

    def ends_after(self, now: int) -> set[int]:
        return {r.end for r in self.all if r.end > now}
