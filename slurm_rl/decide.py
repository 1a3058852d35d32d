"""Snapshot + policy + placer -> Plan, with the guardrails: bounds, starvation cap, output gate, fallback.

`decide` is pure: it works on a copy of the snapshot, and time is part of the snapshot. The replay engine calls the
same kernels (`order_queue`, `start_jobs`); a test holds the two equal step by step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from slurm_rl.backfill.catalogue import RULES, Rule, make_tables
from slurm_rl.backfill.dispatch import start_jobs
from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.domain.snapshot import Plan, PlannedDeferral, Reasons, Ruler, Snapshot, Start
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import MIX, NEVER, RECENT, RELEASED, Array
from slurm_rl.kernel.jit import kernel
from slurm_rl.kernel.linking import link_kernels
from slurm_rl.kernel.links import link
from slurm_rl.kernel.quotas import held_back
from slurm_rl.kernel.tables import World, enough_rows
from slurm_rl.place.catalogue import PLACEMENTS, Placement
from slurm_rl.place.plan import Planner
from slurm_rl.policy.catalogue import GIVEN, MULTIFACTOR
from slurm_rl.policy.fairshare import fair_tree, hold
from slurm_rl.policy.gate import usable
from slurm_rl.policy.lane import AGE, charge, in_lane
from slurm_rl.policy.meta import STATE, meta_tables, why_it_rules
from slurm_rl.policy.order import call_order_queue, influence_on, site_factor, starving, weight_sum
from slurm_rl.policy.registry import PolicySpec, booked, network_tables, settings_for, with_lane
from slurm_rl.policy.sorting import sort_by_score


@dataclass(frozen=True, slots=True)
class Guardrails:
    """Bounds on what a policy may do."""

    influence: float = 1.0  # 1: the policy's order alone; live, a share of the summed priority weights
    starve_age: float = math.inf  # a job that has waited so many seconds …
    starve_factor: float = 0.0  # … and so many times its estimate goes first
    starve_drain: float | None = None  # None: the policy's own; so many times the backlog
    lane_share: float = 0.0  # above 0: in place of these, a lane with that share of the work started (policy/lane.py) …
    lane_age: float = AGE  # … for the oldest job, once it has waited so many backlogs


def decide(
    snapshot: Snapshot,
    policy: PolicySpec,
    *,
    backfill: str = "easy",
    placement: str = "best-fit",
    guardrails: Guardrails | None = None,
    weights: dict[str, float] | None = None,
    scores: Array | None = None,
    planner: Planner | None = None,
    memory: Mapping[str, Array] | None = None,
    slurm: SlurmSettings | None = None,
) -> Plan:
    """Orders the pending jobs and says which of them can start now, and where.

    `memory` is the state of a policy that chooses among others, from the plan before, where the snapshot has none.
    `slurm`: settings of the backfill rule `slurm`; Slurm's defaults if there are none.

    `scores` replaces the policy's own, one for each pending job: the way of policies that kernels do not know. If they
    do not pass the gate (policy/gate.py), Slurm's own order (multifactor) stands, and the plan says so.
    """
    rule, placer = RULES[backfill], PLACEMENTS[placement]
    fallback = scores is not None and not usable(scores, snapshot.world["jobs"][snapshot.pending])
    name = policy.name
    policy = _as_scored(policy, given=scores is not None, fallback=fallback)
    world = _linked(snapshot, policy, rule, placer, guardrails or Guardrails(), weights, memory, slurm)
    planner = (planner or Planner()) if placer.planned else None
    if scores is not None and not fallback:
        world["live"]["score"][snapshot.pending] = scores
    order, values, factors, promoted, starts, queues = [], [], [], [], [], []
    lanes: dict[int, tuple[float, float]] = {}
    pool = world["requests"]["pool"][world["jobs"]["request"][snapshot.pending]]
    for p in range(len(world["pools"])):
        queue = np.ascontiguousarray(snapshot.pending[pool == p], dtype=np.int64)
        if not len(queue):
            continue
        ranked, score, factor, first = _rank(world.record, float(snapshot.now), queue)
        lanes |= _lane(world, p)
        order.append(ranked)
        values.append(score)
        factors.append(factor)
        promoted.append(first)
        queues.append((p, _free(queue, snapshot)))
    if planner is not None:
        ranks = zip(queues, order, strict=True)
        planner.plan(world, [(p, not_held(world, _free(ranked, snapshot))) for (p, _), ranked in ranks])
    for p, queue in queues:
        starts.extend(_starts(world, rule, snapshot.now, p, queue, cycle=False))
    if rule.on_tick and _cycle_is_due(world, snapshot.now):
        for p, queue in queues:
            waiting = queue[world["live"]["held"][queue] == 0]
            starts.extend(_starts(world, rule, snapshot.now, p, waiting, cycle=True))
    jobs = np.concatenate(order).tolist() if order else []
    score = np.concatenate(values) if order else np.zeros(0)
    first = np.concatenate(promoted) if order else np.zeros(0, dtype=bool)
    rulers = _rulers(policy, world, snapshot, [p for p, _ in queues])
    ruling = [ruler.policy for ruler, ranked in zip(rulers, order, strict=False) for _ in ranked]
    in_lanes = {jobs.index(j): lane for j, lane in lanes.items() if j in jobs}
    reasons = Reasons(name, score, first, fallback=fallback, ruling=ruling, lanes=in_lanes)
    factor = np.concatenate(factors).astype(np.int64).tolist() if order else []
    awaited = planner.awaited if planner is not None else {}
    deferrals = tuple(PlannedDeferral(j, -int(world["hint_of"][j]), awaited[j]) for j in jobs if j in awaited)
    kept = {key: world[key] for key in STATE} if policy.meta is not None else None
    return Plan(snapshot.now, tuple(jobs), tuple(factor), reasons, tuple(starts), deferrals, rulers, kept)


def _rulers(policy: PolicySpec, world: World, snapshot: Snapshot, pools: list[int]) -> tuple[Ruler, ...]:
    """Who rules the queues of these pools, if the policy is one that chooses."""
    if policy.meta is None:
        return ()
    found = []
    for pool in pools:
        state = world["choosers"][pool]
        name = snapshot.pools[pool] if snapshot.pools else ""
        counts = (int(state[key]) for key in ("decisions", "switches", "held_back"))
        ruling, why = policy.meta.names[int(state["current"])], why_it_rules(policy.meta, world, pool)
        found.append(Ruler(name, ruling, why, float(state["since"]), *counts))
    return tuple(found)


def _free(queue: Array, snapshot: Snapshot) -> Array:
    """Without the jobs that a limit keeps back: they must not take the place of jobs that can start."""
    if not snapshot.kept_back:
        return queue
    return np.ascontiguousarray(queue[~np.isin(queue, list(snapshot.kept_back))])


def not_held(world: World, queue: Array) -> Array:
    """Without the jobs that a limit or a reservation of the World holds back now (L1, V2)."""
    if len(world["quotas"]) + len(world["kept"]) == 0 or not len(queue):
        return queue
    return np.ascontiguousarray(queue[_may_start(world.record, queue)])


@kernel
def _may_start(world: Array, queue: Array) -> Array:
    w = world[0]
    free = np.empty(len(queue), dtype=np.bool_)
    for i in range(len(queue)):
        free[i] = held_back(w, queue[i]) == 0
    return free


def ready_to_order(
    snapshot: Snapshot,
    policy: PolicySpec,
    guardrails: Guardrails,
    weights: dict[str, float] | None = None,
    *,
    given: bool = False,
    fallback: bool = False,
    memory: Mapping[str, Array] | None = None,
) -> World:
    """A world on which `in_order` tells the order that `decide` does, again and again; it shares nothing.

    With `given`, scores are what the caller puts into the table `live`; with `fallback`, Slurm's own order stands.
    """
    policy = _as_scored(policy, given=given, fallback=fallback)
    world = _linked(snapshot, policy, RULES["easy"], PLACEMENTS["best-fit"], guardrails, weights, memory)
    world["decide_every"] = math.inf  # who rules goes on to rule, whatever is asked
    return world


def _as_scored(policy: PolicySpec, *, given: bool, fallback: bool) -> PolicySpec:
    if fallback:
        return replace(policy, name="multifactor", code=MULTIFACTOR, starve_drain=math.inf, meta=None)
    if given:
        return replace(policy, code=GIVEN, starve_drain=math.inf, meta=None)  # nobody has observed the backlog
    return policy


def _linked(
    snapshot: Snapshot,
    policy: PolicySpec,
    rule: Rule,
    placer: Placement,
    guard: Guardrails,
    weights: dict[str, float] | None,
    memory: Mapping[str, Array] | None,
    slurm: SlurmSettings | None = None,
) -> World:
    """A copy of the snapshot's world with all that ordering and starting jobs needs."""
    if rule.books_many:
        policy = booked(policy)
    policy = replace(policy, starve_age=guard.starve_age, starve_factor=guard.starve_factor)
    if guard.starve_drain is not None:
        policy = replace(policy, starve_drain=guard.starve_drain)
    if guard.lane_share:
        policy = with_lane(policy, guard.lane_share, guard.lane_age)
    world = snapshot.world.copy()
    calculated = world["calculated"]
    chosen = meta_tables(policy, len(world["pools"]), world)
    world.unlink()
    settings = settings_for(policy, influence=guard.influence, weights=weights)
    for key, value in (settings | rule.told(slurm) | placer.settings).items():
        world[key] = value
    make_tables(world, rule)
    world["calculated"] = calculated
    world["prefer"] = world["speed"][world["requests"]["row"]]
    if placer.planned and len(world["hint_of"]) == 0:
        world["hint_of"] = np.zeros(len(world["jobs"]), dtype=np.int64)
    if placer.weighs and len(world["mix"]) == 0:
        world["mix"] = np.zeros(RECENT, dtype=MIX)
    _make_scratch(world)
    for key, table in (network_tables(policy, len(world["jobs"])) | chosen | _copies(memory)).items():
        world[key] = table
    link_kernels(world, policy.row, placer, rule)
    if policy.lane_share:
        link(world, "enter_lane")
    renew_fairshare(world.record, snapshot.now)
    return world


def _copies(memory: Mapping[str, Array] | None) -> dict[str, Array]:
    return {key: table.copy() for key, table in (memory or {}).items()}


def _cycle_is_due(world: World, now: int) -> bool:
    """S2, as the replay engine has it: at once after whatever happened, but an interval after the last cycle."""
    tick, last = int(world["tick"]), int(world["last_cycle"])
    if tick < now:
        tick, last = int(NEVER), tick
    change, every, clean_up = world["pools"]["change"], int(world["interval"]), int(world["clean_up"])
    if tick == NEVER and bool((change > 0).any()):
        tick = last + every
        if clean_up and tick < now and bool((change == RELEASED).any()):
            tick = max(tick, now - clean_up) + every
        tick = max(now, tick)
    return tick == now


def _lane(world: World, pool: int) -> dict[int, tuple[float, float]]:
    """The pool's job that the lane lets go first, with the lane's share of the work started and what it may have."""
    row = world["pools"][pool]
    if not world["lane_share"] or not row["lane_job"]:
        return {}
    used = float(row["lane_work"] / row["started_work"]) if row["started_work"] > 0.0 else 0.0
    return {int(row["lane_job"]) - 1: (used, float(world["lane_share"]))}


def _make_scratch(world: World) -> None:
    jobs = len(world["jobs"])
    world["scores"] = np.empty(jobs)
    for name in ("order", "scratch", "started"):
        world[name] = np.empty(jobs, dtype=np.int64)


def _starts(world: World, rule: Rule, now: int, pool: int, queue: Array, *, cycle: bool) -> list[Start]:
    if rule.profile == "nodes":
        rows = 4 + int(world["pools"]["running"][pool]) + 4 * len(queue) + 2 * len(world["kept"])
        enough_rows(world, rows, on_nodes=True)
    count = int(_plan_pool(world.record, now, pool, queue, cycle))
    entries, live = world["entries"], world["live"]
    starts = []
    for job in world["started"][:count].tolist():
        nodes = []
        at = int(live["held"][job])
        while at > 0:
            nodes.append((int(entries["node"][at]), int(entries["units"][at])))
            at = int(entries["next"][at])
        starts.append(Start(job, tuple(nodes)))
    return starts


@kernel
def renew_fairshare(world: Array, now: int) -> None:
    """Recalculates fairshare when its period has passed, as Slurm does."""
    w = world[0]
    if w.track_usage and now - w.calculated >= w.calc_period:
        fair_tree(t.users(w), t.accounts(w), float(now), w.half_life)
        w.calculated = now


@kernel
def _rank(world: Array, now: float, queue: Array) -> tuple[Array, Array, Array, Array]:
    """The pool's jobs in order, with the policy's scores, site factors, and whether they were promoted.

    Below full influence the factors are those with which the order was made: by the policy's own rank.
    """
    w = world[0]
    count = len(queue)
    call_order_queue(w, now, queue, count)
    order = t.order(w)[:count].copy()
    own = t.scores(w)[:count].copy()
    influence = influence_on(w, queue[0])
    pool = t.requests(w).pool[np.int64(t.jobs(w).request[queue[0]])]
    if influence < 1.0:
        for i in range(count):
            own[i] = t.live(w).score[queue[i]]
    sort_by_score(own, count, t.order(w), t.scratch(w))
    own_rank, place_of = np.empty(count, dtype=np.int64), {np.int64(-1): np.int64(-1)}
    for rank in range(count):
        own_rank[t.order(w)[rank]] = rank
    for i in range(count):
        place_of[queue[i]] = np.int64(i)
    score, factor, promoted = np.empty(count), np.empty(count), np.empty(count, dtype=np.bool_)
    bound = influence * weight_sum(w)
    for rank in range(count):
        j = order[rank]
        at = place_of[j]
        score[rank] = own[at]
        promoted[rank] = starving(w, now - t.jobs(w).submit[j], t.live(w).expected[j]) or in_lane(w, pool, j)
        factor[rank] = site_factor(own_rank[at] if influence < 1.0 else rank, count, bound)
        if promoted[rank]:
            factor[rank] = round(bound)
    return order, score, factor, promoted


@kernel
def in_order(world: Array, now: float, queue: Array) -> Array:
    """A pool's waiting jobs as the policy orders them at this moment."""
    w = world[0]
    call_order_queue(w, now, queue, len(queue))
    return t.order(w)[: len(queue)].copy()


@kernel
def _plan_pool(world: Array, now: int, pool: int, queue: Array, cycle: bool) -> int:
    """Starts what can start in a pool, at an event or in a backfill cycle; how many jobs went to `started`."""
    w = world[0]
    changed = t.pools(w).change[pool] > 0
    count = len(queue)
    if count == 0 or not (changed or (cycle and t.pools(w).due[pool])):
        return 0  # a pool in which nothing has happened has no pass
    call_order_queue(w, float(now), queue, count)
    w.stamp += 1
    starts = start_jobs(w, now, pool, t.order(w), 0, count, 0, w.stamp, cycle)
    for i in range(starts):
        j = t.started(w)[i]
        t.live(w).start[j] = now
        if w.lane_share > 0.0:
            charge(w, j, float(now))
        if w.track_usage:
            volume = t.requests(w).volume[t.jobs(w).request[j]]
            user, account = np.int64(t.jobs(w).user[j]), np.int64(t.jobs(w).account[j])
            hold(t.users(w), t.accounts(w), user, account, volume, float(now), w.half_life)
    return starts
