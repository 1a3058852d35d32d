"""Processor time of one choice of a policy, at the queues of a crowded replay: docs/agents.md.

slurm-rl study meta-decision
"""

from __future__ import annotations

import time

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.jit import kernel
from slurm_rl.policy.order import call_choose_policy
from slurm_rl.policy.registry import parse_policy
from slurm_rl.traces.generate import generate
from slurm_rl.traces.regimes import regime
from slurm_rl_sim.replay import prepare
from slurm_rl_sim.simulation import ReplayState

CHOOSERS = ("meta:meta", "bandit:egreedy", "bandit:exp3", "bandit:linucb")
_BATCHES, _CHOICES = 30, 200


@kernel
def _choose_often(world: Array, now: float, queue: Array, times: int) -> None:
    w = world[0]
    for _ in range(times):
        w.decide_every = 0.0
        call_choose_policy(w, now, queue, len(queue))


def main() -> None:
    """Times choices at queues as they were in a crowded replay."""
    spec, cluster = regime("bursty-x4-g16", jobs=2000, seed=1)
    prepared = prepare(generate(spec, cluster), cluster)
    print(f"{'policy':<18} {'waiting jobs':>12} {'least µs':>9} {'median µs':>9}   of {_BATCHES} × {_CHOICES} choices")
    for name in CHOOSERS:
        simulation = ReplayState(prepared.workload, prepared.trace.run_time, parse_policy(name))
        for until in (2000, 8000, 30_000):
            simulation.run(until)
            pool = simulation.world["pools"][0]
            queue = simulation.world["queue"][int(pool["queue_first"]) : int(pool["queue_last"])].copy()
            if len(queue) < 2:
                continue
            _choose_often(simulation.world.record, float(simulation.now), queue, 10)
            took = []
            for _ in range(_BATCHES):
                began = time.process_time()
                _choose_often(simulation.world.record, float(simulation.now), queue, _CHOICES)
                took.append((time.process_time() - began) / _CHOICES * 1e6)
            print(f"{name:<18} {len(queue):>12} {min(took):>9.1f} {np.median(took):>9.1f}", flush=True)
