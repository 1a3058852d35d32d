"""The event loop, compiled once for all policies: applies all events of an instant, then schedules the touched pools.

Everything it knows lives in arrays, so that it can stop before any scheduling pass, show a snapshot, and go on.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.conservative import unbook
from slurm_rl.backfill.starting import begin
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import (
    CPU,
    GIVE,
    GPU,
    LATENCY_BUCKETS,
    MEM,
    NEVER,
    NEW_HEAD,
    NO,
    NOW,
    OTHER,
    PARTS,
    RELEASED,
    TAKE,
    Array,
    Record,
)
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.kernel.links import INT, NOTHING, by_address
from slurm_rl.kernel.quotas import admit, count_submitted
from slurm_rl.place.kernels import call_place
from slurm_rl.place.runs import call_change_node
from slurm_rl.policy.catalogue import BY_USER
from slurm_rl.policy.estimate import finish
from slurm_rl.policy.fairshare import fair_tree
from slurm_rl_sim.gpu_memory import call_learn_memory
from slurm_rl_sim.moves import arrive, granted, launch, needs, release, stop_running
from slurm_rl_sim.schedule import schedule
from slurm_rl_sim.state import COMPLETED, KILLED, REJECTED, WAITING, heap_remove, remove_started, touch
from slurm_rl_sim.ticks import cycles

DONE, BEFORE_PASS, PAUSED, GROW = range(4)  # what `advance` came back for
BOUNDARY = np.int64(-1)  # the node of an event that is about a reservation


@inlined
def _ends(w: Record, now: int) -> None:
    live, heap = t.live(w), t.heap(w)
    while w.heap_count > 0 and live.end[heap[0]] == now:
        j = heap[0]
        heap_remove(w, np.int64(0))
        # Killed: the limit (S9) came before the work was done.
        limit = granted(w, j, live.start[j])
        run = needs(w, j) + w.start_overhead
        live.state[j] = KILLED if now >= live.start[j] + limit and run > limit else COMPLETED
        w.ended += 1
        release(w, j, now)
        if w.quotas_0 > 0:
            count_submitted(w, j, TAKE)
        if w.source == BY_USER:
            finish(w, j, now - live.start[j] + live.done[j])
        if w.gpu_mem_0 > 0:
            call_learn_memory(w, j)


@kernel
def node_events(w: Record, now: int) -> None:
    """Nodes go down, with the jobs on them, or come back; and reservations begin and end."""
    events, nodes, pools, free, used, total = t.events(w), t.nodes(w), t.pools(w), t.free(w), t.used(w), t.total(w)
    while w.next_event < len(events) and events.time[w.next_event] <= now:
        e = w.next_event
        w.next_event += 1
        n = events.node[e]
        up = events.up[e]
        if n == BOUNDARY:  # V2: a reservation begins or ends
            for pool in range(len(pools)):
                if pools.queue_last[pool] > pools.queue_first[pool]:
                    touch(w, pool, RELEASED)
            continue
        if up == 1 - nodes.down[n]:
            continue  # already so
        pool = nodes.pool[n]
        if up == 0:
            k = 0
            while k < pools.running[pool]:
                j = t.running(w)[pools.first_job[pool] + k]
                if _holds(w, j, n):
                    stop_running(w, j, now, NO)
                    arrive(w, j)
                else:
                    k += 1
        sign = 1 if up else -1
        nodes.down[n] = 1 - up
        if w.indexed:
            call_change_node(w, np.int64(n), np.int64(sign))
        else:
            free[NOW, n, CPU] += sign * nodes.cpu[n]
            free[NOW, n, MEM] += sign * nodes.mem[n]
            free[NOW, n, GPU] += sign * nodes.gpu[n]
        total[NOW, pool, CPU] += sign * nodes.cpu[n]
        total[NOW, pool, MEM] += sign * nodes.mem[n]
        total[NOW, pool, GPU] += sign * nodes.gpu[n]
        for g in range(min(nodes.gpu[n], used.shape[2])):
            used[NOW, n, g] = 0 if up else t.devices(w)[nodes.klass[n], g, PARTS]
        for g in range(free.shape[2] - OTHER):
            free[NOW, n, OTHER + g] += sign * t.others(w)[nodes.klass[n], g]
        # C4: bookings were made for another cluster, conservative plans the pool anew.
        for i in range(pools.queue_first[pool], pools.queue_last[pool]):
            unbook(w, t.queue(w)[i])
        touch(w, pool, RELEASED)


call_node_events = by_address("node_events", node_events, NOTHING, INT)


@inlined
def _holds(w: Record, j: int, n: int) -> bool:
    e = t.live(w).held[j]
    while e > 0:
        if t.entries(w).node[e] <= n <= t.entries(w).node[e] + t.entries(w).more[e]:
            return True
        e = t.entries(w).next[e]
    return False


@inlined
def _bucket(elapsed: int) -> int:
    """Eight buckets to each power of two."""
    if elapsed < 8:
        return max(elapsed, 0)
    power = 0
    while elapsed >> (power + 1) > 0:
        power += 1
    return min(power * 8 + ((elapsed >> (power - 3)) & 7), LATENCY_BUCKETS - 1)


@inlined
def _pass(w: Record, now: int, pool: int, tick: bool) -> bool:
    """Schedules a pool and lets the started jobs run; False if it needs more rows first."""
    began = cycles()
    count = schedule(w, now, pool, tick)
    t.latency(w)[_bucket(cycles() - began)] += 1
    if count < 0:
        return False
    w.passes += 1
    for k in range(count):
        launch(w, t.started(w)[k], now, now)
    if count > 0:
        remove_started(w, pool, count)
    return True


@inlined
def _next_instant(w: Record) -> int:
    """When something happens next."""
    instant = w.wake
    if w.due_pools > 0:
        instant = min(instant, w.tick)
    if w.arrived < len(t.jobs(w)):
        instant = min(instant, t.jobs(w).submit[w.arrived])
    if w.heap_count > 0:
        instant = min(instant, t.live(w).end[t.heap(w)[0]])
    if w.next_event < len(t.events(w)) and (instant < NEVER or _anyone_waits(w)):
        instant = min(instant, t.events(w).time[w.next_event])
    return max(instant, w.clock)  # a warm start may leave jobs that came before it


@inlined
def _anyone_waits(w: Record) -> bool:
    for pool in range(len(t.pools(w))):
        if t.pools(w).queue_last[pool] > t.pools(w).queue_first[pool]:
            return True
    return False


@inner
def _wake(w: Record, now: int) -> None:
    """Ends the time for which jobs were deferred: their pools get a pass."""
    w.wake = NEVER
    for j in range(len(t.hint_of(w))):
        if t.hint_of(w)[j] < 0:
            if -t.hint_of(w)[j] <= now:
                t.hint_of(w)[j] = 0
                touch(w, t.requests(w).pool[np.int64(t.jobs(w).request[j])], NEW_HEAD)
            else:
                w.wake = min(w.wake, -t.hint_of(w)[j])


@inlined
def _apply_events(w: Record, now: int) -> None:
    """All that happens at an instant, before anything is scheduled."""
    _ends(w, now)
    if w.next_event < len(t.events(w)):
        call_node_events(w, now)
    if w.wake <= now:
        _wake(w, now)
    w.fresh = w.arrived
    while w.arrived < len(t.jobs(w)) and t.jobs(w).submit[w.arrived] <= now:
        j = w.arrived
        w.arrived += 1
        if t.live(w).state[j] == WAITING:  # not rejected, and not running since a warm start
            if w.quotas_0 > 0 and not admit(w, j):
                t.live(w).state[j] = REJECTED
                continue
            arrive(w, j)


@inlined
def _schedule_all(w: Record, now: int) -> bool:
    """One pass for each touched pool, then cycles that are due (S2); False if a profile needs more rows first."""
    pools = t.pools(w)
    if w.track_usage and now - w.calculated >= w.calc_period:
        fair_tree(t.users(w), t.accounts(w), float(now), w.half_life)
        w.calculated = now
    if w.interval > 0:
        _note_ticks(w, now)
    for cycle in range(2):
        if cycle == 1 and (w.interval == 0 or w.tick != now):
            break
        for pool in range(len(pools)):
            if (pools.due[pool] if cycle == 1 else pools.change[pool]) == 0:
                continue
            if not _pass(w, now, pool, cycle == 1):
                return False
            waits = pools.queue_last[pool] > pools.queue_first[pool]
            if cycle == 1:
                pools.due[pool] = 0
                w.due_pools -= 1
                continue
            w.touched -= 1
            pools.change[pool] = 0
            pools.fresh[pool] = 0
            if w.interval > 0 and waits and pools.due[pool] == 0:
                pools.due[pool] = 1
                w.due_pools += 1
        if cycle == 1:
            w.last_cycle, w.tick = now, NEVER
    return True


@inlined
def _note_ticks(w: Record, now: int) -> None:
    """S2: a cycle follows every event, but no sooner than an interval after the last cycle."""
    if w.tick < now:  # nobody waited then: a cycle that had nothing to do
        w.last_cycle, w.tick = w.tick, NEVER
    if w.touched > 0 and w.tick == NEVER:
        due = w.last_cycle + w.interval
        if w.clean_up > 0 and due < now and _released(w):
            # S9: the cycle that the end called for came before the nodes were free.
            w.last_cycle = max(due, now - w.clean_up)
            due = w.last_cycle + w.interval
        w.tick = max(now, due)


@inlined
def _released(w: Record) -> bool:
    """Whether something was released at this instant."""
    for pool in range(len(t.pools(w))):
        if t.pools(w).change[pool] == RELEASED:
            return True
    return False


@kernel
def advance(world: Array, until: int, pause: bool) -> int:
    """Simulates up to and including the instant `until`, or, if told to pause, to the next scheduling pass."""
    w = world[0]
    while True:
        if w.pass_due == 0:
            now = _next_instant(w)
            if now == NEVER:
                return DONE
            if now > until:
                return PAUSED
            w.clock = now
            _apply_events(w, now)
            if w.touched == 0 and (w.tick != now or w.due_pools == 0):
                continue
            w.pass_due = 1
            if pause:
                return BEFORE_PASS
        # The log has room for one run of each job: those of requeued ones come on top.
        if (w.requeued > 0 or w.preempt or w.by_runs) and w.logged + w.entries_0 > w.log_0:
            return GROW
        if w.longest > w.long_queue and w.alike_0 == 0:
            return GROW
        if not _schedule_all(w, w.clock):
            return GROW
        w.pass_due = 0


@kernel
def warm_start(world: Array, job: np.ndarray, began: np.ndarray, now: int) -> int:
    """Lets jobs run that began before the simulation does; the number that found no place."""
    w = world[0]
    w.clock = now
    misfits = 0
    for k in range(len(job)):
        j = job[k]
        count = call_place(w, np.int64(t.jobs(w).request[j]), NOW)
        if count == 0:
            misfits += 1
            continue
        begin(w, j, began[k], count)
        if w.quotas_0 > 0:
            count_submitted(w, j, GIVE)
        launch(w, j, now, began[k])
    return misfits
