"""The fast vector form of the environment: one call steps all windows, in compiled code and in several threads.

`gymnasium.make_vec("slurm_rl/Replay-v0", num_envs=64, trace=…)` makes one. Windows, observations and rewards are those
of `ReplayEnv` for the same seeds and actions. A window that has ended is followed by another one at the next step,
whose action for it is ignored (gymnasium's NEXT_STEP).
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from slurm_rl.errors import InputError
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import NEVER, Array
from slurm_rl.kernel.jit import kernel
from slurm_rl.kernel.tables import WORLD
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT, observe
from slurm_rl_sim.engine import BEFORE_PASS, GROW, advance
from slurm_rl_sim.env import SCORES, ReplayEnv, _deal, _not_now, _pick, gain
from slurm_rl_sim.metrics import METRICS, some_metrics
from slurm_rl_sim.replay import Prepared
from slurm_rl_sim.result import result_of
from slurm_rl_sim.simulation import Simulation

# What a window waits for: an action, another window, more rows for its profile, a plan of where jobs go.
CHOICE, ENDED, CRAMPED, UNPLANNED = range(4)
# Tables that nobody changes once a window is open: its copies share them.
_CONSTANT = frozenset(
    "jobs kind_ptr kind_node class_ptr class_list speed work events partition_factor qos_factor net "
    "features context".split()  # these two lie in the observations
)


@kernel
def _go(
    records: Array,
    first: int,
    last: int,
    action: Array,
    status: Array,
    count: Array,
    picked: Array,
    pool: Array,
    opening: Array,
    hand: Array,
    jobs: Array,
    mask: Array,
    planned: Array,
    deferred: Array,
    defer: int,
    defer_seconds: float,
) -> None:
    """Makes the picks of windows `first` … `last` - 1 and goes on to their next choice; action -1: no pick.

    The tables of features lie in the observations: what is seen is there without a copy.
    """
    slots = hand.shape[1]
    for i in range(first, last):
        world = records[i : i + 1]
        if status[i] == ENDED:
            continue
        if action[i] >= 0:
            at = action[i] if action[i] < mask.shape[1] and mask[i, action[i]] else 0
            if at < slots:
                picked[i] += 1
                count[i] = _pick(world, hand[i], count[i], at, picked[i])
            else:
                j = hand[i, at - slots]
                deferred[i, j] += 1
                count[i] = _not_now(world, hand[i], count[i], at - slots, _until(world[0], j, defer, defer_seconds))
            if count[i] == 0:
                pool[i] += 1
        if count[i] == 0:
            status[i] = _to_choice(world, i, count, pool, opening[i], hand[i], planned)
            if status[i] == CHOICE:
                picked[i] = 0
            elif status[i] != ENDED:
                continue  # the mask still says which rows of the observation are to be cleared
        if status[i] == CHOICE:
            observe(world[0], float(world[0].clock), hand[i], count[i])
            for k in range(count[i], slots):
                if mask[i, k] == 0:
                    break
                for f in range(JOB_COUNT):
                    jobs[i, k, f] = np.float32(0.0)
        for k in range(slots):
            mask[i, k] = k < count[i]
        for k in range(slots, mask.shape[1]):
            j = hand[i, k - slots]
            mask[i, k] = k - slots < count[i] and deferred[i, j] < defer
            if mask[i, k]:
                mask[i, k] = _until(world[0], j, defer, defer_seconds) > world[0].clock


@kernel
def _until(w: Any, j: int, defer: int, seconds: float) -> int:
    """When a job that is deferred now comes back: as ReplayEnv has it."""
    return min(w.clock + int(seconds / defer), t.jobs(w).submit[j] + int(seconds))


@kernel
def _to_choice(world: Array, i: int, count: Array, pool: Array, opening: int, hand: Array, planned: Array) -> int:
    """Goes on to the next pool that has a choice, as ReplayEnv does."""
    w = world[0]
    pools = len(t.pools(w))
    while True:
        while pool[i] < pools:
            count[i] = _deal(world, pool[i], hand) if w.clock >= opening else 0
            if count[i] > 0:
                return CHOICE
            pool[i] += 1
        if w.pass_due:
            if w.planned and not planned[i]:
                return UNPLANNED
            if advance(world, w.clock, False) == GROW:
                return CRAMPED
            planned[i] = 0
        if advance(world, NEVER - 1, True) != BEFORE_PASS:
            return ENDED
        pool[i] = 0


@dataclass(slots=True)
class Window:
    """A window at its first choice, and what the baseline makes of it."""

    simulation: Simulation
    prepared: Prepared
    opening: int
    hand: Array
    count: int
    pool: int
    baseline: dict[str, Any] = field(default_factory=dict)  # shared by all copies

    def copy(self) -> Window:
        """Another one to play, from the same moment on."""
        simulation = copy.copy(self.simulation)
        simulation.world = self.simulation.world.fork(_CONSTANT)
        return Window(simulation, self.prepared, self.opening, self.hand, self.count, self.pool, self.baseline)


def _help(simulation: Simulation, status: int) -> int:
    """What compiled code cannot do for itself; 1 if that was a plan for the pass that is due."""
    if status == CRAMPED:
        simulation._more_rows()
    elif status == UNPLANNED and simulation.planner is not None:
        simulation._plan(simulation.planner)
        return 1
    return 0


class ReplayVectorEnv(VectorEnv[Any, Array, Array]):
    """Many windows of a trace at a time; `infos["action_mask"]` says which slots of each hold a job.

    `windows=N` draws N windows once and plays them over and over, which saves preparing each: a reset is then a copy.
    None draws each anew, as `ReplayEnv` does. `infos["metrics"]` has the rewarded metrics of windows that have ended.
    The other options are those of `ReplayEnv`.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  (gymnasium declares it so)

    def __init__(
        self, num_envs: int = 1, *, windows: int | None = None, threads: int | None = None, **options: Any
    ) -> None:
        if num_envs < 1 or (windows is not None and windows < 1):
            raise InputError("num_envs and windows must be at least 1")
        self._one = one = ReplayEnv(**options)
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = one.observation_space, one.action_space
        self.observation_space = batch_space(one.observation_space, num_envs)
        self.action_space = batch_space(one.action_space, num_envs)
        slots, features, actions = len(one._hand), JOB_COUNT, int(one.action_space.n)  # type: ignore[attr-defined]
        self._records = np.zeros(num_envs, dtype=WORLD)
        self._worlds: list[Window | None] = [None] * num_envs
        self._dice: list[np.random.Generator] = [np_random(None)[0] for _ in range(num_envs)]
        self._bank: list[Window] = []
        self._wanted = windows
        self._status, self._count, self._picked, self._pool, self._opening = np.zeros((5, num_envs), dtype=np.int64)
        self._hand = np.zeros((num_envs, slots), dtype=np.int64)
        self._jobs = np.zeros((num_envs, slots, features), dtype=np.float32)
        self._context = np.zeros((num_envs, POOL_COUNT), dtype=np.float32)
        self._mask = np.zeros((num_envs, actions), dtype=np.int8)
        self._planned = np.zeros(num_envs, dtype=np.int64)
        most = one._jobs + one._warm_up if one._defer else 0
        self._deferred = np.zeros((num_envs, most), dtype=np.int64)  # how often each job of a window was deferred
        self._ended = np.zeros(num_envs, dtype=bool)
        parts = min(threads or os.cpu_count() or 1, num_envs)
        cuts = np.linspace(0, num_envs, parts + 1).astype(int).tolist()
        self._parts = list(itertools.pairwise(cuts))
        self._threads = ThreadPoolExecutor(parts - 1) if parts > 1 else None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Opens a window in every slot; slot i draws its windows from `seed` + i."""
        if isinstance(seed, int):
            self._dice = [np_random(seed + i)[0] for i in range(self.num_envs)]
        elif seed is not None:
            self._dice = [np_random(s)[0] if s is not None else d for s, d in zip(seed, self._dice, strict=True)]
        if self._wanted is not None and (seed is not None or not self._bank):
            self._bank = [self._draw(self._dice[k % self.num_envs]) for k in range(self._wanted)]
        for i in range(self.num_envs):
            self._enter(i)
        self._ended[:] = False
        self._run(np.full(self.num_envs, -1, dtype=np.int64))
        return self._seen(), self._info()

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Puts a job next in every window, or leaves one for later; what the mask does not allow counts as slot 0."""
        if self._worlds[0] is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        action = np.array(actions, dtype=np.int64)
        action[action < 0] = 0
        for i in np.flatnonzero(self._ended).tolist():
            self._enter(i)
            action[i] = -1
        self._run(action)
        self._ended = self._status == ENDED
        reward, infos = np.zeros(self.num_envs), self._info()
        for i in np.flatnonzero(self._ended).tolist():
            reward[i], figures = self._reward(i)
            infos = self._add_info(infos, figures, i)
        return self._seen(), reward, self._ended.copy(), np.zeros(self.num_envs, dtype=bool), infos

    def close_extras(self, **kwargs: Any) -> None:
        if self._threads is not None:
            self._threads.shutdown()

    def _run(self, action: Array) -> None:
        """All windows to their next choice, each thread its share."""
        calls = [(first, last, action) for first, last in self._parts]
        while calls:
            if self._threads is None or len(calls) == 1:
                for call in calls:
                    self._part(*call)
            else:
                others = [self._threads.submit(self._part, *call) for call in calls[1:]]
                self._part(*calls[0])
                for other in others:
                    other.result()
            calls = []
            for i in np.flatnonzero((self._status == CRAMPED) | (self._status == UNPLANNED)).tolist():
                self._planned[i] |= _help(self._window(i).simulation, int(self._status[i]))
                calls.append((i, i + 1, np.full(self.num_envs, -1, dtype=np.int64)))

    def _part(self, first: int, last: int, action: Array) -> None:
        _go(
            self._records,
            first,
            last,
            action,
            self._status,
            self._count,
            self._picked,
            self._pool,
            self._opening,
            self._hand,
            self._jobs,
            self._mask,
            self._planned,
            self._deferred,
            self._one._defer,
            self._one._defer_seconds,
        )

    def _window(self, i: int) -> Window:
        window = self._worlds[i]
        if window is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        return window

    def _enter(self, i: int) -> None:
        """A window for slot i: a copy of one that is kept, or a new one."""
        dice = self._dice[i]
        window = self._bank[int(dice.integers(len(self._bank)))].copy() if self._bank else self._draw(dice)
        world = window.simulation.world
        self._records[i] = world.record[0]
        world.record = self._records[i : i + 1]
        world["features"], world["context"] = self._jobs[i], self._context[i]
        self._jobs[i] = self._mask[i] = self._planned[i] = self._deferred[i] = 0
        self._worlds[i] = window
        self._status[i], self._picked[i], self._opening[i] = CHOICE, 0, window.opening
        self._count[i], self._pool[i], self._hand[i] = window.count, window.pool, window.hand

    def _draw(self, dice: np.random.Generator) -> Window:
        """A window in which somebody has a choice, as ReplayEnv draws it."""
        one, hand = self._one, np.zeros(self._hand.shape[1], dtype=np.int64)
        count, pool, planned = np.zeros((3, 1), dtype=np.int64)
        for _ in range(100):
            one._open(one._any_begin(dice))
            simulation, prepared = one._ready()
            count[0], pool[0], planned[0], status = 0, one._pool, 0, -1
            while status not in (CHOICE, ENDED):
                status = int(_to_choice(simulation.world.record, 0, count, pool, one._opening, hand, planned))
                planned[0] |= _help(simulation, status)
            if status == CHOICE:
                return Window(simulation, prepared, one._opening, hand, int(count[0]), int(pool[0]))
        raise one._nobody_waits()

    def _reward(self, i: int) -> tuple[float, dict[str, Any]]:
        window = self._window(i)
        simulation, prepared = window.simulation, window.prepared
        rewards = self._one._rewards
        every = callable(rewards)  # a caller may look at any metric
        names = [m.name for m in METRICS] if every else [SCORES[name][0] for name in rewards]  # type: ignore[union-attr]
        mine = some_metrics(result_of(simulation, prepared.trace, prepared.measured), names)
        if not window.baseline:
            self._one._prepared = prepared
            other = self._one._simulate(self._one._baseline)
            other.run()
            window.baseline |= some_metrics(result_of(other, prepared.trace, prepared.measured), names)
        return gain(self._one._rewards, mine, window.baseline), {"metrics": mine, "baseline": window.baseline}

    def _seen(self) -> Any:
        if self._one._flat:
            return np.concatenate(
                [self._jobs.reshape(self.num_envs, -1), self._context, self._mask], axis=1, dtype=np.float32
            )
        return {"jobs": self._jobs.copy(), "pool": self._context.copy(), "action_mask": self._mask.copy()}

    def _info(self) -> dict[str, Any]:
        there = np.ones(self.num_envs, dtype=bool)
        clock = self._records["clock"].astype(np.int64)
        return {"action_mask": self._mask == 1, "_action_mask": there, "now": clock, "_now": there}
