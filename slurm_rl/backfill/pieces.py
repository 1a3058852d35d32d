"""Pieces: neighbouring nodes that the same jobs hold. On a large machine a cycle goes by pieces, not by nodes.

Where the World has no runs (place/runs.py), each node is a piece, under the node's own number. Where it has, a cycle
begins with the pieces as things are; what a job takes, or has reserved, is cut off as a piece of its own. So the nodes
of a piece are alike in all that a cycle asks for: class, what is free, who leaves when, and reservations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_rl.backfill.bitmaps import CHOSEN, FIRST_SET, has
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import NOW, Record
from slurm_rl.kernel.bits import lowest_bit
from slurm_rl.kernel.jit import inlined, inner

_ONE = np.int64(1)


@inlined
def begin_cycle(w: Record, pool: int) -> None:
    """Makes the pieces of a pool, and forgets what was known of others."""
    first, last = t.pools(w).first_node[pool], t.pools(w).last_node[pool]
    w.slots, w.sum_count = 0, -1
    w.first_word, w.last_word = first >> 6, (last + 63) >> 6
    if w.by_runs:
        _make_pieces(w, pool, first, last)
    forget_leavers(w)


@inlined
def forget_leavers(w: Record) -> None:
    """What is free when somebody has left is no longer right: somebody has started."""
    w.leaver_count, w.leaving = 0, 0
    w.mark += 1


@inner
def _make_pieces(w: Record, pool: int, first: int, last: int) -> None:
    bits, pieces, entries, running = t.bitmaps(w), t.pieces(w), t.entries(w), t.running(w)
    for k in range(w.first_word, w.last_word):
        bits[CHOSEN, k] = 0  # nodes with which a piece begins
    for k in range(first, first + t.run_count(w)[NOW, pool]):
        n = t.runs(w)[NOW, k, 0]
        bits[CHOSEN, n >> 6] |= _ONE << (n & 63)
    base = t.pools(w).first_job[pool]
    for i in range(base, base + t.pools(w).running[pool]):
        e = t.live(w).held[running[i]]
        while e > 0:
            n = entries.node[e]
            bits[CHOSEN, n >> 6] |= _ONE << (n & 63)
            n += entries.more[e] + 1
            if n < last:
                bits[CHOSEN, n >> 6] |= _ONE << (n & 63)
            e = entries.next[e]
    count: Any = np.int64(0)
    for k in range(w.first_word, w.last_word):
        word = bits[CHOSEN, k]
        while word != 0:
            n = (k << 6) + lowest_bit(word)
            word &= word - 1
            pieces.node[count], pieces.next[count] = n, count + 1
            if count > 0:
                pieces.count[count - 1] = n - pieces.node[count - 1]
            t.piece_of(w)[n] = count
            count += 1
    pieces.count[count - 1], pieces.next[count - 1] = last - pieces.node[count - 1], -1
    w.piece_count, w.first_word, w.last_word = count, 0, (count + 63) >> 6


@inlined
def nodes_of(w: Record, p: int) -> int:
    """How many nodes a piece has."""
    return t.pieces(w).count[p] if w.by_runs else 1


@inlined
def _cut(w: Record, p: int, nodes: int, sets: int) -> None:
    """Makes the nodes of a piece behind its first `nodes` a piece of their own, in all tables and sets over time."""
    pieces, bits, then, avail = t.pieces(w), t.bitmaps(w), t.then(w), t.avail(w)
    b = w.piece_count
    w.piece_count = b + 1
    n = pieces.node[p] + nodes
    pieces.node[b], pieces.count[b], pieces.next[b] = n, pieces.count[p] - nodes, pieces.next[p]
    pieces.count[p], pieces.next[p] = nodes, b
    t.piece_of(w)[n] = b
    for c in range(then.shape[1]):
        then[b, c] = then[p, c]
    new = b >> 6 == w.last_word
    if new:
        w.last_word += 1
    for row in range(FIRST_SET + sets):
        _copy_bit(bits, row, p, b, new)
    extra = t.usable(w).shape[0] - t.able(w).shape[0]
    for slot in range(w.slots):
        _copy_bit(t.able(w), slot, p, b, new)
        _copy_bit(t.roomy(w), slot, p, b, new)
        _copy_bit(t.usable(w), extra + slot, p, b, new)
        avail[slot, b] = avail[slot, p]


@inlined
def _copy_bit(bits: np.ndarray, row: int, p: int, b: int, new: bool) -> None:
    if new:
        bits[row, b >> 6] = 0
    if has(bits, row, p):
        bits[row, b >> 6] |= _ONE << (b & 63)
    else:
        bits[row, b >> 6] &= ~(_ONE << (b & 63))


@inner
def mark_chosen(w: Record, entries: int, sets: int) -> None:
    """Leaves in CHOSEN the nodes of the placement in `t.spot(w)`, cut off as pieces."""
    bits, spot = t.bitmaps(w), t.spot(w)
    for k in range(w.first_word, w.last_word):
        bits[CHOSEN, k] = 0
    for i in range(entries):
        if not w.by_runs:
            bits[CHOSEN, spot.node[i] >> 6] |= _ONE << (spot.node[i] & 63)
            continue
        p, left = t.piece_of(w)[spot.node[i]], spot.more[i] + 1
        while left > 0:
            if t.pieces(w).count[p] > left:
                _cut(w, p, left, sets)
            left -= t.pieces(w).count[p]
            bits[CHOSEN, p >> 6] |= _ONE << (p & 63)
            p = t.pieces(w).next[p]


@inlined
def allowed_nodes(w: Record, row: int, p: int, count: int) -> int:
    """How many of `count` nodes, from a piece's first on, are in a set of `bitmaps`."""
    if not w.by_runs:
        return 1 if has(t.bitmaps(w), row, p) else 0
    found: Any = np.int64(0)
    left: Any = np.int64(count)
    at: Any = np.int64(p)
    while True:
        if has(t.bitmaps(w), row, at):
            found += t.pieces(w).count[at]
        left -= t.pieces(w).count[at]
        if left <= 0:
            return found
        at = t.pieces(w).next[at]
