"""When jobs may start: the simulator run forward from a snapshot, several times, with run times drawn from estimates.

What comes later is not foreseen: jobs that are yet to be submitted, nodes that fail, users who cancel.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.backfill.catalogue import RULES
from slurm_rl.controller.slurm_snapshot import LiveQueue
from slurm_rl.domain.snapshot import Plan
from slurm_rl.kernel.arrays import LOG, NEVER, Array
from slurm_rl.kernel.linking import link_kernels
from slurm_rl.kernel.tables import World
from slurm_rl.place.catalogue import PLACEMENTS
from slurm_rl.policy.registry import parse_policy, settings_for
from slurm_rl_sim.engine import advance
from slurm_rl_sim.state import QUEUED, RUNNING, WAITING

TOP = 2000  # jobs at the head of the order that are simulated: those behind them start far in the future
_DRAWS = 12
_LOW, _HIGH = 0.1, 0.9


def expected_starts(view: LiveQueue, plan: Plan, draws: int = _DRAWS) -> Array:
    """[jobs of the plan's order, 3]: the median start, and the ends of a range that holds four starts of five.

    A job of which nothing can be said has NaN: it is far behind, or never fits the nodes as they are.
    """
    found = np.full((len(plan.order), 3), np.nan)
    order = np.array(plan.order[:TOP], dtype=np.int64)
    if not len(order):
        return found
    rng = np.random.default_rng(view.now)
    runs = np.stack([_forward(view, order, _draw(view, rng)) for _ in range(draws)]).astype(float)
    runs[runs < 0] = np.inf  # not started in that run
    middle, low, high = np.quantile(runs, [0.5, _LOW, _HIGH], axis=0, method="nearest")
    known = np.isfinite(middle)
    high[known & ~np.isfinite(high)] = np.max(runs[np.isfinite(runs)], initial=view.now)
    found[: len(order)][known] = np.stack([middle, low, high], axis=1)[known]
    return found


def _draw(view: LiveQueue, rng: np.random.Generator) -> Array:
    """A run time for each job: log-normal as estimated, longer than it has run by now, and never beyond its limit."""
    world = view.snapshot.world
    limit = world["jobs"]["limit"].astype(float)
    running = world["live"]["held"] > 0
    ran = np.where(running, np.maximum(view.now - world["live"]["start"], 0), 0.0)
    spread = np.maximum(view.spread, 1e-6)
    middle = np.log(np.maximum(view.estimate, 1.0))
    above = normal_above(rng, (np.log(np.maximum(ran, 1e-9)) - middle) / spread)
    drawn = np.exp(np.minimum(middle + spread * above, 40.0))
    result: Array = np.clip(drawn, np.minimum(ran + 1.0, limit), limit)
    return result


def normal_above(rng: np.random.Generator, low: Array) -> Array:
    """Standard normal values, each on condition that it is above its bound.

    By rejection: below 0 from the normal itself, above 0 from an exponential tail at the bound (Robert 1995).
    """
    result = np.array(low, dtype=float)
    left = np.arange(len(result))
    rate = (low + np.sqrt(low * low + 4.0)) / 2.0
    while len(left):
        tail = low[left] > 0
        tried = np.where(tail, low[left] + rng.exponential(size=len(left)) / rate[left], rng.normal(size=len(left)))
        chance = np.where(tail, np.exp(-((tried - rate[left]) ** 2) / 2.0), 1.0)
        taken = (tried > low[left]) & (rng.random(len(left)) <= chance)
        result[left[taken]] = tried[taken]
        left = left[~taken]
    return result


def _forward(view: LiveQueue, order: Array, run: Array) -> Array:
    """The start of each job of the order, if the jobs run so long; -1 for one that does not start."""
    world = _world(view, order, run)
    advance(world.record, int(NEVER) - 1, False)
    starts: Array = world["live"]["start"][order]
    return starts


def _world(view: LiveQueue, order: Array, run: Array) -> World:
    """A simulation at this moment: running jobs end as drawn, waiting ones are tried in the plan's order."""
    world = view.snapshot.world.copy()
    jobs, live, pools, now = world["jobs"], world["live"], world["pools"], view.now
    count = len(jobs)
    running = np.flatnonzero(live["held"] > 0)
    live["state"] = QUEUED  # neither arrives nor runs
    live["state"][order] = WAITING
    live["state"][running] = RUNNING
    live["start"][order] = -1
    live["end"][running] = np.maximum(live["start"][running] + np.rint(run[running]).astype(np.int64), now + 1)
    jobs["priority"][order] = -np.arange(len(order), dtype=float)
    jobs["submit"] = np.minimum(jobs["submit"], now)
    heap = np.zeros(count, dtype=np.int64)
    heap[: len(running)] = running[np.lexsort((running, live["end"][running]))]  # in order: a heap
    world["heap"], world["heap_count"] = heap, len(running)
    world["work"] = np.maximum(np.rint(run), 1.0)
    world["speed"][:] = 1.0
    world["log"] = np.zeros(len(world["entries"]) + count, dtype=LOG)
    pools["queue_first"] = pools["queue_last"] = pools["first_job"]
    for name in ("change", "fresh", "planned", "due", "stamp"):
        pools[name] = 0
    policy, rule, placer = parse_policy("static-priority"), RULES["easy"], PLACEMENTS["first-fit"]
    settings = settings_for(policy) | rule.settings | placer.settings
    for name, value in (settings | {"clock": now, "arrived": 0, "tick": NEVER}).items():
        world[name] = value
    link_kernels(world, policy.row, placer, rule)
    return world
