"""What happens to one job: it arrives, starts, ends, is preempted or loses its node."""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill import leave_running
from slurm_rl.domain import tables as t
from slurm_rl.domain.arrays import GIVE, NOW, Record
from slurm_rl.jit import inlined, kernel
from slurm_rl.place.kernels import apply, forget
from slurm_rl.policy.estimate import estimate
from slurm_rl.policy.fairshare import hold
from slurm_rl.policy.heuristics import score_job
from slurm_rl_sim.state import QUEUED, RUNNING, enqueue, heap_push, heap_remove, touch


@kernel
def _position(w: Record, pool: int, j: int) -> int:
    """Where a job belongs in its queue: by score where the order is fixed, else by index."""
    low, high = t.pools(w).queue_first[pool], t.pools(w).queue_last[pool]
    if w.fixed_order:
        score = score_job(w, w.code, 0.0, j)
        t.live(w).score[j] = score
        # New arrivals mostly belong at the end under FCFS: look there first.
        if low == high or t.live(w).score[t.queue(w)[high - 1]] > score:
            return high
        while low < high:
            middle = (low + high) >> 1
            k = t.queue(w)[middle]
            if t.live(w).score[k] > score or (t.live(w).score[k] == score and k < j):
                low = middle + 1
            else:
                high = middle
        return low
    if low == high or t.queue(w)[high - 1] < j:
        return high
    while low < high:
        middle = (low + high) >> 1
        if t.queue(w)[middle] < j:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def arrive(w: Record, j: int) -> None:
    """Puts a job into its pool's queue."""
    pool = t.shapes(w).pool[np.int64(t.jobs(w).request[j])]
    estimate(w, j)
    at = _position(w, pool, j)
    new_head = at == t.pools(w).queue_first[pool] and t.pools(w).queue_last[pool] > t.pools(w).queue_first[pool]
    enqueue(w, pool, j, at)
    t.live(w).state[j] = QUEUED
    # A job that arrives behind others changes nothing for them; one that goes first does.
    touch(w, pool, np.int64(2 if new_head else 1))
    t.pools(w).fresh[pool] += 1


@kernel
def release(w: Record, j: int, now: int) -> None:
    """Gives back what a running job holds."""
    s = np.int64(t.jobs(w).request[j])
    pool = t.shapes(w).pool[s]
    apply(w, s, NOW, t.live(w).held[j], GIVE)
    forget(w, t.live(w).held[j])
    t.live(w).held[j] = 0
    leave_running(w, pool, j)
    if w.track_usage:
        _hold(w, j, -t.shapes(w).volume[s], now)
    touch(w, pool, np.int64(3))


@inlined
def _hold(w: Record, j: int, change: float, now: int) -> None:
    user, account = np.int64(t.jobs(w).user[j]), np.int64(t.jobs(w).account[j])
    hold(t.users(w), t.accounts(w), user, account, change, float(now), w.half_life)


@kernel
def slowest(w: Record, j: int) -> float:
    """The speed of a gang: that of its slowest node."""
    row = t.jobs(w).speed_row[j]
    e = t.live(w).held[j]
    speed = np.inf
    while e > 0:
        speed = min(speed, t.speed(w)[row, t.nodes(w).type[t.entries(w).node[e]]])
        e = t.entries(w).next[e]
    return speed


@kernel
def needs(w: Record, j: int) -> int:
    """Seconds that a placed job still has to run: its remaining work at its nodes' speed, in whole seconds."""
    run = int(np.floor((t.work(w)[j] - t.live(w).done[j]) / slowest(w, j) + 0.5))
    return max(run, 1 if t.work(w)[j] >= 1.0 else 0)


@kernel
def launch(w: Record, j: int, now: int, began: int) -> None:
    """Starts the clock of a job that has been given its nodes."""
    t.live(w).state[j] = RUNNING
    t.live(w).start[j] = began
    t.live(w).end[j] = max(began + min(needs(w, j), t.jobs(w).limit[j]), now)
    heap_push(w, j)
    if w.track_usage:
        _hold(w, j, t.shapes(w).volume[np.int64(t.jobs(w).request[j])], now)
    at = w.logged
    t.live(w).log_first[j] = at
    e = t.live(w).held[j]
    while e > 0 and at < len(t.log(w)):
        t.log(w).node[at] = t.entries(w).node[e]
        t.log(w).units[at] = t.entries(w).units[e]
        at += 1
        e = t.entries(w).next[e]
    t.live(w).log_count[j] = at - w.logged
    w.logged = at


@kernel
def stop_running(w: Record, j: int, now: int, keep: bool) -> None:
    """Takes a running job off its nodes before its end; its work is kept if it was preempted, lost with its node."""
    if keep:
        t.live(w).done[j] += (now - t.live(w).start[j]) * slowest(w, j)
    for k in range(w.heap_count):
        if t.heap(w)[k] == j:
            heap_remove(w, k)
            break
    release(w, j, now)
    w.requeued += 1
