"""What the backfill rule `slurm` plans with: CPUs, MB and thousandths of GPUs of each class of nodes, over time."""

from __future__ import annotations

from reference.model import WHOLE, Ask, Placement, View

Amount = tuple[int, int, int]


class Amounts:
    """Amounts that are free now, come free when running jobs end, and are taken from an instant to another."""

    def __init__(self, class_of: list[int], free: View, ends: list[tuple[Ask, Placement, int]]) -> None:
        self.class_of = class_of
        self.changes: list[tuple[int, float, int, Amount]] = []  # from, to, class, amount
        for n, c in enumerate(class_of):
            gpus = free.gpus[n] * WHOLE if free.used is None else sum(WHOLE - used for used in free.used[n])
            self.changes.append((0, float("inf"), c, (free.cpu[n], free.mem[n], gpus)))
        for ask, held, end in ends:
            for n, units, _ in held:
                self.changes.append((end, float("inf"), class_of[n], self._times(ask, units)))

    @staticmethod
    def _times(ask: Ask, units: int) -> Amount:
        return units * ask.cpu, units * ask.mem, units * (ask.gpu * WHOLE + ask.share)

    def hold(self, ask: Ask, placement: Placement, start: int, end: int) -> None:
        """A job runs on concrete nodes."""
        for n, units, _ in placement:
            self._take(start, end, self.class_of[n], self._times(ask, units))

    def _take(self, start: int, end: int, c: int, amount: Amount) -> None:
        cpu, mem, gpu = amount
        self.changes.append((start, end, c, (-cpu, -mem, -gpu)))

    def _rooms(self, ask: Ask, start: int, end: int, now: int) -> dict[int, int]:
        """How many units each eligible class has room for throughout, in the order of the cluster file."""
        instants = [start, *(t for t in self._instants(now) if start < t < end)]
        rooms = {}
        for c in sorted({self.class_of[n] for n in ask.nodes}):
            least = [min(self._at(t, c, r) for t in instants) for r in range(3)]
            each = self._times(ask, 1)
            rooms[c] = min([ask.units, *(max(least[r], 0) // each[r] for r in range(3) if each[r])])
        return rooms

    def _at(self, instant: int, c: int, resource: int) -> int:
        mine = (a[resource] for start, end, klass, a in self.changes if klass == c and start <= instant < end)
        return sum(mine)

    def _instants(self, now: int) -> list[int]:
        times = {now} | {start for start, _, _, _ in self.changes} | {end for _, end, _, _ in self.changes}
        return sorted(int(t) for t in times if now <= t < float("inf"))

    def earliest(self, ask: Ask, limit: int, now: int, since: int, horizon: int) -> int | None:
        """The first instant from `since` up to the horizon at which the amounts suffice until the limit."""
        for t in self._instants(now):
            if since <= t <= horizon and sum(self._rooms(ask, t, t + limit, now).values()) >= ask.units:
                return t
        return None

    def promise(self, ask: Ask, start: int, end: int, now: int) -> None:
        """Takes the units class by class, as far as each has them throughout."""
        left = ask.units
        for c, room in self._rooms(ask, start, end, now).items():
            units = min(room, left)
            left -= units
            self._take(start, end, c, self._times(ask, units))
