"""Reservations as kernels see them: which nodes they leave to a job that starts at some time.

Implements V1 to V3 of docs/backfill.md. A World without reservations has no rows of `kept`, and pays for one look at
their number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_rl.domain.reservations import Reservation
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Array, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.kernel.links import BOOL, INT, by_address
from slurm_rl.kernel.tables import World

# Columns of `kept`; the flags are 0 or 1. CLOSED: the pass in which a job of the reservation found no room in it.
BEGINS, ENDS, MAINT, OVERLAP, FLEX, EVERY_NODE, CLOSED, COLUMNS = range(8)


def reserved_rows(reservations: Sequence[Reservation]) -> Array:
    """The table `kept`."""
    rows = np.zeros((len(reservations), COLUMNS), dtype=np.int64)
    for i, r in enumerate(reservations):
        rows[i, [BEGINS, ENDS]] = r.start, r.end
        rows[i, [MAINT, OVERLAP, FLEX]] = [name in r.flags for name in ("MAINT", "OVERLAP", "FLEX")]
        rows[i, EVERY_NODE] = r.every_node
    return rows


def make_reserved(world: World) -> None:
    """Gives a World with reservations what its rule plans with."""
    world["kept"] = world["kept"].copy()
    world["kept"][:, CLOSED] = -1  # as passes of another World may have left it
    world["open_bits"] = np.zeros((1, world["kept_bits"].shape[1]), dtype=np.int64)


@inlined
def own_reservation(w: Record, j: int) -> int:
    """The reservation that a job is for; -1: none."""
    return t.kept_for(w)[j] - 1 if w.kept_0 > 0 else -1


@inlined
def lasts(w: Record, j: int, at: int) -> bool:
    """V2: whether a job may start at a time as far as its own reservation goes."""
    own = t.kept_for(w)[j] - 1
    kept = t.kept(w)
    return bool(own < 0 or kept[own, FLEX] != 0 or kept[own, BEGINS] <= at < kept[own, ENDS])


@inlined
def keeps_from(w: Record, r: int, own: int, begin: int, end: int) -> bool:
    """V1, V3: whether reservation `r` keeps its nodes from a job of reservation `own` that would run so long."""
    kept = t.kept(w)
    if r == own or kept[r, BEGINS] >= end or kept[r, ENDS] <= begin:
        return False
    return own < 0 or (kept[own, MAINT] == 0 and (kept[own, OVERLAP] == 0 or kept[r, MAINT] != 0))


@kernel
def leave_open(w: Record, j: int, begin: int) -> bool:
    """Leaves in `open_bits` what reservations leave to a job that starts at `begin`; whether they keep any."""
    left, bits, kept = t.open_bits(w), t.kept_bits(w), t.kept(w)
    words = left.shape[1]
    own = t.kept_for(w)[j] - 1
    some = False
    for k in range(words):
        left[0, k] = -1
    if own >= 0 and kept[own, FLEX] == 0:
        some = True
        inside = lasts(w, j, begin)
        for k in range(words):
            left[0, k] = bits[own, k] if inside else 0
    end = begin + t.jobs(w).limit[j]
    for r in range(len(kept)):
        if keeps_from(w, r, own, begin, end):
            some |= _in_pool(w, r, t.requests(w).pool[np.int64(t.jobs(w).request[j])])
            for k in range(words):
                left[0, k] &= ~bits[r, k]
    return some


call_leave_open = by_address("leave_open", leave_open, BOOL, INT, INT)


@inlined
def _in_pool(w: Record, r: int, pool: int) -> bool:
    """Whether a reservation has a node of a pool."""
    bits, low, high = t.kept_bits(w), t.pools(w).first_node[pool], t.pools(w).last_node[pool]
    for k in range(low >> 6, (high + 63) >> 6):
        word = bits[r, k]
        if k == low >> 6:
            word &= np.int64(-1) << (low & 63)
        if k == high >> 6:
            word &= (np.int64(1) << (high & 63)) - 1
        if word != 0:
            return True
    return False


@inner
def within_reservation(w: Record, j: int, limit: int, began: int) -> int:
    """V5: the limit of a job that began at a time, cut where its reservation ends."""
    own, kept = t.kept_for(w)[j] - 1, t.kept(w)
    if own < 0 or kept[own, FLEX] != 0:
        return limit
    return int(min(limit, kept[own, ENDS] + w.over_reservation - began))
