"""States of a job, the heap of running jobs, and the queues."""

from __future__ import annotations

from slurm_rl.domain import tables as t
from slurm_rl.domain.arrays import Record
from slurm_rl.jit import inlined, kernel

WAITING, QUEUED, RUNNING, COMPLETED, KILLED, REJECTED = range(6)

LATENCY_BUCKETS = 64 * 8  # eight to each power of two cycles


@inlined
def _before(w: Record, a: int, b: int) -> bool:
    """Whether job `a` ends before job `b`."""
    return t.live(w).end[a] < t.live(w).end[b] or (t.live(w).end[a] == t.live(w).end[b] and a < b)


@kernel
def _sift_up(w: Record, k: int, j: int) -> int:
    while k > 0:
        up = (k - 1) >> 1
        if _before(w, t.heap(w)[up], j):
            break
        t.heap(w)[k] = t.heap(w)[up]
        k = up
    t.heap(w)[k] = j
    return k


@kernel
def heap_push(w: Record, j: int) -> None:
    """Adds a running job, its end known."""
    k = w.heap_count
    w.heap_count = k + 1
    _sift_up(w, k, j)


@kernel
def heap_remove(w: Record, at: int) -> None:
    """Removes the entry at a position of the heap."""
    count = w.heap_count - 1
    w.heap_count = count
    if at == count:
        return
    j = t.heap(w)[count]
    k = _sift_up(w, at, j)  # the last entry may end before the removed one's parent
    while True:
        low = 2 * k + 1
        if low >= count:
            break
        if low + 1 < count and _before(w, t.heap(w)[low + 1], t.heap(w)[low]):
            low += 1
        if _before(w, j, t.heap(w)[low]):
            break
        t.heap(w)[k] = t.heap(w)[low]
        k = low
    t.heap(w)[k] = j


@inlined
def touch(w: Record, pool: int, change: int) -> None:
    """Notes that a pool needs a scheduling pass."""
    if t.pools(w).change[pool] == 0:
        w.touched += 1
    t.pools(w).change[pool] = max(t.pools(w).change[pool], change)


@kernel
def enqueue(w: Record, pool: int, j: int, at: int) -> None:
    """Inserts a job at a position of its pool's queue."""
    if t.pools(w).queue_last[pool] == t.pools(w).last_job[pool]:
        # The queue's region is full at its end: close the gap that started jobs left at its front.
        gap = t.pools(w).queue_first[pool] - t.pools(w).first_job[pool]
        for i in range(t.pools(w).queue_first[pool], t.pools(w).queue_last[pool]):
            t.queue(w)[i - gap] = t.queue(w)[i]
        t.pools(w).queue_first[pool] -= gap
        t.pools(w).queue_last[pool] -= gap
        at -= gap
    for i in range(t.pools(w).queue_last[pool], at, -1):
        t.queue(w)[i] = t.queue(w)[i - 1]
    t.queue(w)[at] = j
    t.pools(w).queue_last[pool] += 1


@kernel
def remove_started(w: Record, pool: int, count: int) -> None:
    """Closes the gaps that started jobs left, towards the head: costs no more than the pass that looked so far."""
    head, tail = t.pools(w).queue_first[pool], t.pools(w).queue_last[pool]
    left = count
    at = head
    while left > 0 and at < tail:
        if t.live(w).state[t.queue(w)[at]] == RUNNING:
            left -= 1
        at += 1
    write = at
    for i in range(at - 1, head - 1, -1):
        j = t.queue(w)[i]
        if t.live(w).state[j] != RUNNING:
            write -= 1
            t.queue(w)[write] = j
    t.pools(w).queue_first[pool] = write
