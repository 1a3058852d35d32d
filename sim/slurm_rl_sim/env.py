"""A gymnasium environment over the replay engine: the agent says which waiting job comes next.

`gymnasium.make("slurm_rl/Replay-v0", trace=…, cluster=…)` makes one. At each scheduling pass of a pool in which
something could start, the agent picks jobs one after the other. A job that fits is to start at once, and the next pick
follows; the first that does not fit is the head of the queue, and the backfill rule takes over. An episode is a window
of the trace's training part on a cluster that the jobs before it have filled.

With `defer=N` the agent may also say "not now" of a job, N times at most: it is out of the way, of backfill too, for an
N-th of `defer_seconds`, and never later than `defer_seconds` after its submission.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from slurm_rl.backfill.starting import copy_pool
from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import InputError, unknown_name
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import NOW, SCRATCH, Array
from slurm_rl.kernel.jit import kernel
from slurm_rl.place.kernels import call_place, deferred, take
from slurm_rl.policy.catalogue import BY_USER, GIVEN
from slurm_rl.policy.estimate import refresh
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT, observe
from slurm_rl.policy.registry import PolicySpec, parse_policy
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.contention import contended_begins
from slurm_rl_sim.given import trace_and_cluster
from slurm_rl_sim.metrics import METRICS, metrics
from slurm_rl_sim.render import as_picture, as_text
from slurm_rl_sim.replay import Prepared, prepare
from slurm_rl_sim.result import result_of
from slurm_rl_sim.simulation import Simulation

# Scores of a whole window, compared with the baseline's: the metric, and whether more of it is better.
SCORES = {m.reward: (m.name, m.better > 0) for m in METRICS if m.reward}
_FIRST = 1e15  # above any score by submit time
# Features are logarithms of seconds and counts, shares, and ratios of logarithms: none can leave these bounds.
BOUND = 64.0
Rewards = Mapping[str, float] | Callable[[Mapping[str, Any], Mapping[str, Any]], float]


@kernel
def _deal(world: Array, pool: int, hand: Array) -> int:
    """Begins a pool's picks: its oldest waiting jobs go to `hand`, all scored by submission; how many, 0: no choice."""
    w = world[0]
    first, last = t.pools(w).queue_first[pool], t.pools(w).queue_last[pool]
    refresh(w, t.queue(w)[first:last], last - first)
    for i in range(first, last):
        j = t.queue(w)[i]
        t.live(w).score[j] = -float(t.jobs(w).submit[j])
    if t.pools(w).change[pool] == 0 or last - first < (1 if w.hint_of_0 > 0 else 2):
        return 0
    copy_pool(w, pool, NOW, SCRATCH)
    count = 0
    for i in range(first, last):
        if count < len(hand) and not deferred(w, t.queue(w)[i]):
            hand[count] = t.queue(w)[i]
            count += 1
    return count if count > 0 and _any_room(w, hand, count) else 0


@kernel
def _any_room(w: Any, hand: Array, count: int) -> bool:
    """Whether any job in hand fits what the picks so far leave."""
    w.stamp += 1
    for i in range(count):
        s = np.int64(t.jobs(w).request[hand[i]])
        if t.requests(w).misfit[s] != w.stamp:
            if call_place(w, s, SCRATCH) > 0:
                return True
            t.requests(w).misfit[s] = w.stamp
    return False


@kernel
def _pick(world: Array, hand: Array, count: int, at: int, picked: int) -> int:
    """Puts a job next in the order; how many are left to pick from, 0 if the pool's order is settled."""
    w = world[0]
    j = hand[at]
    t.live(w).score[j] = _FIRST - picked
    s = np.int64(t.jobs(w).request[j])
    pieces = call_place(w, s, SCRATCH)
    if pieces == 0:
        return 0
    take(w, s, SCRATCH, pieces)
    return _without(w, hand, count, at)


@kernel
def _without(w: Any, hand: Array, count: int, at: int) -> int:
    """Takes a job out of the hand; how many are left to pick from, 0 if none of them fits."""
    for i in range(at, count - 1):
        hand[i] = hand[i + 1]
    count -= 1
    return count if count > 0 and _any_room(w, hand, count) else 0


@kernel
def _not_now(world: Array, hand: Array, count: int, at: int, until: int) -> int:
    """Defers a job; how many are left to pick from, 0 if the pool's order is settled."""
    w = world[0]
    t.hint_of(w)[hand[at]] = -until
    w.wake = min(w.wake, until)
    return _without(w, hand, count, at)


@kernel
def _see(world: Array, now: float, hand: Array, count: int, jobs: Array, pool: Array) -> None:
    """Copies the features of the jobs in hand and of their pool."""
    w = world[0]
    observe(w, now, hand, count)
    for i in range(len(hand)):
        for f in range(JOB_COUNT):
            jobs[i, f] = t.features(w)[i, f] if i < count else np.float32(0.0)
    for f in range(POOL_COUNT):
        pool[f] = t.context(w)[f]


def gain(rewards: Rewards, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """What a schedule's metrics are better by than another's, in shares, weighted; or what a caller makes of both."""
    if callable(rewards):
        return float(rewards(mine, theirs))
    total = 0.0
    for name, weight in rewards.items():
        metric, more = SCORES[name]
        a, b = mine[metric], theirs[metric]
        if a is None or b is None:
            continue  # no deadline, or nothing that ran
        total += weight * (a - b if more else b - a) / max(abs(b), 1e-9)
    return total


class ReplayEnv(gymnasium.Env[Any, Any]):
    """One window of a trace at a time; `info["action_mask"]` and `action_masks()` say which slots hold a job.

    An observation is one vector: features of the jobs in hand slot by slot (`slurm_rl.JOB_FEATURES`), those of the pool
    (`slurm_rl.POOL_FEATURES`), the mask. `observation="dict"` gives `jobs`, `pool` and `action_mask` apart.
    `contention` is the share of windows drawn where jobs queue. `rewards` may be a function of the window's metrics and
    the baseline's.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012  (gymnasium declares it so)

    def __init__(
        self,
        trace: str | Path | Trace,
        cluster: str | Path | Cluster | None = None,
        *,
        jobs: int = 256,
        warm_up: int = 256,
        window: int = 128,
        backfill: str = "easy",
        placement: str = "best-fit",
        baseline: str = "fcfs",
        rewards: Rewards | None = None,
        train_share: float = 0.6,
        contention: float = 1.0,
        observation: str = "flat",
        render_mode: str | None = None,
        defer: int = 0,
        defer_seconds: float = 3600.0,
    ) -> None:
        if defer < 0 or defer_seconds < max(defer, 1):
            raise InputError(f"must be 0 or more, with a second for each, got {defer}", field="defer")
        if defer and (placement == "mip" or backfill not in ("none", "firstfit", "easy")):
            raise InputError("needs backfill none, firstfit or easy, and another placement than mip", field="defer")
        self._defer, self._defer_seconds = defer, defer_seconds
        self._deferred = np.zeros(0, dtype=np.int64)
        self._rewards: Rewards = rewards if callable(rewards) else dict(rewards or {"bsld": 1.0})
        if not callable(self._rewards):
            for name in self._rewards:
                if name not in SCORES:
                    raise unknown_name("reward", name, SCORES)
        if not 0.0 <= contention <= 1.0:
            raise InputError(f"must be between 0 and 1, got {contention:g}", field="contention")
        if observation not in ("flat", "dict"):
            raise unknown_name("observation", observation, ("flat", "dict"))
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise unknown_name("render_mode", str(render_mode), self.metadata["render_modes"])
        self.render_mode = render_mode
        self._contention, self._begins, self._flat = contention, np.zeros(0, dtype=np.int64), observation == "flat"
        self._trace, self._cluster = trace_and_cluster(trace, cluster)
        first, last = self._trace.span()
        early = np.flatnonzero(
            (self._trace.submit_time <= first + train_share * (last - first)) & (self._trace.run_time >= 0)
        )
        self._trace = self._trace.take(early).sorted()
        if len(self._trace) < jobs + 2:
            raise InputError(
                f"has {len(self._trace)} jobs in its training part, an episode needs {jobs}",
                file=self._trace.name,
                remedy="give a longer trace or fewer jobs",
            )
        self._jobs, self._warm_up = jobs, warm_up
        self._backfill, self._placement = backfill, placement
        self._baseline = parse_policy(baseline)
        self._hand = np.zeros(window, dtype=np.int64)
        self._count = self._picked = self._pool = 0
        self._observed = np.zeros((window, JOB_COUNT), dtype=np.float32)
        self._context = np.zeros(POOL_COUNT, dtype=np.float32)
        self._simulation: Simulation | None = None
        self._prepared: Prepared | None = None
        self._opening = 0
        actions = 2 * window if defer else window
        self.action_space = spaces.Discrete(actions)
        self.observation_space = spaces.Box(-BOUND, BOUND, (window * JOB_COUNT + POOL_COUNT + actions,), np.float32)
        if not self._flat:
            self.observation_space = spaces.Dict(
                {
                    "jobs": spaces.Box(-BOUND, BOUND, (window, JOB_COUNT), np.float32),
                    "pool": spaces.Box(-BOUND, BOUND, (POOL_COUNT,), np.float32),
                    "action_mask": spaces.MultiBinary(actions),
                }
            )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draws a window in which somebody has a choice; `options={"begin": N}` asks for the one from job N on."""
        super().reset(seed=seed)
        for _ in range(100):
            begin = (options or {}).get("begin")
            if begin is None:
                begin = self._any_begin(self.np_random)
            self._open(int(begin))
            if self._to_choice():
                return self._observation(), self._info()
            if (options or {}).get("begin") is not None:
                break
        raise self._nobody_waits()

    def _any_begin(self, dice: np.random.Generator) -> int:
        """Where a window begins: with the chance `contention` where jobs queue most, else anywhere."""
        if self._contention > 0.0 and dice.random() < self._contention:
            if not len(self._begins):
                self._begins = contended_begins(self._trace, self._cluster, self._jobs, self._backfill, self._placement)
            return int(self._begins[dice.integers(len(self._begins))])
        return int(dice.integers(0, len(self._trace) - self._jobs))

    def _nobody_waits(self) -> InputError:
        return InputError(
            "no window of the trace lets anybody choose: nobody waits, so there is nothing to learn",
            file=self._trace.name,
            remedy="a smaller cluster or more load",
        )

    def _open(self, begin: int) -> None:
        rows = np.arange(max(begin - self._warm_up, 0), begin + self._jobs)
        part = self._trace.take(rows)
        self._prepared = prepare(part, self._cluster)
        self._opening = int(self._trace.submit_time[begin])
        self._prepared.measured[:] = self._prepared.trace.submit_time >= self._opening
        self._simulation = self._simulate(PolicySpec("agent", GIVEN, BY_USER))
        world, jobs = self._simulation.world, len(self._prepared.trace)
        world["track_usage"] = 1
        world["features"] = np.zeros((max(jobs, len(self._hand)), JOB_COUNT), dtype=np.float32)
        world["context"] = np.zeros(POOL_COUNT, dtype=np.float32)
        world["live"]["score"] = -world["jobs"]["submit"].astype(float)
        if self._defer:
            world["hint_of"] = np.zeros(jobs, dtype=np.int64)
            self._deferred = np.zeros(jobs, dtype=np.int64)
        self._pool = len(world["pools"])

    def _simulate(self, policy: PolicySpec) -> Simulation:
        prepared = self._ready()[1]
        return Simulation(
            prepared.workload, prepared.trace.run_time, policy, backfill=self._backfill, placement=self._placement
        )

    def _ready(self) -> tuple[Simulation, Prepared]:
        if self._prepared is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        return self._simulation, self._prepared  # type: ignore[return-value]

    def _to_choice(self) -> bool:
        """Goes on to the next pool that has a choice; False at the end."""
        simulation, _ = self._ready()
        record, pools = simulation.world.record, len(simulation.world["pools"])
        while True:
            while self._pool < pools:
                self._count = int(_deal(record, self._pool, self._hand)) if simulation.now >= self._opening else 0
                if self._count:
                    self._picked = 0
                    return True
                self._pool += 1
            if simulation.pass_due:
                simulation.finish_pass()
            if not simulation.to_next_pass():
                return False
            self._pool = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Puts the job in slot `action` next, or, from the window's size on, leaves one for later.

        An action that the mask does not allow counts as the first slot.
        """
        simulation, _ = self._ready()
        record = simulation.world.record
        at = int(action)
        at = at if 0 <= at < self.action_space.n and self.action_masks()[at] else 0  # type: ignore[attr-defined]
        if at >= len(self._hand):
            at -= len(self._hand)
            j = int(self._hand[at])
            self._deferred[j] += 1
            self._count = int(_not_now(record, self._hand, self._count, at, self._until(j)))
        else:
            self._picked += 1
            self._count = int(_pick(record, self._hand, self._count, at, self._picked))
        if self._count == 0:
            self._pool += 1
            if not self._to_choice():
                self._count = 0
                reward, info = self._reward()
                return self._observation(), reward, True, False, info
        return self._observation(), 0.0, False, False, self._info()

    def action_masks(self) -> Array:
        """Which actions name a job, and which of these may be deferred."""
        mask = np.arange(len(self._hand)) < self._count
        if not self._defer:
            return mask
        later = np.zeros(len(mask), dtype=bool)
        for i in range(self._count):
            j = int(self._hand[i])
            later[i] = self._deferred[j] < self._defer and self._until(j) > self._ready()[0].now
        return np.concatenate([mask, later])

    def _until(self, j: int) -> int:
        """When a job that is deferred now comes back."""
        simulation, _ = self._ready()
        bound = int(simulation.world["jobs"]["submit"][j]) + int(self._defer_seconds)
        return min(simulation.now + int(self._defer_seconds / self._defer), bound)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks(), "now": self._ready()[0].now}

    def _observation(self) -> Any:
        simulation, _ = self._ready()
        if self._count:
            _see(simulation.world.record, float(simulation.now), self._hand, self._count, self._observed, self._context)
        mask = self.action_masks()
        if self._flat:
            return np.concatenate([self._observed.ravel(), self._context, mask], dtype=np.float32)
        return {"jobs": self._observed.copy(), "pool": self._context.copy(), "action_mask": mask.astype(np.int8)}

    def render(self) -> Any:
        """The machine's occupancy and the queue: text (`ansi`) or a picture (`rgb_array`)."""
        if self.render_mode is None:
            return None
        simulation, prepared = self._ready()
        hand = self._hand[: self._count]
        return as_text(simulation, prepared, hand) if self.render_mode == "ansi" else as_picture(simulation, hand)

    def _reward(self) -> tuple[float, dict[str, Any]]:
        """What the window's schedule is better by than the baseline's, in shares of it, weighted."""
        simulation, prepared = self._ready()
        mine = metrics(result_of(simulation, prepared.trace, prepared.measured))
        other = self._simulate(self._baseline)
        other.run()
        theirs = metrics(result_of(other, prepared.trace, prepared.measured))
        total = gain(self._rewards, mine, theirs)
        return total, {"action_mask": self.action_masks(), "now": simulation.now, "metrics": mine, "baseline": theirs}
