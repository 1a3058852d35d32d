"""The moves of one job: it arrives, starts, ends, is preempted or loses its node."""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.starting import leave_running
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import ARRIVED, GIVE, NEW_HEAD, NOW, RELEASED, TAKE, TYPE, Record
from slurm_rl.kernel.jit import inlined, inner
from slurm_rl.kernel.quotas import count_run
from slurm_rl.kernel.reserved import within_reservation
from slurm_rl.place.kernels import apply, forget
from slurm_rl.policy.estimate import estimate
from slurm_rl.policy.fairshare import hold
from slurm_rl.policy.heuristics import call_score
from slurm_rl.policy.lane import charge
from slurm_rl_sim.alike import call_join_alike
from slurm_rl_sim.gpu_memory import narrow
from slurm_rl_sim.state import QUEUED, RUNNING, enqueue, heap_push, heap_remove, queue_place, touch


@inner
def arrive(w: Record, j: int) -> None:
    """Puts a job into its pool's queue."""
    pools, live, queue = t.pools(w), t.live(w), t.queue(w)
    pool = t.requests(w).pool[np.int64(t.jobs(w).request[j])]
    if w.gpu_mem_0 > 0:
        narrow(w, j)
    estimate(w, j)
    if w.fixed_order or w.steady:
        live.score[j] = call_score(w, 0.0, j)
    first, at = pools.queue_first[pool], pools.queue_last[pool]
    waited = at > first
    # New arrivals mostly belong at the end, under FCFS and where the order is not kept: look there first.
    if waited:
        last = queue[at - 1]
        if live.score[last] < live.score[j] if w.fixed_order and live.score[last] != live.score[j] else last > j:
            at = queue_place(w, pool, j)
    new_head = waited and at == first
    enqueue(w, pool, j, at)
    w.longest = max(w.longest, pools.queue_last[pool] - pools.queue_first[pool])
    if w.alike_0 > 0:
        call_join_alike(w, j)
    live.state[j] = QUEUED
    # A job that arrives behind others changes nothing for them; one that goes first does.
    touch(w, pool, NEW_HEAD if new_head else ARRIVED)
    pools.fresh[pool] += 1


@inner
def release(w: Record, j: int, now: int) -> None:
    """Gives back what a running job holds."""
    live = t.live(w)
    s = np.int64(t.jobs(w).request[j])
    pool = t.requests(w).pool[s]
    apply(w, s, NOW, live.held[j], GIVE)
    forget(w, live.held[j])
    live.held[j] = 0
    leave_running(w, pool, j)
    if w.track_usage:
        _hold(w, j, -t.requests(w).volume[s], now)
    touch(w, pool, RELEASED)
    if w.quotas_0 > 0:
        count_run(w, j, TAKE)
        for other in range(len(t.pools(w))):  # L5: whoever a limit held back may wait in another pool
            if t.pools(w).queue_last[other] > t.pools(w).queue_first[other]:
                touch(w, other, RELEASED)


@inlined
def _hold(w: Record, j: int, change: float, now: int) -> None:
    user, account = np.int64(t.jobs(w).user[j]), np.int64(t.jobs(w).account[j])
    hold(t.users(w), t.accounts(w), user, account, change, float(now), w.half_life)


@inner
def slowest(w: Record, j: int) -> float:
    """The speed of a gang: its slowest node's, less the loss if it spans blocks."""
    entries, nodes, speeds = t.entries(w), t.nodes(w), t.speed(w)
    row = t.jobs(w).speed_row[j]
    e = t.live(w).held[j]
    if e > 0 and speeds.shape[1] == 1 and w.blocks == 1:
        return speeds[row, 0]  # one type, so that no node need be looked at
    speed = np.inf
    block, several, slow = np.int64(-1), False, 1.0
    while e > 0:
        n = entries.node[e]
        if w.blocks > 1:
            several |= block not in (-1, nodes.block[n])
            block, slow = nodes.block[n], min(slow, nodes.span[n])
        here = np.inf
        if w.mixed and entries.gpus[e] != 0:
            # Of a node that a job has for itself, the GPUs that it asked for.
            accept = t.requests(w).accept[np.int64(t.jobs(w).request[j])]
            for k in range(t.used(w).shape[2]):
                kind = t.devices(w)[nodes.klass[n], k, TYPE]
                if entries.gpus[e] >> k & 1 and accept >> kind & 1:
                    here = min(here, speeds[row, kind])
        speed = min(speed, here if here < np.inf else speeds[row, nodes.type[n]])
        e = entries.next[e]
    return speed * slow if several else speed


@inner
def needs(w: Record, j: int) -> int:
    """Seconds that a placed job still has to run: its remaining work at its nodes' speed, in whole seconds."""
    work = t.work(w)[j]
    run = int(np.floor((work - t.live(w).done[j]) / slowest(w, j) + 0.5))
    return max(run, 1 if work >= 1.0 else 0)


@inlined
def granted(w: Record, j: int, began: int) -> int:
    """Seconds after which a job is killed: its limit, or (S9) when slurmctld next looks beyond it."""
    limit = t.jobs(w).limit[j] + w.over_limit
    if w.kept_0 > 0:
        limit = within_reservation(w, j, limit, began)
    if w.limit_check > 0:
        limit = -(-(began + limit) // w.limit_check) * w.limit_check - began
    return limit


@inner
def launch(w: Record, j: int, now: int, began: int) -> None:
    """Starts the clock of a job that has been given its nodes."""
    live, log, entries = t.live(w), t.log(w), t.entries(w)
    live.state[j] = RUNNING
    live.start[j] = began
    if w.lane_share > 0.0:
        charge(w, j, float(now))
    run = min(needs(w, j) + w.start_overhead, granted(w, j, began))
    live.end[j] = max(began + run + w.clean_up, now)
    heap_push(w, j)
    if w.track_usage:
        _hold(w, j, t.requests(w).volume[np.int64(t.jobs(w).request[j])], now)
    first = w.logged
    at = first
    e = live.held[j]
    log_gpus, log_more = t.log_gpus(w), t.log_more(w)
    while e > 0 and at < len(log):
        log.node[at] = entries.node[e]
        log.units[at] = entries.units[e]
        if len(log_gpus) > 0:
            log_gpus[at] = entries.gpus[e]
        if len(log_more) > 0:
            log_more[at] = entries.more[e]
        at += 1
        e = entries.next[e]
    live.log_first[j] = first
    live.log_count[j] = at - first
    w.logged = at


@inner
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
