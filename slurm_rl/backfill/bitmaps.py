"""Sets of nodes over time, as sched/backfill keeps them: which nodes no pending job has reserved, from when to when."""

from __future__ import annotations

import itertools

import numpy as np

from slurm_rl.backfill.rows import row_at
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import OTHER, ROW, Record
from slurm_rl.kernel.build import pack_bits
from slurm_rl.kernel.jit import inlined, inner
from slurm_rl.kernel.tables import World

ALLOWED, CHOSEN, LEAVING, FIRST_SET = np.arange(4)  # rows of the table `bitmaps`: scratch, and then the sets over time


def make_bitmaps(world: World) -> None:
    """Gives a World the tables of the rule `slurm`."""
    jobs, requests, nodes = world["jobs"], world["requests"], world["nodes"]
    depth = max(min(int(world["bf_depth"]), len(jobs)), 1)
    part = np.zeros(len(requests), dtype=np.int64)
    part[jobs["request"]] = jobs["partition"]
    words = world["part_bits"].shape[1]
    # select/cons_tres leaves out nodes that are too small in CPUs or memory, but not those without the job's GPUs.
    large = pack_bits(
        (nodes["cpu"][None, :] >= requests["cpu"][:, None]) & (nodes["mem"][None, :] >= requests["mem"][:, None])
    )
    world["rows"] = np.zeros(2 * depth + 4, dtype=ROW)  # a reservation begins two rows at most
    world["bitmaps"] = np.zeros((int(FIRST_SET) + 2 * depth + 4, words), dtype=np.int64)
    kinds = np.zeros((len(world["kind_ptr"]) - 1, len(nodes)), dtype=bool)
    for kind, (at, end) in enumerate(itertools.pairwise(world["kind_ptr"].tolist())):
        kinds[kind, world["kind_node"][at:end]] = True
    world["kind_bits"] = pack_bits(kinds)
    reach = world["part_bits"][part]
    for s in np.flatnonzero(requests["chain"] >= 0).tolist():
        at = int(requests["chain"][s])
        while at >= 0:
            kind, at = world["node_sets"][at].tolist()
            reach[s] |= world["kind_bits"][kind]
    usable = reach & large
    if len(world["kept"]):  # a last row for what reservations leave to one job
        usable = np.concatenate([usable, np.zeros((1, words), dtype=np.int64)])
    world["reach"], world["usable"] = reach, usable
    world["counted"] = (
        world["used"].shape[2] == 0
        and world["free"].shape[2] == OTHER
        and not requests["careful"].any()
        and not (requests["chain"] >= 0).any()
        and not (requests["switches"].any() or requests["segment"].any())
    )
    world["then"] = np.zeros((len(nodes), 5), dtype=np.int64)
    world["mark"] = 0
    # Those that are held back may stand before many that are looked at (L3, V2).
    held = len(world["quotas"]) + len(world["kept"]) > 0
    slots = max(len(requests) if held else min(depth, len(requests)), 1)
    world["avail"] = np.zeros((slots, len(nodes)), dtype=np.int64)
    world["roomy"] = np.zeros((slots, words), dtype=np.int64)
    world["slot_request"] = np.zeros(slots, dtype=np.int64)
    world["tally"] = np.zeros(len(world["users"]) + len(world["part_bits"]), dtype=np.int64)


@inlined
def has(bits: np.ndarray, row: int, n: int) -> bool:
    """Whether a set has a node."""
    return (bits[row, n >> 6] >> (n & 63)) & 1 != 0


@inlined
def all_free(w: Record, begin: int) -> int:
    """One set of all nodes from `begin` on; the number of sets."""
    bits = t.bitmaps(w)
    t.rows(w).time[0] = begin
    t.rows(w).row[0] = FIRST_SET
    for k in range(bits.shape[1]):
        bits[FIRST_SET, k] = -1
    return 1


@inner
def free_between(w: Record, count: int, s: int, begin: int, end: int, horizon: int) -> int:
    """Leaves in ALLOWED the nodes of a request that are free from `begin` to `end`; when to look again, or 0.

    S7: that is when the first set begins that has a node which those before it, from `begin` on, lack.
    """
    bits, usable, rows = t.bitmaps(w), t.usable(w), t.rows(w)
    words = bits.shape[1]
    for k in range(words):
        bits[ALLOWED, k] = usable[s, k]
    if begin >= horizon:
        return 0
    i = row_at(w, count, begin + 1) - 1
    later = 0
    while i < count:
        inside = rows.time[i] <= end
        if not inside and later > 0:
            break
        here = rows.row[i]
        if later == 0 and i + 1 < count:
            following = rows.row[i + 1]
            for k in range(words):
                if usable[s, k] & bits[following, k] & ~(bits[ALLOWED, k] & bits[here, k]):
                    later = rows.time[i + 1]
                    break
        if not inside:
            break
        for k in range(words):
            bits[ALLOWED, k] &= bits[here, k]
        i += 1
    return later


@inner
def overlaps(w: Record, count: int, begin: int, end: int, horizon: int) -> bool:
    """Whether a node of CHOSEN is reserved at some time from `begin` to `end`."""
    bits, rows = t.bitmaps(w), t.rows(w)
    i = max(row_at(w, count, begin + 1) - 1, 0)
    if begin >= horizon:
        return False
    while i < count and rows.time[i] < end:
        for k in range(bits.shape[1]):
            if bits[CHOSEN, k] & ~bits[rows.row[i], k]:
                return True
        i += 1
    return False


@inlined
def _split(w: Record, count: int, instant: int) -> int:
    """Makes sure that a set begins at `instant`; the new number of sets."""
    rows, bits = t.rows(w), t.bitmaps(w)
    at = row_at(w, count, instant)
    if at < count and rows.time[at] == instant:
        return count
    for i in range(count, at, -1):
        rows.time[i] = rows.time[i - 1]
        rows.row[i] = rows.row[i - 1]
    rows.time[at] = instant
    rows.row[at] = FIRST_SET + count
    for k in range(bits.shape[1]):
        bits[FIRST_SET + count, k] = bits[rows.row[at - 1], k]
    return count + 1


@inner
def reserve(w: Record, count: int, begin: int, end: int, horizon: int) -> int:
    """S5: takes the nodes of CHOSEN, whole, out of the sets from `begin` to `end`; the new number of sets."""
    rows, bits = t.rows(w), t.bitmaps(w)
    if begin >= horizon:
        return count
    count = _split(w, count, begin)
    if end < horizon:
        count = _split(w, count, end)
    i = row_at(w, count, begin)
    while i < count and rows.time[i] < end:
        for k in range(bits.shape[1]):
            bits[rows.row[i], k] &= ~bits[CHOSEN, k]
        i += 1
    return count
