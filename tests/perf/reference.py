"""A plain Python simulator of the same algorithm (FCFS and EASY, on counts and on nodes with first-fit): what the
engine's speed is compared with, and its start times too.

Every instant: jobs that end give back what they hold, jobs that arrive join the queue, then one pass over the queue.
A job ends at start + min(run time, limit) and is expected to end at start + limit.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

Holding = list[tuple[int, int]]  # (node, cores) pairs


@dataclass(frozen=True, slots=True)
class Jobs:
    """Columns of plain Python integers, sorted by submit time."""

    submit: list[int]
    run: list[int]
    limit: list[int]
    cores: list[int]


def on_counts(jobs: Jobs, cores: int, *, easy: bool) -> list[int]:
    """Start times on a pool of cores that are all alike."""
    submit, limit, size = jobs.submit, jobs.limit, jobs.cores
    total = len(submit)
    start = [-1] * total
    ends: list[tuple[int, int]] = []  # a heap of (end, job)
    running: list[tuple[int, int]] = []  # sorted by (expected end, job)
    queue: list[int] = []
    free = cores
    arrived = 0

    def begin(j: int, now: int) -> None:
        start[j] = now
        heapq.heappush(ends, (now + min(jobs.run[j], limit[j]), j))
        insort(running, (now + limit[j], j))

    while arrived < total or ends:
        now = min(submit[arrived] if arrived < total else ends[0][0], ends[0][0] if ends else submit[arrived])
        while ends and ends[0][0] == now:
            _, j = heapq.heappop(ends)
            del running[bisect_left(running, (start[j] + limit[j], j))]
            free += size[j]
        while arrived < total and submit[arrived] == now:
            queue.append(arrived)
            arrived += 1
        # From the head, while they fit.
        head = 0
        while head < len(queue) and size[queue[head]] <= free:
            free -= size[queue[head]]
            begin(queue[head], now)
            head += 1
        del queue[:head]
        if not easy or len(queue) < 2 or free == 0:
            continue
        # The head's reservation: when it fits if running jobs use up their limits, and what is left beside it then.
        extra, shadow, k = free, -1, 0
        while extra < size[queue[0]]:
            shadow = running[k][0]
            while k < len(running) and running[k][0] == shadow:
                extra += size[running[k][1]]
                k += 1
        extra -= size[queue[0]]
        # Then, in order, whoever ends by the shadow time or stays within the extra.
        waiting = [queue[0]]
        for j in queue[1:]:
            if size[j] <= free and (now + limit[j] <= shadow or size[j] <= extra):
                if now + limit[j] > shadow:
                    extra -= size[j]
                free -= size[j]
                begin(j, now)
            else:
                waiting.append(j)
        queue = waiting
    return start


def on_nodes(jobs: Jobs, nodes: Sequence[int], *, easy: bool) -> list[int]:
    """Start times on nodes of so many cores each; a job takes cores first-fit, from as many nodes as it needs."""
    submit, limit, size = jobs.submit, jobs.limit, jobs.cores
    total = len(submit)
    start = [-1] * total
    held: list[Holding] = [[]] * total
    ends: list[tuple[int, int]] = []
    running: list[tuple[int, int]] = []
    queue: list[int] = []
    free = list(nodes)
    arrived = 0

    def begin(j: int, now: int, holding: Holding) -> None:
        start[j] = now
        held[j] = holding
        for node, cores in holding:
            free[node] -= cores
        heapq.heappush(ends, (now + min(jobs.run[j], limit[j]), j))
        insort(running, (now + limit[j], j))

    while arrived < total or ends:
        now = min(submit[arrived] if arrived < total else ends[0][0], ends[0][0] if ends else submit[arrived])
        while ends and ends[0][0] == now:
            _, j = heapq.heappop(ends)
            del running[bisect_left(running, (start[j] + limit[j], j))]
            for node, cores in held[j]:
                free[node] += cores
        while arrived < total and submit[arrived] == now:
            queue.append(arrived)
            arrived += 1
        head = 0
        while head < len(queue):
            holding = _first_fit(free, size[queue[head]])
            if not holding:
                break
            begin(queue[head], now, holding)
            head += 1
        del queue[:head]
        if not easy or len(queue) < 2 or not any(free):
            continue
        extra, shadow, k = list(free), -1, 0
        reserved: Holding = []
        while not reserved:
            shadow = running[k][0]
            while k < len(running) and running[k][0] == shadow:
                for node, cores in held[running[k][1]]:
                    extra[node] += cores
                k += 1
            reserved = _first_fit(extra, size[queue[0]])
        for node, cores in reserved:
            extra[node] -= cores
        waiting = [queue[0]]
        for j in queue[1:]:
            holding = []
            if size[j] > sum(free):
                pass
            elif now + limit[j] <= shadow:
                holding = _first_fit(free, size[j])
            else:
                holding = _first_fit(list(map(min, free, extra)), size[j])
                for node, cores in holding:
                    extra[node] -= cores
            if holding:
                begin(j, now, holding)
            else:
                waiting.append(j)
        queue = waiting
    return start


def _first_fit(free: list[int], wanted: int) -> Holding:
    """Cores from the first nodes that have any; nothing if there are too few."""
    if sum(free) < wanted:
        return []
    holding = []
    for node, cores in enumerate(free):
        if cores:
            taken = min(cores, wanted)
            holding.append((node, taken))
            wanted -= taken
            if wanted == 0:
                break
    return holding
