"""The seam for meta-policies: a kernel that, before a queue is scored, chooses the policy that scores it.

A meta-policy is a row of catalogue.py with `choose`, a kernel for the slot `choose_policy`, and `candidates`. The
kernel looks at the World and calls `choose` with the number of a candidate, which stays until another is chosen. Worlds
of other policies have nothing in the slot, and pay one comparison for it.
"""

from __future__ import annotations

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import Record
from slurm_rl.kernel.jit import inlined


@inlined
def choose(w: Record, candidate: int) -> None:
    """Lets a candidate, by its place in the row, score from now on."""
    w.score_queue_at = t.candidates(w)[candidate, 0]
    w.score_at = t.candidates(w)[candidate, 1]
