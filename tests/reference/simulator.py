"""The reference simulator: the rules of docs/backfill.md in plain Python, recomputed from scratch at every pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from builders import Event, Job, Ran

from reference.blocks import by_block, insists
from reference.limits import HeldBack
from reference.model import Ask, Node, Placement, View, ask_of, gres_of, nodes_of, partitions_of, pools_of
from reference.place import consecutive, first_fit, from_cursor, node_by_node, with_gpus
from reference.reserved import Reserved, masked
from reference.score import History, Use, fair_tree, score
from slurm_rl.domain.cluster import Cluster
from slurm_rl.domain.limits import Limits
from slurm_rl.domain.reservations import Reservation

NEVER = 2**62
TierChooser = Callable[[list[Node], View, Ask], list[tuple[int, int]] | None]


@dataclass(eq=False)
class Live:
    """A job as it lives: what it asked for, what is believed of it, and what has become of it."""

    row: Job
    index: int
    ask: Ask
    work: float  # seconds on a node of speed 1
    limit: int
    size: float
    keys: list[tuple[object, ...]]
    account: str
    state: str = "waiting"
    start: int = -1
    end: int = -1
    done: float = 0.0
    estimate: float = 0.0
    inverse: float = 0.0
    spread: float = 0.0
    version: int = -1
    held: Placement = ()
    booked: tuple[int, Placement] | None = None

    @property
    def submit(self) -> int:
        return self.row.submit

    @property
    def deadline(self) -> int:
        return self.row.deadline

    @property
    def priority(self) -> float:
        return self.row.priority or 0.0

    @property
    def expected_end(self) -> int:
        return self.start + self.limit


@dataclass
class Reference:
    """One replay."""

    cluster: Cluster
    rows: Sequence[Job]
    policy: str = "fcfs"
    backfill: str = "none"
    placement: str = "first-fit"
    preempt: bool = False
    influence: float = 1.0
    lane: float = 0.0  # share of the work started that the oldest jobs may have
    events: Sequence[Event] = ()
    choose_tier: TierChooser | None = None
    limits: Limits | None = None
    reservations: Sequence[Reservation] = ()

    now: int = 0
    queue: list[Live] = field(default_factory=list)
    running: list[Live] = field(default_factory=list)
    requeued: int = 0

    def __post_init__(self) -> None:
        name, _, source = self.policy.partition("@")
        self.formula, self.source = name, source or ("user" if name == "smith" else "limit")
        self.nodes = nodes_of(self.cluster)
        self.weights = [c.weight for c in self.cluster.classes for _ in range(c.count)]
        rows = sorted(self.rows, key=lambda r: (r.submit, r.id))
        self.pool_of_partition = pools_of(self.cluster, rows)
        self.jobs: list[Live] = []
        self.rejected: list[Job] = []
        self.held = HeldBack(self.limits or Limits(), self.cluster.partitions)
        self.reserved = Reserved(self.reservations)
        self.told_apart = any(0 < r.gpus < 1 for r in rows)
        self.told_apart |= any(len({c.type for c in n.cards}) > 1 for n in self.nodes)
        self.told_apart |= any(r.exclusive or set(gres_of(r.gres) or ()) - {"gpu"} for r in rows)
        self.cursor = {p: min(self._nodes_of_pool(p)) for p in set(self.pool_of_partition.values())}
        # Of one name at several speeds, the one that the cluster file has last for the first time.
        seen = dict.fromkeys((n.cards[0].type, n.cards[0].speed) for n in self.nodes if n.cards)
        seen |= dict.fromkeys((card.type, card.speed) for n in self.nodes for card in n.cards)
        speeds = {name.upper(): speed for name, speed in seen if name}
        for index, row in enumerate(rows):
            ask = ask_of(self.cluster, self.nodes, row, rows)
            if ask is None:
                self.rejected.append(row)
                continue
            # A run time was measured on the GPU type that the row names, else at speed 1.
            typed = [t for t in (gres_of(row.gres) or {}).get("gpu", {}) if t]
            measured = speeds.get((typed[0] if len(typed) == 1 else row.gpu_type).upper(), 1.0) if ask.on_gpus else 1.0
            limit = max(row.limit, 1)
            keys = History.keys(row.user, row.name, ask.volume, ask.on_gpus, row.limit)
            job = Live(row, index, ask, row.run * measured, limit, ask.volume, keys, row.account)
            if self.limits is not None and self.held.never(job):
                self.rejected.append(row)
                continue
            if self.reserved.refuses(row, row.account) or not self._fits_into_its_reservation(job):
                self.rejected.append(row)
                continue
            self.jobs.append(job)
        self.free = View.empty(self.nodes, self.told_apart)
        self.down: set[int] = set()
        self.history = History()
        self.versions: dict[str, int] = {}
        self._make_users(rows)
        self.tick = NEVER
        self.due: set[int] = set()
        self.todo = list(self.jobs)
        at = [Event(time, -1, True) for time in self.reserved.boundaries()]
        self.coming = sorted([*self.events, *at], key=lambda e: e.time)
        self.in_lane: dict[int, Live | None] = {}
        self.begun: dict[int, list[tuple[int, float, bool]]] = {p: [] for p in self.cursor}  # when, work, by the lane
        self.touched: dict[int, bool] = {}  # pool -> whether something was released

    def _nodes_of_pool(self, pool: int) -> list[int]:
        return [i for i, n in enumerate(self.nodes) if self.pool_of_partition[n.partitions[0]] == pool]

    def _make_users(self, rows: list[Job]) -> None:
        """Users and accounts; a blank name is one too, and a user's account is that of the first job."""
        begin = float(rows[0].submit) if rows else 0.0
        self.home: dict[str, str] = {}
        for r in rows:
            self.home.setdefault(r.user, r.account)
        self.users = {u: Use(time=begin) for u in self.home}
        self.accounts = {r.account: Use(time=begin) for r in rows}
        self.fairshare = dict.fromkeys(self.users, 1.0)
        self.calculated = -math.inf

    # --- events -----------------------------------------------------------------------------------------------------

    def run(self) -> dict[int, Ran]:
        """To the end: what became of each job, by its id."""
        while (now := self._next_instant()) < NEVER:
            self.now = now
            self._ends()
            self._node_events()
            while self.todo and self.todo[0].submit == now:
                self._submit(self.todo.pop(0))
            if self.touched or (self.due and self.tick == now):
                self._passes()
        ran = {j.row.id: Ran(j.start, j.end, j.state, tuple(sorted(self._units(j.held).items()))) for j in self.jobs}
        return ran | {r.id: Ran(-1, -1, "rejected", ()) for r in self.rejected}

    @staticmethod
    def _units(placement: Placement) -> dict[int, int]:
        units: dict[int, int] = {}
        for n, count, _ in placement:
            units[n] = units.get(n, 0) + count
        return units

    def _next_instant(self) -> int:
        tick = self.tick if self.due else NEVER
        instants = [tick, *(j.end for j in self.running), *(j.submit for j in self.todo[:1])]
        if self.coming and (min(instants) < NEVER or self.queue):
            instants.append(self.coming[0].time)
        return min(instants)

    def _touch(self, pool: int, released: bool) -> None:
        self.touched[pool] = self.touched.get(pool, False) or released

    def _submit(self, job: Live) -> None:
        if self.limits is not None and self.held.refuses(job, [*self.queue, *self.running]):
            job.state = "rejected"
        else:
            self._enqueue(job)

    def _why_held(self, job: Live) -> str:
        """What limit, or reservation, keeps a job from starting now; "" if none does."""
        if not self.reserved.lasts(job, self.now):
            return "reserved"
        return self.held.why(job, self.running) if self.limits is not None else ""

    def _enqueue(self, job: Live) -> None:
        job.state = "queued"
        self._estimate(job)
        self.queue.append(job)
        self._touch(job.ask.pool, False)

    def _ends(self) -> None:
        for job in sorted((j for j in self.running if j.end == self.now), key=lambda j: j.index):
            job.state = "killed" if self._runs(job) > self._granted(job) else "completed"
            self._release(job)
            self.history.finish(job.keys, job.limit, self.now - job.start + job.done)
            self.versions[job.row.user] = self.versions.get(job.row.user, 0) + 1

    def _release(self, job: Live) -> None:
        self.running.remove(job)
        self.free.give(job.ask, job.held)
        self._hold(job, -1)
        self._touch(job.ask.pool, True)
        if self.limits is not None:
            for pool in {j.ask.pool for j in self.queue}:
                self._touch(pool, True)

    def _stop(self, job: Live, keep: bool) -> None:
        """Back into the queue; what was done in this run is kept (preempted) or lost (its node failed)."""
        if keep:
            job.done += (self.now - job.start) * self._speed(job)
        self.requeued += 1
        self._release(job)
        self._enqueue(job)

    def _node_events(self) -> None:
        while self.coming and self.coming[0].time == self.now:
            event = self.coming.pop(0)
            n = event.node
            if n < 0:
                for pool in {j.ask.pool for j in self.queue}:
                    self._touch(pool, True)
                continue
            if event.up == (n not in self.down):
                continue
            pool = self.pool_of_partition[self.nodes[n].partitions[0]]
            if not event.up:
                for job in [j for j in self._running_in(pool) if any(n == m for m, _, _ in j.held)]:
                    self._stop(job, keep=False)
            self.down ^= {n}
            node = self.nodes[n]
            self.free.cpu[n], self.free.mem[n], self.free.gpus[n] = (
                (node.cpus, node.mem, node.gpus) if event.up else (0, 0, 0)
            )
            if self.free.used is not None:
                self.free.used[n] = [0 if event.up else card.parts for card in node.cards]
            self.free.others[n] = dict(node.others) if event.up else dict.fromkeys(node.others, 0)
            for job in self._queued_in(pool):
                job.booked = None
            self._touch(pool, True)

    def _running_in(self, pool: int) -> list[Live]:
        return sorted((j for j in self.running if j.ask.pool == pool), key=lambda j: (j.expected_end, j.index))

    def _queued_in(self, pool: int) -> list[Live]:
        return sorted((j for j in self.queue if j.ask.pool == pool), key=lambda j: j.index)

    # --- what is believed of jobs and held by users -----------------------------------------------------------------

    def _estimate(self, job: Live) -> None:
        if self.source == "user":
            job.estimate, job.inverse, job.spread = self.history.predict(job.keys, job.limit)
            job.version = self.versions.get(job.row.user, 0)
        else:
            job.estimate = job.work if self.source == "oracle" else job.limit
            job.inverse = float(np.float32(1.0 / max(job.estimate, 1.0)))

    def _hold(self, job: Live, sign: int) -> None:
        self.users[job.row.user].hold(sign * job.size, self.now)
        self.accounts[job.account].hold(sign * job.size, self.now)

    def _speed(self, job: Live) -> float:
        """A gang goes at the pace of its slowest GPU, slower if it spans blocks; jobs without GPUs at 1."""
        on = [self.nodes[n] for n, _, _ in job.held]
        slow = min(n.span for n in on) if len({n.block for n in on}) > 1 else 1.0
        if not job.ask.on_gpus:
            return slow
        if self.free.used is None:
            return min(n.cards[0].speed for n in on) * slow
        held = (self.nodes[n].cards[g] for n, _, gpus in job.held for g in gpus)
        return min(card.speed for card in held if job.ask.likes(card)) * slow

    def _needs(self, job: Live) -> int:
        """Remaining seconds on its nodes: rounded, and of a job that has anything to do at least one."""
        return max(math.floor((job.work - job.done) / self._speed(job) + 0.5), int(job.work >= 1))

    def _runs(self, job: Live) -> int:
        """Seconds for which it would hold its nodes."""
        return self._needs(job)

    def _granted(self, job: Live) -> int:
        """Seconds after which it is killed."""
        end = self.reserved.end_of(job)
        return job.limit if end is None else min(job.limit, end - job.start)

    # --- order ------------------------------------------------------------------------------------------------------

    def _multifactor(self, job: Live) -> float:
        inside = [self.nodes[n] for n in self._nodes_of_pool(job.ask.pool)]
        whole = max(sum(n.gpus for n in inside) or sum(n.cpus for n in inside), 1)
        age = min(1.0, (self.now - job.submit) / (7 * 86400))
        own = 1000 * age + 10000 * self.fairshare[job.row.user] + 1000 * (job.size / whole)
        return own + 1000 * self._partition_factor(job) + 2000 * self._qos_factor(job)

    def _partition_factor(self, job: Live) -> float:
        """PriorityJobFactor as a share of the largest."""
        said = {n: p.factor for n, p in (self.limits or Limits()).partition.items() if p.factor is not None}
        return said.get(partitions_of(self.cluster, job.row)[0], 0.0) / (max(said.values()) or 1.0) if said else 0.0

    def _qos_factor(self, job: Live) -> float:
        """The QOS' priority as a share of the highest."""
        limits = self.limits or Limits()
        said = {name: bounds.priority for name, bounds in limits.qos.items()}
        return said.get(job.row.qos or limits.default_qos, 0.0) / (max(said.values()) or 1.0) if said else 0.0

    def _tier(self, job: Live) -> int:
        part = (self.limits or Limits()).partition.get(partitions_of(self.cluster, job.row)[0])
        return 1 if part is None or part.tier is None else part.tier

    def _score(self, job: Live) -> float:
        if self.formula == "multifactor":
            return self._multifactor(job)
        if self.formula == "static-equal":
            return -self.users[job.row.user].rate
        return score(self.formula, job, self.now)

    def _ordered(self, pool: int) -> list[Live]:
        """Higher scores first, ties by submit time, then id."""
        queue = self._queued_in(pool)
        if self.source == "user":
            for job in queue:
                if job.version != self.versions.get(job.row.user, 0):
                    self._estimate(job)
        order = sorted(queue, key=lambda j: (-self._score(j), j.index))
        if self.influence < 1 and len(order) > 1:
            # A bounded site factor by rank on top of Slurm's own priority; the weights add up to 15000.
            bound = self.influence * 15000
            top = {
                j.index: self._multifactor(j) + round(bound * (1 - 2 * rank / (len(order) - 1)))
                for rank, j in enumerate(order)
            }
            order.sort(key=lambda j: (-top[j.index], j.index))
        if self.lane and order:
            self._let_the_oldest_go_first(pool, order)
        return sorted(order, key=lambda j: (self.reserved.own(j) is None, -self._tier(j)))

    # --- the lane ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _usual(job: Live) -> float:
        """The mean of the run time, of which the estimate is the median, within the limit."""
        return min(job.estimate * math.exp(job.spread**2 / 2), job.limit)

    def _let_the_oldest_go_first(self, pool: int, order: list[Live]) -> None:
        """The oldest job that has waited two backlogs goes first, while the lane has had no more than its share."""
        self.in_lane[pool] = None
        weights = [2.0 ** ((then - self.now) / (2 * 86400)) for then, *_ in self.begun[pool]]
        total = sum(w * work for w, (_, work, _) in zip(weights, self.begun[pool], strict=True))
        lane = sum(w * work for w, (_, work, mine) in zip(weights, self.begun[pool], strict=True) if mine)
        if lane > self.lane * total + 1e-9 * total:
            return
        work = sum(j.size * self._usual(j) for j in order)
        for job in self._running_in(pool):
            elapsed = self.now - job.start
            left = min(max(self._usual(job) - elapsed, 0.3 * elapsed), max(job.limit - elapsed, 0))
            work += job.size * left
        inside = [self.nodes[n] for n in self._nodes_of_pool(pool)]
        whole = max(sum(n.gpus for n in inside) or sum(n.cpus for n in inside), 1)
        oldest = min(order, key=lambda j: j.index)
        if self.now - oldest.submit > 2 * max(work / whole, 60.0):
            self.in_lane[pool] = oldest
            order.remove(oldest)
            order.insert(0, oldest)

    # --- placing and starting ---------------------------------------------------------------------------------------

    def _place(self, view: View, whole: Ask) -> Placement | None:
        """In the first of the request's sets of nodes that has room."""
        for nodes in whole.sets:
            placement = self._place_in(view, replace(whole, nodes=nodes))
            if placement is not None:
                return placement
        return None

    def _place_in(self, view: View, ask: Ask) -> Placement | None:
        if self.placement == "topology" or insists(ask):
            return with_gpus(view, ask, by_block(self.nodes, view, ask))
        match self.placement:
            case "first-fit":
                chosen = first_fit(view, ask)
            case "round-robin":
                chosen = from_cursor(view, ask, self.cursor[ask.pool])
            case "tier" if ask.gpu and not ask.exclusive:
                assert self.choose_tier is not None
                chosen = self.choose_tier(self.nodes, view, ask)
            case "slurm" if len(ask.nodes) > 1:
                chosen = consecutive(view, ask, self.weights)
            case "slurm":
                chosen = first_fit(view, ask)
            case _:
                chosen = node_by_node(view, ask, emptiest=self.placement == "spread")
        return with_gpus(view, ask, chosen)

    def _start(self, job: Live, placement: Placement) -> None:
        self.queue.remove(job)
        self.running.append(job)
        self.free.take(job.ask, placement)
        job.held, job.booked, job.state = placement, None, "running"
        job.start = self.now
        job.end = self.now + min(self._runs(job), self._granted(job))
        nodes = self._nodes_of_pool(job.ask.pool)
        behind = placement[-1][0] + 1
        self.cursor[job.ask.pool] = behind if behind <= max(nodes) else min(nodes)

    def _place_at(self, view: View, job: Live, at: int) -> Placement | None:
        """Places a job that would start at a time, on the nodes that reservations leave to it."""
        everything = set(range(len(self.nodes)))
        left = self.reserved.open(job, at, everything)
        return self._place(view if left == everything else masked(view, left), job.ask)

    def _fits_into_its_reservation(self, job: Live) -> bool:
        own = self.reserved.own(job)
        if own is None or "FLEX" in own.flags:
            return True
        empty = masked(View.empty(self.nodes, self.told_apart), self.reserved.nodes[own.name])
        return self._place(empty, job.ask) is not None

    def _start_if_it_fits(self, job: Live) -> bool:
        placement = self._place_at(self.free, job, self.now)
        if placement is None:
            return False
        self._start(job, placement)
        return True

    # --- passes -----------------------------------------------------------------------------------------------------

    def _passes(self) -> None:
        """One pass for each touched pool, in the order of the cluster file."""
        self._renew_fairshare()
        for pool in sorted(self.touched):
            self._note_starts(pool, self._pass)
            del self.touched[pool]

    def _renew_fairshare(self) -> None:
        if self.now - self.calculated >= 300:
            self.fairshare = fair_tree(self.users, self.accounts, self.home, self.now)
            self.calculated = self.now

    def _note_starts(self, pool: int, schedule: Callable[[int], None]) -> None:
        """Users hold what was started from the end of the pass on."""
        before = set(map(id, self.running))
        schedule(pool)
        for job in self.running:
            if id(job) not in before:
                self._hold(job, +1)
                self.begun[pool].append((self.now, job.size * self._usual(job), job is self.in_lane.get(pool)))

    def _pass(self, pool: int) -> None:
        if self.preempt:
            while self._make_room(pool):
                pass
        order = self._ordered(pool)
        if self.backfill == "conservative":
            self._conservative(pool, order)
            return
        closed: set[str] = set()
        while order:
            own = self.reserved.own(order[0])
            skipped = self._why_held(order[0]) or (own is not None and own.name in closed)
            if not skipped and not self._start_if_it_fits(order[0]):
                if own is None:
                    break
                closed |= {own.name} if self.backfill != "firstfit" else set()
            order.pop(0)
        if not order:
            return
        if self.backfill == "firstfit":
            for job in order[1:]:
                if not self._why_held(job):
                    self._start_if_it_fits(job)
        if self.backfill == "easy":
            self._behind_the_head(pool, order[0], order[1:])

    def _behind_the_head(self, pool: int, head: Live, rest: list[Live]) -> None:
        shadow, extra = self._reservation(pool, head)
        for job in rest:
            if self._why_held(job):
                continue
            if self.now + job.limit <= shadow:
                self._start_if_it_fits(job)
                continue
            placement = self._place_at(self.free.meet(extra), job, self.now)
            if placement is not None:
                extra.take(job.ask, placement)
                self._start(job, placement)

    def _reservation(self, pool: int, head: Live) -> tuple[int, View]:
        """When the head fits if running jobs use up their limits, and what is free beside it then."""
        then = self.free.copy()
        running = self._running_in(pool)
        for instant in sorted({j.expected_end for j in running} | self.reserved.ends_after(self.now)):
            for job in running:
                if job.expected_end == instant:
                    then.give(job.ask, job.held)
            placement = self._place_at(then, head, instant)
            if placement is not None:
                then.take(head.ask, placement)
                return instant, then
        return NEVER, then

    def _earliest(self, job: Live, profile: Profile) -> tuple[int, Placement] | None:
        instants = profile.instants(self.now)
        for instant in sorted({*instants, *self.reserved.ends_after(self.now)}):
            view = profile.at(instant)
            for other in instants:
                if instant < other < instant + job.limit:
                    view = view.meet(profile.at(other))
            placement = self._place_at(view, job, instant)
            if placement is not None:
                return instant, placement
        return None

    def _conservative(self, pool: int, order: list[Live]) -> None:
        profile = Profile(self.free, [(j.ask, j.held, j.expected_end) for j in self._running_in(pool)])
        anew = self.touched[pool]
        for job in order:
            if job.booked and self._why_held(job):
                job.booked, anew = None, True
        for job in order:
            if job.booked:
                profile.book(job, *job.booked)
        for job in order:
            if job.booked:
                if not anew:
                    continue
                profile.unbook(job)
                job.booked = None
            if self._why_held(job):
                continue
            found = self._earliest(job, profile)
            if found is None:
                continue
            profile.book(job, *found)
            if found[0] == self.now:
                self._start(job, found[1])
            else:
                job.booked = found

    # --- preemption -------------------------------------------------------------------------------------------------

    def _standing(self, job: Live) -> float:
        if self.formula != "srpt":
            return job.priority
        ran = job.done + ((self.now - job.start) * self._speed(job) if job.state == "running" else 0)
        return -max(job.estimate - ran, 1.0)

    def _make_room(self, pool: int) -> bool:
        """For the first job that does not fit behind those before it: stops jobs that rank below it until it does."""
        view = self.free.copy()
        for job in self._ordered(pool):
            placement = self._place(view, job.ask)
            if placement is None:
                break
            view.take(job.ask, placement)
        else:
            return False
        lower = [r for r in self._running_in(pool) if self._standing(r) < self._standing(job)]
        lower.sort(key=lambda r: (self._standing(r), -r.start))
        victims = []
        for victim in lower:
            victims.append(victim)
            view.give(victim.ask, victim.held)
            if self._place(view, job.ask) is not None:
                for v in victims:
                    self._stop(v, keep=True)
                return True
        return False


class Profile:
    """What is free over time: what is free now, ends of running jobs, and bookings from a start to a limit."""

    def __init__(self, free: View, ends: list[tuple[Ask, Placement, int]]) -> None:
        self.free, self.ends = free.copy(), ends
        self.bookings: dict[int, tuple[Live, int, Placement]] = {}

    def book(self, job: Live, start: int, placement: Placement) -> None:
        self.bookings[job.index] = (job, start, placement)

    def unbook(self, job: Live) -> None:
        del self.bookings[job.index]

    def instants(self, now: int) -> list[int]:
        """Now, and whenever something changes later."""
        times = {now} | {end for _, _, end in self.ends}
        for job, start, _ in self.bookings.values():
            times |= {start, start + job.limit}
        return sorted(t for t in times if t >= now)

    def at(self, instant: int) -> View:
        view = self.free.copy()
        for ask, held, end in self.ends:
            if end <= instant:
                view.give(ask, held)
        for job, start, placement in self.bookings.values():
            if start <= instant < start + job.limit:
                view.take(job.ask, placement)
        return view
