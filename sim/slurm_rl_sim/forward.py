"""Simulates the queue forward many times: the start of each waiting job under drawn run times and arrivals.

Pure: a Scene is not changed, chance is an argument. Replay (`forecast-report`) and the live side (`explain`, `when`,
the dashboard) make their Scenes from a World each, and everything after that is the same.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_rl.backfill.catalogue import RULES, make_tables
from slurm_rl.kernel.arrays import ENTRY, LOG, NOW, Array
from slurm_rl.kernel.build import Workload
from slurm_rl.kernel.linking import link_kernels
from slurm_rl.kernel.links import link
from slurm_rl.kernel.quotas import linked_pools, tables_for
from slurm_rl.kernel.tables import WORLD, World, enough_rows
from slurm_rl.kernel.world import new_world
from slurm_rl.place.catalogue import PLACEMENTS
from slurm_rl.policy.meta import meta_tables
from slurm_rl.policy.registry import PolicySpec, booked, network_tables, parse_policy, settings_for
from slurm_rl_sim.best import sorts_as_it_looks
from slurm_rl_sim.engine import GROW, advance
from slurm_rl_sim.reservations import boundaries
from slurm_rl_sim.residuals import Residuals
from slurm_rl_sim.state import REJECTED, RUNNING, WAITING

DAY = 86_400
HORIZON = 14 * DAY  # a job that has not started by then "starts later"
_FIRST_LOOK = 3_600  # seconds simulated before the first look whether all targets have started
_LONG_STEP = 0.1  # seconds that a step may cost where there is a deadline: the next one is shorter
_SHORTEST_PAST = 3_600  # seconds: jobs that came within a shorter time count as an hour's
# Days of the past below which who came in it is one chance of many: a future has all jobs of a user not at all, once or
# several times (a Poisson bootstrap). A burst in the first hours of a service is then no promise of others.
_YOUNG = 2
_MOST_TO_COME = 50_000  # jobs that come in one future
_SHARED = 0.5  # chance that a job's luck with its run time is its user's: a user's jobs are long or short together


@dataclass(frozen=True, slots=True)
class Past:
    """Jobs that came in the recent past, as those to come are drawn from them; indices into the Scene's jobs."""

    jobs: Array
    submit: Array
    run: Array  # seconds; -1: not over yet, so that it is drawn, given that it has run for `ran`
    ran: Array
    since: int  # from which time on they are complete


@dataclass(frozen=True, slots=True)
class SiteRules:
    """How the site orders, places and backfills."""

    policy: PolicySpec
    backfill: str = "easy"
    placement: str = ""  # the one that belongs to the backfill rule
    influence: float = 1.0
    weights: Mapping[str, float] | None = None
    settings: Mapping[str, float] = field(default_factory=dict)  # of the rule: bf_interval and the like
    usage: bool = True  # whether fairshare follows what users hold; else it stays as it is


@dataclass(frozen=True, slots=True)
class Scene:
    """A moment: who runs where since when, who waits, and what is expected of each job's run time."""

    now: int
    world: World  # shared, not changed
    workload: Workload  # that the World was made from
    running: Array  # indices of jobs that hold nodes
    pending: Array
    log_median: Array  # [jobs] logarithm of the estimated run time
    spread: Array  # [jobs] of the logarithm
    site: SiteRules
    past: Past | None = None
    residuals: Residuals = field(default_factory=Residuals)
    order: Array | None = None  # ranks of the pending jobs, where no kernel can tell them: 0 goes first

    def of_pools(self, pools: Array) -> Scene:
        """The part of it that has to do with these pools."""
        requests, jobs = self.world["requests"], self.world["jobs"]

        def mine(rows: Array) -> Array:
            found: Array = np.isin(requests["pool"][jobs["request"][rows]], pools)
            return found

        waits = mine(self.pending)
        past = self.past
        if past is not None:
            of = mine(past.jobs)
            past = Past(past.jobs[of], past.submit[of], past.run[of], past.ran[of], past.since)
        return replace(
            self,
            running=self.running[mine(self.running)],
            pending=self.pending[waits],
            order=None if self.order is None else self.order[waits],
            past=past,
        )


def draw_starts(scene: Scene, targets: Array, draws: int, rng: np.random.Generator, horizon: int = HORIZON) -> Array:
    """[draws, targets]: seconds from now until each of these pending jobs starts; inf: beyond the horizon."""
    if not len(targets):
        return np.zeros((draws, 0))
    return np.stack(list(itertools.islice(futures(scene, targets, rng, horizon), draws)))


def futures(
    scene: Scene,
    targets: Array,
    rng: np.random.Generator,
    horizon: int = HORIZON,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Array]:
    """One future after the other: seconds until each target starts. Ends when `stop` says so, amid a future."""
    targets = np.asarray(targets, dtype=np.int64)
    scene = _near(scene, targets)
    try:
        first = starts_by_limits(scene, targets, horizon, stop)  # how far arrivals must reach
        reach = float(np.max(first, where=np.isfinite(first), initial=0.0))
        reach = min(max(reach, DAY / 2), horizon)
        while True:
            yield _one(scene, targets, rng, int(reach), horizon, stop)
    except _Stopped:
        return


class _Stopped(Exception):
    """There is no time left."""


def starts_by_limits(
    scene: Scene, targets: Array, horizon: int = HORIZON, stop: Callable[[], bool] | None = None
) -> Array:
    """[targets]: seconds until each starts if every job lasts to its limit and nobody comes: what backfill plans by."""
    scene = _near(scene, targets)
    jobs = _present(scene)
    limit = scene.world["jobs"]["limit"][jobs].astype(float)
    return _run(scene, jobs, np.zeros(0, np.int64), np.zeros(0, np.int64), limit, targets, horizon, stop)


def _near(scene: Scene, targets: Array) -> Scene:
    world = scene.world
    pools = np.unique(world["requests"]["pool"][world["jobs"]["request"][targets]])
    return scene.of_pools(linked_pools(world, pools, _present(scene)))


def _present(scene: Scene) -> Array:
    return np.sort(np.concatenate([scene.running, scene.pending]).astype(np.int64))


def _one(
    scene: Scene,
    targets: Array,
    rng: np.random.Generator,
    reach: int,
    horizon: int,
    stop: Callable[[], bool] | None,
) -> Array:
    """One future."""
    jobs = _present(scene)
    rows, live = scene.world["jobs"], scene.world["live"]
    came, submit, known, had = _arrivals(scene, rng, reach)
    everyone = np.concatenate([jobs, came])
    ran = np.concatenate([np.zeros(len(jobs)), had])
    ran[np.searchsorted(jobs, scene.running)] = np.maximum(scene.now - live["start"][scene.running], 0)
    luck = rng.random(len(scene.world["users"]) + 1)[rows["user"][everyone]]
    luck = np.where(rng.random(len(everyone)) < _SHARED, luck, rng.random(len(everyone)))
    limit = rows["limit"][everyone].astype(float)
    run = scene.residuals.draw(luck, scene.log_median[everyone], scene.spread[everyone], ran, limit)
    told = np.concatenate([np.full(len(jobs), -1.0), known])
    run = np.where(told >= 0, np.minimum(told, limit), run)
    return _run(scene, jobs, came, submit, run, targets, horizon, stop)


def _arrivals(scene: Scene, rng: np.random.Generator, reach: int) -> tuple[Array, Array, Array, Array]:
    """Jobs to come, by blocks of a day: each is a day of the recent past, at the same time of day.

    (indices, submit times, known run times or -1, how long the unknown ones had run)
    """
    nothing = np.zeros(0, np.int64)
    past = scene.past
    if past is None or not len(past.jobs):
        return nothing, nothing, np.zeros(0), np.zeros(0)
    length = min(DAY, max(scene.now - past.since, _SHORTEST_PAST))
    days = max((scene.now - past.since) // length, 1)
    young = days < _YOUNG
    copies = rng.poisson(1.0, len(scene.world["users"]) + 1) if young else None
    picked, submit, room = [], [], _MOST_TO_COME
    for block in range(math.ceil(reach / length)):
        if room <= 0:
            break
        source = scene.now - int(rng.integers(1, days + 1)) * length
        low, high = np.searchsorted(past.submit, [source, source + length])
        rows = np.arange(low, high)
        when = past.submit[low:high] - source
        if copies is not None:
            again = copies[scene.world["jobs"]["user"][past.jobs[rows]]]
            rows, when = np.repeat(rows, again), np.repeat(when, again)
            if length < DAY:  # nothing is known of the time of day
                when = (when + int(rng.integers(length))) % length
        rows, when = rows[:room], when[:room]
        room -= len(rows)
        picked.append(rows)
        submit.append(when + scene.now + block * length + 1)
    at, when = np.concatenate(picked), np.concatenate(submit)
    return past.jobs[at], when.astype(np.int64), past.run[at].astype(float), past.ran[at].astype(float)


def _run(
    scene: Scene,
    jobs: Array,
    came: Array,
    submit: Array,
    run: Array,
    targets: Array,
    horizon: int,
    stop: Callable[[], bool] | None = None,
) -> Array:
    """Seconds until each target starts, if `jobs` and those that come last so long."""
    world = _world(scene, jobs, came, submit, run)
    at = np.searchsorted(jobs, targets)
    start, state = world["live"]["start"], world["live"]["state"]
    step, until = _FIRST_LOOK, scene.now
    while until < scene.now + horizon:
        if stop is not None and stop():
            raise _Stopped
        until = min(until + step, scene.now + horizon)
        began = time.perf_counter()
        while int(advance(world.record, until, False)) == GROW:
            enough_rows(world, 2 * len(world["rows"]), on_nodes=True)
        if (state[at] != WAITING).all() and (start[at] >= 0).all():
            break
        slow = stop is not None and time.perf_counter() - began > _LONG_STEP
        step = max(step // 4, 60) if slow else min(2 * step, DAY)
    waits: Array = np.where(start[at] >= 0, np.maximum(start[at] - scene.now, 0), np.inf)
    return waits


def _world(scene: Scene, jobs: Array, came: Array, submit: Array, run: Array) -> World:
    """A simulation at this moment of these jobs alone, and of those to come."""
    site, old, now = scene.site, scene.world, scene.now
    rule, placer = RULES[site.backfill], PLACEMENTS[site.placement or RULES[site.backfill].placement]
    if placer.planned:
        placer = PLACEMENTS["best-fit"]  # plans are made pass by pass: too dear here
    policy = site.policy if scene.order is None else parse_policy("static-priority")
    if rule.books_many:
        policy = booked(policy)
    settings = settings_for(policy, influence=1.0 if scene.order is not None else site.influence, weights=site.weights)
    settings |= rule.settings | placer.settings
    if rule.on_tick:  # no other rule has settings, nor a kernel for cycles
        settings |= {name: value for name, value in site.settings.items() if name in (WORLD.names or ())}
    rows = np.concatenate([old["jobs"][jobs], old["jobs"][came]])
    present = len(jobs)
    rows["submit"][:present] = np.minimum(rows["submit"][:present], now)
    rows["submit"][present:] = submit
    order = np.arange(len(rows))
    order[present:] = present + np.argsort(submit, kind="stable")
    rows, run = rows[order], run[order]
    own = _own_tables(scene, np.concatenate([jobs, came])[order])
    settings["fixed_order"] = settings["fixed_order"] and "tiers" not in own
    if scene.order is not None:
        rows["priority"] = -float(len(rows))  # those to come go last
        rows["priority"][np.searchsorted(jobs, scene.pending)] = -scene.order.astype(float)
    pools = scene.workload.pools.copy()
    counts = np.bincount(old["requests"]["pool"][rows["request"]], minlength=len(pools))
    pools["last_job"] = np.cumsum(counts)
    pools["first_job"] = pools["queue_first"] = pools["queue_last"] = pools["last_job"] - counts
    world = new_world(
        replace(scene.workload, jobs=rows, pools=pools),
        settings,
        now=now,
        bookings=rule.keeps_bookings,
        work=np.maximum(np.rint(run), 1.0),
        users=old["users"].copy(),
        accounts=old["accounts"].copy(),
        groups=old["groups"].copy(),
        partition_factor=old["partition_factor"],
        qos_factor=old["qos_factor"],
        log=np.zeros(1, dtype=LOG),
        **own,
        events=boundaries(old["kept"]),
        kept=old["kept"],
        kept_bits=old["kept_bits"],
        kept_for=np.zeros(len(rows) if len(old["kept"]) else 0, dtype=np.int64),
        **network_tables(policy, len(rows)),
        **meta_tables(policy, len(pools)),
    )
    if rule.profile == "nodes":
        enough_rows(world, 512, on_nodes=True)
    world["speed"] = np.ones_like(scene.workload.speed)  # run times are drawn as they are on whatever nodes
    world["nodes"]["down"] = old["nodes"]["down"]
    for name in ("free", "used", "total"):
        world[name][:] = old[name][NOW]
    world["calculated"] = old["calculated"] if site.usage else math.inf
    live = world["live"]
    live["state"] = WAITING
    if scene.workload.rejected:
        live["state"][:present][np.isin(jobs, list(scene.workload.rejected))] = REJECTED
    _hold(world, old, np.searchsorted(jobs, scene.running), scene.running, now)
    make_tables(world, rule)
    link_kernels(world, policy.row, placer, rule)
    if sorts_as_it_looks(world):
        link(world, "start_best")
    if len(world["events"]):
        link(world, "node_events")
    if policy.lane_share:
        for name in ("lane_work", "started_work", "lane_time"):
            world["pools"][name] = old["pools"][name]
        link(world, "enter_lane")
    return world


def _own_tables(scene: Scene, who: Array) -> dict[str, Array]:
    """The site's rules for these jobs of the scene: tiers, and limits as far as they are used up by those that run."""
    own = tables_for(scene.world, who, scene.running)
    if "tiers" in scene.workload.site:
        own["tiers"] = np.ascontiguousarray(scene.world["tiers"][who])
    return own


def _hold(world: World, old: World, at: Array, running: Array, now: int) -> None:
    """Lets jobs go on that run: they hold their nodes, and end when their run times say."""
    live, was, pools = world["live"], old["live"][running], world["pools"]
    live["held"][at], taken = _chains(old["entries"], was["held"])
    entries = world["entries"]
    if len(taken) > len(entries):
        grown = np.zeros(len(taken) + len(entries), dtype=ENTRY)
        world["entries"] = entries = grown
    entries["next"][1:] = np.arange(2, len(entries) + 1)
    entries["next"][-1] = 0
    entries[: len(taken)] = taken
    entries["next"][0] = len(taken) if len(taken) < len(entries) else 0
    live["start"][at], live["state"][at] = was["start"], RUNNING
    live["expected_end"][at] = np.maximum(was["expected_end"], now + 1)
    live["end"][at] = np.maximum(was["start"] + world["work"][at].astype(np.int64), now + 1)
    live["done"][at] = 0.0
    heap = at[np.lexsort((at, live["end"][at]))]
    world["heap"][: len(heap)] = heap  # in order: a heap
    world["heap_count"] = len(heap)
    pool = world["requests"]["pool"][world["jobs"]["request"][at]]
    by_end = np.lexsort((at, live["expected_end"][at], pool))
    pools["running"] = np.bincount(pool, minlength=len(pools))
    first = np.cumsum(pools["running"]) - pools["running"]
    place = np.arange(len(at)) - first[pool[by_end]] + pools["first_job"][pool[by_end]]
    world["running"][place] = at[by_end]


def _chains(entries: Array, heads: Array) -> tuple[Array, Array]:
    """Chains of entries copied into an arena of their own: their heads, and the arena, whose entry 0 is free."""
    first = np.zeros(len(heads), dtype=np.int64)
    last = np.zeros(len(heads), dtype=np.int64)
    parts, count = [np.zeros(1, dtype=ENTRY)], 1
    links: list[tuple[Array, Array]] = []
    who, at = np.flatnonzero(heads > 0), heads[heads > 0]
    while len(who):
        new = count + np.arange(len(who))
        part = entries[at].copy()
        following = part["next"].copy()
        part["next"] = 0
        parts.append(part)
        if links:
            links.append((last[who], new))
        else:
            first[who] = new
            links.append((new[:0], new[:0]))
        last[who] = new
        count += len(who)
        more = following > 0
        who, at = who[more], following[more]
    arena = np.concatenate(parts)
    for before, after in links:
        arena["next"][before] = after
    return first, arena
