"""Python policies on a live queue: called through the gate, on a copy of the snapshot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slurm_rl.decide import renew_fairshare
from slurm_rl.domain.snapshot import Snapshot
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.outside_calls import OutsideCalls
from slurm_rl.policy.queue import Queue, renew
from slurm_rl.policy.registry import PolicySpec, network_tables, settings_for


def scorer(calls: OutsideCalls, spec: PolicySpec) -> Callable[[Snapshot], Array]:
    """Scores of the pending jobs of a snapshot, pool by pool; NaN throughout if one pool got none that are usable."""

    def score(snapshot: Snapshot) -> Array:
        scores = np.full(len(snapshot.pending), np.nan)
        world = snapshot.world.copy()
        calculated = world["calculated"]
        world.unlink()
        for key, value in (settings_for(spec) | {"calculated": calculated}).items():
            world[key] = value
        for key, table in network_tables(spec, len(world["jobs"])).items():
            world[key] = table
        renew_fairshare(world.record, snapshot.now)
        pool = world["requests"]["pool"][world["jobs"]["request"][snapshot.pending]]
        for p in np.unique(pool).tolist():
            here = pool == p
            jobs = np.ascontiguousarray(snapshot.pending[here], dtype=np.int64)
            renew(world.record, jobs)
            given = calls(Queue(world, snapshot.now, jobs))
            if given is None:
                return np.full(len(snapshot.pending), np.nan)
            scores[here] = given
        # Pools are scored apart, and each is ordered apart: one job alone says nothing about others.
        if len(scores) > 1 and len(np.unique(scores)) == 1:
            scores = scores - 1e-9 * np.arange(len(scores))
        return scores

    return score
