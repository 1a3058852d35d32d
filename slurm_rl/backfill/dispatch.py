"""The only entry to the rules, for `decide` and for the replay engine: calls the World's own rule by its address."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Record
from slurm_rl.kernel.jit import inlined
from slurm_rl.kernel.links import INT, LIST, slot

call_backfill_pass = slot("backfill_pass", INT, INT, INT, LIST, INT, INT, INT, INT, LIST)
call_backfill_cycle = slot("backfill_cycle", INT, INT, INT, LIST, INT, INT, INT, INT, LIST)


@inlined
def start_jobs(
    w: Record, now: int, pool: int, order: np.ndarray, first: int, last: int, fresh: int, stamp: int, cycle: bool
) -> int:
    """Starts what the rule lets start of order[first:last]; the number of jobs, written to `t.started(w)`.

    `cycle`: at a tick of the rule's own, not at an event. If nothing but arrivals has come since a pass with this
    stamp, `fresh` is the first of them and only they are tested; otherwise it is 0. MORE_ROWS (rows.py) if a profile
    needs more room first: nothing was done then.
    """
    if cycle:
        return call_backfill_cycle(w, now, pool, order, first, last, fresh, stamp, t.started(w))
    return call_backfill_pass(w, now, pool, order, first, last, fresh, stamp, t.started(w))
