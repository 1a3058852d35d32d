"""States of a job, the heap of running jobs, and the queues."""

from __future__ import annotations

from typing import Any

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Array, Record
from slurm_rl.kernel.jit import inlined, inner
from slurm_rl_sim.alike import call_leave_alike

WAITING, QUEUED, RUNNING, COMPLETED, KILLED, REJECTED = range(6)


@inlined
def _before(live: Any, a: int, b: int) -> bool:
    """Whether job `a` ends before job `b`."""
    return live.end[a] < live.end[b] or (live.end[a] == live.end[b] and a < b)


@inlined
def _sift_up(live: Any, heap: Array, k: int, j: int) -> int:
    while k > 0:
        up = (k - 1) >> 1
        if _before(live, heap[up], j):
            break
        heap[k] = heap[up]
        k = up
    heap[k] = j
    return k


@inlined
def heap_push(w: Record, j: int) -> None:
    """Adds a running job, its end known."""
    k = w.heap_count
    w.heap_count = k + 1
    _sift_up(t.live(w), t.heap(w), k, j)


@inner
def heap_remove(w: Record, at: int) -> None:
    """Removes the entry at a position of the heap."""
    live, heap = t.live(w), t.heap(w)
    count = w.heap_count - 1
    w.heap_count = count
    if at == count:
        return
    j = heap[count]
    k = _sift_up(live, heap, at, j)  # the last entry may end before the removed one's parent
    while True:
        low = 2 * k + 1
        if low >= count:
            break
        if low + 1 < count and _before(live, heap[low + 1], heap[low]):
            low += 1
        if _before(live, j, heap[low]):
            break
        heap[k] = heap[low]
        k = low
    heap[k] = j


@inlined
def touch(w: Record, pool: int, change: int) -> None:
    """Notes that a pool needs a scheduling pass."""
    if t.pools(w).change[pool] == 0:
        w.touched += 1
    t.pools(w).change[pool] = max(t.pools(w).change[pool], change)


@inlined
def queue_place(w: Record, pool: int, j: int) -> int:
    """Where a job stands, or belongs, in its pool's queue: by score where the order is fixed, then by index."""
    live, queue = t.live(w), t.queue(w)
    low, high = t.pools(w).queue_first[pool], t.pools(w).queue_last[pool]
    fixed = w.fixed_order == 1
    score = live.score[j]
    while low < high:
        middle = (low + high) >> 1
        k = queue[middle]
        if live.score[k] > score if fixed and live.score[k] != score else k < j:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def enqueue(w: Record, pool: int, j: int, at: int) -> None:
    """Inserts a job at a position of its pool's queue."""
    pools, queue = t.pools(w), t.queue(w)
    first, last = pools.queue_first[pool], pools.queue_last[pool]
    if last == pools.last_job[pool]:
        # The queue's region is full at its end: close the gap that started jobs left at its front.
        gap = first - pools.first_job[pool]
        for i in range(first, last):
            queue[i - gap] = queue[i]
        pools.queue_first[pool] = first - gap
        last -= gap
        at -= gap
    for i in range(last, at, -1):
        queue[i] = queue[i - 1]
    queue[at] = j
    pools.queue_last[pool] = last + 1


@inner
def remove_started(w: Record, pool: int, count: int) -> None:
    """Closes the gaps that started jobs left in the queue, towards its nearer end."""
    pools, queue, started = t.pools(w), t.queue(w), t.started(w)
    head, tail = pools.queue_first[pool], pools.queue_last[pool]
    for i in range(count):
        if w.alike_0 > 0:
            call_leave_alike(w, started[i])
        started[i] = queue_place(w, pool, started[i])
    first, last = tail, head
    for i in range(count):
        at = started[i]
        queue[at] = -1
        first, last = min(first, at), max(last, at)
    if last - head < tail - first:
        write = last + 1
        for i in range(last, head - 1, -1):
            j = queue[i]
            if j >= 0:
                write -= 1
                queue[write] = j
        pools.queue_first[pool] = write
    else:
        write = first
        for i in range(first, tail):
            j = queue[i]
            if j >= 0:
                queue[write] = j
                write += 1
        pools.queue_last[pool] = write
