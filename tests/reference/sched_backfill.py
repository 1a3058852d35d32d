"""sched/backfill and select/cons_tres on named nodes, in plain Python, after Slurm 22.05.8.

Read from Slurm's sources and checked against recorded schedules of a real slurmctld. It differs from the `slurm` rule
of docs/backfill.md, which promises amounts of node classes; docs/notes has the reasons and the figures.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from reference.model import Ask, Placement, View
from reference.place import with_gpus
from reference.simulator import NEVER, Live, Reference

FIRST_BATCH = 30  # seconds of the first batch of ends in select/cons_tres; each further batch is twice as wide


def consecutive(view: View, ask: Ask, allowed: set[int]) -> list[tuple[int, int]] | None:
    """The tightest run of consecutive nodes that suffices, else the largest ones; within a run, the first nodes.

    A run is broken by each node without room for a unit. Tight means the fewest units that the run could take.
    """
    rooms = {n: view.room(ask, n, ask.units) for n in ask.nodes if n in allowed}
    runs: list[list[int]] = []
    for n in sorted(n for n, room in rooms.items() if room):
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    left, chosen = ask.units, []
    while left and runs:
        sizes = [sum(rooms[n] for n in run) for run in runs]
        enough = [i for i, size in enumerate(sizes) if size >= left]
        best = min(enough, key=lambda i: (sizes[i], i)) if enough else max(range(len(runs)), key=lambda i: sizes[i])
        run = runs.pop(best)
        alone = [n for n in run if rooms[n] >= left]  # a single node that holds the rest: the one with least room
        for n in [min(alone, key=lambda n: (rooms[n], n))] if alone else run:
            units = min(rooms[n], left)
            if units:
                chosen.append((n, units))
                left -= units
    return None if left else sorted(chosen)


@dataclass
class Planned:
    """Backfill's table: from when to when which nodes are not reserved for a pending job."""

    records: list[tuple[int, int, set[int]]]

    def free(self, begin: int, end: int) -> tuple[set[int], int]:
        """Nodes free from `begin` to `end`, and when to look again: the end of a record after which others are free."""
        nodes, later = set(self.records[0][2]) | {n for r in self.records for n in r[2]}, 0
        for i, (starts, ends, available) in enumerate(self.records):
            if ends <= begin:
                continue
            if not later and i + 1 < len(self.records) and not self.records[i + 1][2] <= available:
                later = ends
            if starts > end:
                break
            nodes &= available
        return nodes, later

    def overlaps(self, nodes: set[int], begin: int, end: int) -> bool:
        return any(e > begin and b < end and not nodes <= free for b, e, free in self.records)

    def reserve(self, nodes: set[int], begin: int, end: int) -> None:
        """Takes whole nodes out of the table, whatever the job uses of them."""
        cut = []
        for b, e, free in self.records:
            marks = sorted({b, e, *(t for t in (begin, end) if b < t < e)})
            for x, y in itertools.pairwise(marks):
                cut.append((x, y, free - nodes if begin <= x and y <= end else set(free)))
        joined = cut[:1]
        for b, e, free in cut[1:]:
            if free == joined[-1][2]:
                joined[-1] = (joined[-1][0], e, free)
            else:
                joined.append((b, e, free))
        self.records = joined


@dataclass
class SlurmReference(Reference):
    """A replay under Slurm's own rules; the options are slurm.conf's."""

    bf_interval: int = 30
    bf_resolution: int = 60
    bf_window: int = 86400
    bf_max_job_test: int = 500
    last_cycle: int = field(default=-(2**40), init=False)

    def __post_init__(self) -> None:
        self.backfill, self.placement = "slurm", "slurm"
        super().__post_init__()

    def _place(self, view: View, ask: Ask) -> Placement | None:
        return with_gpus(view, ask, consecutive(view, ask, set(ask.nodes)))

    def _passes(self) -> None:
        """The main scheduler at every event, and a cycle no sooner than `bf_interval` after the last one."""
        touched = bool(self.touched)
        for pool in sorted(self.touched):
            self._note_starts(pool, self._pass)
        self.touched.clear()
        if touched and self.queue and self.tick == NEVER:
            self.tick = max(self.now, self.last_cycle + self.bf_interval)
        if self.tick == self.now:
            self.tick, self.last_cycle = NEVER, self.now
            for pool in sorted({j.ask.pool for j in self.queue}):
                self._note_starts(pool, self._slurm_cycle)

    def _slurm_cycle(self, pool: int) -> None:
        nodes = set(self._nodes_of_pool(pool))
        table = Planned([(self.now, self.now + self.bf_window, set(nodes))])
        for job in self._ordered(pool)[: self.bf_max_job_test]:
            self._plan(job, table, pool)

    def _plan(self, job: Live, table: Planned, pool: int) -> None:
        """Starts a job, or reserves whole nodes from the earliest time at which cons_tres would let it run."""
        later = self.now
        while True:
            begin = later
            allowed, later = table.free(begin, max(begin, self.now) + job.limit)
            found = self._will_run(job.ask, allowed, pool)
            if found is None:
                if later:
                    continue
                return
            start = max(found[0], begin)
            if start <= self.now:
                self._start(job, found[1])
                return
            if later and start > later:
                continue
            if start > self.now + self.bf_window:
                return
            used = {n for n, _, _ in found[1]}
            down = start // self.bf_resolution * self.bf_resolution
            up = max((start + job.limit) // self.bf_resolution * self.bf_resolution, down + self.bf_resolution)
            if table.overlaps(used, down, up):
                later = start
                continue
            table.reserve(used, max(down, self.now), up)
            return

    def _will_run(self, ask: Ask, allowed: set[int], pool: int) -> tuple[int, Placement] | None:
        """When and where a job could start if running jobs use up their limits, on the allowed nodes.

        Running jobs leave in batches that double in width, and the answer is the end of a batch's last job. Jobs on any
        allowed node count, also on nodes whose GPUs are of another type than the one asked for.
        """
        here = with_gpus(self.free, ask, consecutive(self.free, ask, allowed))
        if here is not None:
            return self.now, here
        then = self.free.copy()
        running = [j for j in self._running_in(pool) if any(n in allowed for n, _, _ in j.held)]
        width, base, at = FIRST_BATCH, 0, 0
        while at < len(running):
            while True:
                job = running[at]
                base = base or job.expected_end - job.expected_end % FIRST_BATCH + FIRST_BATCH
                then.give(job.ask, job.held)
                at += 1
                if at == len(running) or running[at].expected_end > base + width:
                    break
            width *= 2
            while at < len(running) and running[at].expected_end > base + width:
                width *= 2
            placement = with_gpus(then, ask, consecutive(then, ask, allowed))
            if placement is not None:
                return max(job.expected_end, self.now + 1), placement
        return None
