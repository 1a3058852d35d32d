"""The rule `slurm` of docs/backfill.md in plain Python: the main scheduler, sched/backfill and select/cons_tres.

Read from the sources of Slurm 22.05.8 and checked against recorded schedules of a real slurmctld.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from reference.blocks import insists
from reference.model import Ask, Placement, View, partitions_of
from reference.place import least_loaded, with_gpus
from reference.reserved import masked
from reference.simulator import NEVER, Live, Reference

FIRST_BATCH = 30  # seconds of the first batch of ends in select/cons_tres; each further batch is twice as wide


@dataclass
class Planned:
    """Backfill's table: from when to when which nodes are not reserved for a pending job."""

    records: list[tuple[int, int, set[int]]]

    def free(self, usable: set[int], begin: int, end: int) -> tuple[set[int], int]:
        """Usable nodes free from `begin` to `end`, and when to look again: when a record begins that has others."""
        nodes, later = set(usable), 0
        for i, (starts, ends, available) in enumerate(self.records):
            if ends <= begin:
                continue
            following = self.records[i + 1][2] if i + 1 < len(self.records) else set()
            if not later and not usable & following <= nodes & available:
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
    bf_window_linear: int = 0
    bf_max_job_test: int = 500
    bf_max_job_start: int = 0
    bf_max_job_user: int = 0
    bf_max_job_part: int = 0
    default_queue_depth: int = 100
    sched_interval: int = 60
    least_loaded: bool = False
    limit_check: int = 0
    over_time_limit: int = 0
    resv_over_run: int = 0
    start_overhead: int = 0
    clean_up: int = 0
    last_cycle: int = field(default=-NEVER, init=False)

    def __post_init__(self) -> None:
        self.backfill = "slurm"
        super().__post_init__()
        self.last_full: dict[int, int] = {}

    # --- placing and running ----------------------------------------------------------------------------------------

    def _place_in(self, view: View, ask: Ask) -> Placement | None:
        if self.placement == "slurm" and self.least_loaded and len(ask.nodes) > 1 and not insists(ask):
            return with_gpus(view, ask, least_loaded(view, ask))
        return super()._place_in(view, ask)

    def _runs(self, job: Live) -> int:
        return self._needs(job) + self.start_overhead

    def _granted(self, job: Live) -> int:
        """The limit, or the next look of slurmctld's beyond it."""
        limit = job.limit + self.over_time_limit
        end = self.reserved.end_of(job)
        if end is not None:
            limit = min(limit, end + self.resv_over_run - job.start)
        if not self.limit_check:
            return limit
        return -(-(job.start + limit) // self.limit_check) * self.limit_check - job.start

    def _start(self, job: Live, placement: Placement) -> None:
        super()._start(job, placement)
        job.end += self.clean_up

    def _nodes_of_partition(self, job: Live) -> set[int]:
        """Those of its first partition, and whichever others it may use."""
        name = partitions_of(self.cluster, job.row)[0]
        return {i for i, n in enumerate(self.nodes) if name in n.partitions} | set(job.ask.nodes)

    # --- passes -----------------------------------------------------------------------------------------------------

    def _passes(self) -> None:
        """The main scheduler where something happened, and a cycle no sooner than an interval after the last one."""
        self._renew_fairshare()
        if self.tick < self.now:  # nobody waited then
            self.last_cycle, self.tick = self.tick, NEVER
        if self.touched and self.tick == NEVER:
            due = self.last_cycle + self.bf_interval
            if self.clean_up and due < self.now and any(self.touched.values()):
                self.last_cycle = max(due, self.now - self.clean_up)  # that cycle came before the nodes were free
                due = self.last_cycle + self.bf_interval
            self.tick = max(self.now, due)
        for pool in sorted(self.touched):
            self._note_starts(pool, self._pass)
            del self.touched[pool]
            if self._queued_in(pool):
                self.due.add(pool)
        if self.tick == self.now:
            for pool in sorted(self.due):
                self._note_starts(pool, self._cycle)
            self.due.clear()
            self.tick, self.last_cycle = NEVER, self.now

    def _pass(self, pool: int) -> None:
        """S1: a job that does not fit closes its partition, and the partition's nodes to others."""
        if self.preempt:
            while self._make_room(pool):
                pass
        order = self._ordered(pool)
        if not order:
            return
        order = [j for j in order if self._why_held(j) != "reserved"]
        if self.now - self.last_full.get(pool, -NEVER) < self.sched_interval:
            order = order[: self.default_queue_depth]
        else:
            self.last_full[pool] = self.now
        closed: set[int] = set()
        full: set[str] = set()  # reservations with a job that did not fit
        for job in order:
            mine, own = self._nodes_of_partition(job), self.reserved.own(job)
            if self._why_held(job) or mine <= closed or (own is not None and own.name in full):
                continue
            left = self.reserved.open(job, self.now, mine - closed)
            placement = self._place(masked(self.free, left), job.ask)
            if placement is not None:
                self._start(job, placement)
            elif own is not None:
                full.add(own.name)
            elif not self._beside(job, pool) or self._could_if_empty(job.ask, left):
                closed |= mine

    def _beside(self, job: Live, pool: int) -> bool:
        """Whether a reservation keeps any node of the pool from the job."""
        inside = set(self._nodes_of_pool(pool))
        return any(self.reserved.nodes[r.name] & inside for r in self.reserved.keeping(job, self.now))

    def _could_if_empty(self, ask: Ask, nodes: set[int]) -> bool:
        """V7: whether nodes that are up could hold a job if nothing ran there."""
        return self._place(masked(View.empty(self.nodes, self.told_apart), nodes - self.down), ask) is not None

    def _cycle(self, pool: int) -> None:
        """S3: the first jobs in order, each started or given a reservation."""
        begin = self.now // self.bf_resolution * self.bf_resolution
        end = (self.now + self.bf_window) // self.bf_resolution * self.bf_resolution
        table = Planned([(begin, end, set(self._nodes_of_pool(pool)))])
        tested: dict[str, int] = {}
        starts, asked = 0, 0
        for job in self._ordered(pool):
            # L3: a limit on jobs is looked at first, licences next, amounts when cons_tres has been asked.
            held = self._why_held(job)
            if held in ("jobs", "reserved"):
                continue
            user, part = f"user {job.row.user}", f"partition {partitions_of(self.cluster, job.row)[0]}"
            over = any(most and tested.get(who, 0) >= most for who, most in self._most(user, part))
            for who in (user, part):
                tested[who] = tested.get(who, 0) + (not over)
            if held == "licences" and not over:
                continue
            asked += 1
            if asked > self.bf_max_job_test:
                break
            if over or held:
                continue
            self._plan(job, table, pool)
            starts += job.state == "running"
            if self.bf_max_job_start and starts >= self.bf_max_job_start:
                break

    def _most(self, user: str, part: str) -> tuple[tuple[str, int], ...]:
        return (user, self.bf_max_job_user), (part, self.bf_max_job_part)

    def _plan(self, job: Live, table: Planned, pool: int) -> None:
        """S5: starts a job, or reserves whole nodes from the earliest time at which cons_tres would let it run."""
        # select/cons_tres leaves out nodes that are too small in CPUs or memory, but not those without the job's GPUs.
        usable = {
            n
            for n in self._nodes_of_partition(job)
            if self.nodes[n].cpus >= job.ask.cpu and self.nodes[n].mem >= job.ask.mem
        }
        later = self.now
        while True:
            looked = self._look_at_reservations(job, later, table.records[-1][1])
            if looked is None:
                return
            begin, again = looked
            left = self.reserved.open(job, begin, usable)
            allowed, later = table.free(left, begin, begin + job.limit)
            if again and (not later or again < later):
                later = again
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
            up = (start + job.limit) // self.bf_resolution * self.bf_resolution
            if table.overlaps(used, down, up):
                later = start
                continue
            down = max(down, table.records[0][0])
            table.reserve(used, down, max(up, down + self.bf_resolution))
            return

    def _look_at_reservations(self, job: Live, at: int, window: int) -> tuple[int, int] | None:
        """V8, job_test_resv: when a job that is tried at a time would be, and when to look again, or 0; None: never."""
        own = self.reserved.own(job)
        mine = self._nodes_of_partition(job)
        if own is not None:
            mine = set(range(len(self.nodes))) if "FLEX" in own.flags else self.reserved.nodes[own.name]
        overlap = False
        for _ in range(11):
            for r in self.reserved.keeping(job, at):
                if own is None and mine <= self.reserved.nodes[r.name] and ("MAINT" in r.flags or r.every_node):
                    at = r.end
                    break
                overlap = overlap or bool(mine & self.reserved.nodes[r.name])
            else:
                break
        else:
            return None
        if not self.reserved.lasts(job, at):
            return None
        ends = [r.end for r in self.reserved.all if r.end >= at]
        again = -(-min(ends) // self.bf_resolution) * self.bf_resolution + 1 if overlap and ends else 0
        return at, again if again < window else 0

    def _will_run(self, ask: Ask, allowed: set[int], pool: int) -> tuple[int, Placement] | None:
        """S4: when and where a job could start if running jobs use up their limits, on the allowed nodes.

        Running jobs leave in batches that double in width, and the answer is the end of a batch's last job. Jobs on any
        allowed node count, also on nodes whose GPUs are of another type than the one asked for.
        """
        here = self._place(masked(self.free, allowed), ask)
        if here is not None:
            return self.now, here
        then = self.free.copy()
        running = [j for j in self._running_in(pool) if any(n in allowed for n, _, _ in j.held)]
        width, base, at = FIRST_BATCH, 0, 0
        while at < len(running):
            base = base or running[0].expected_end // FIRST_BATCH * FIRST_BATCH + FIRST_BATCH
            given = False
            while at < len(running) and running[at].expected_end <= base + width:
                job = running[at]
                then.give(job.ask, job.held)
                at, given = at + 1, True
            width = width + self.bf_window_linear if self.bf_window_linear else 2 * width
            placement = self._place(masked(then, allowed), ask) if given else None
            if placement is not None:
                return max(job.expected_end, self.now + 1), placement
        return None
