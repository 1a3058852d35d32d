"""The fast vector form of the environment: one call steps all windows, in compiled code and in several threads.

`gymnasium.make_vec("slurm_rl/Replay-v0", num_envs=64, trace=…)` makes one. Windows, observations and rewards are those
of `ReplayEnv` for the same seeds and actions. A window that has ended is followed by another one at the next step,
whose action for it is ignored (gymnasium's NEXT_STEP).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.tables import WORLD
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT
from slurm_rl_sim.env import ReplayEnv
from slurm_rl_sim.picking import CHOICE, CRAMPED, ENDED, UNPLANNED, go
from slurm_rl_sim.progress import Progress
from slurm_rl_sim.windows import Window

_PARTS = 4  # that each thread takes on average in a step


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
        self._windows = one.windows
        self._windows.told = one.windows.payment.metrics
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = one.observation_space, one.action_space
        self.observation_space = batch_space(one.observation_space, num_envs)
        self.action_space = batch_space(one.action_space, num_envs)
        actions = int(one.action_space.n)  # type: ignore[attr-defined]
        self._records = np.zeros(num_envs, dtype=WORLD)
        self._played: list[Window | None] = [None] * num_envs
        self._progress: list[Progress | None] = [None] * num_envs
        self._dice: list[np.random.Generator] = [np_random(None)[0] for _ in range(num_envs)]
        self._bank: list[Window] = []
        self._wanted = windows
        self._status, self._count, self._picked, self._pool, self._opening = np.zeros((5, num_envs), dtype=np.int64)
        self._hand = np.zeros((num_envs, one.slots), dtype=np.int64)
        self._jobs = np.zeros((num_envs, one.slots, JOB_COUNT), dtype=np.float32)
        self._context = np.zeros((num_envs, POOL_COUNT), dtype=np.float32)
        self._mask = np.zeros((num_envs, actions), dtype=np.int8)
        self._width = one.slots * JOB_COUNT + POOL_COUNT + actions if one.flat else 0  # of what is seen as a vector
        self._flat = np.zeros((num_envs, self._width), dtype=np.float32)
        self._planned = np.zeros(num_envs, dtype=np.int64)
        most = one.windows.longest if one.defer else 0
        self._deferred = np.zeros((num_envs, most), dtype=np.int64)  # how often each job of a window was deferred
        self._ended = np.zeros(num_envs, dtype=bool)
        workers = min(threads or os.cpu_count() or 1, num_envs)
        parts = min(_PARTS * workers, num_envs) if workers > 1 else 1  # windows differ in what they take
        cuts = np.linspace(0, num_envs, parts + 1).astype(int).tolist()
        self._parts = list(itertools.pairwise(cuts))
        self._threads = [ThreadPoolExecutor(1) for _ in range(workers - 1)]
        # New windows are made while the others are played: one ahead for each slot.
        self._ahead: list[Future[Window] | None] = [None] * num_envs
        spare = workers > 1 and windows is None and not one.windows.planned
        self._maker = ThreadPoolExecutor(1) if spare else None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Opens a window in every slot; slot i draws its windows from `seed` + i."""
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed or [None] * self.num_envs
        for i, own in enumerate(seeds):
            if own is not None:
                self._dice[i], self._ahead[i] = np_random(own)[0], None
        if self._wanted is not None and (seed is not None or not self._bank):
            self._bank = [self._windows.draw(self._dice[k % self.num_envs]) for k in range(self._wanted)]
        for i in range(self.num_envs):
            self._enter(i)
        self._ended[:] = False
        self._run(np.full(self.num_envs, -1, dtype=np.int64))
        return self._seen(), self._info()

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Puts a job next in every window, or leaves one for later; what the mask does not allow counts as slot 0."""
        if self._played[0] is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        action = np.array(actions, dtype=np.int64)
        action[action < 0] = 0
        fresh = self._ended
        for i in np.flatnonzero(fresh).tolist():
            self._enter(i)
            action[i] = -1
        self._run(action)
        self._ended = self._status == ENDED
        reward, infos = np.zeros(self.num_envs), self._info()
        for i in np.flatnonzero(self._ended).tolist():
            reward[i], figures = self._windows.reward(self._window(i))
            infos = self._add_info(infos, figures, i)
        if self._one.stepwise:
            self._pay_steps(reward, fresh)
        return self._seen(), reward, self._ended.copy(), np.zeros(self.num_envs, dtype=bool), infos

    def _pay_steps(self, reward: Array, fresh: Array) -> None:
        """Each window's part of its reward; one that has just been entered gets nothing."""
        for i, progress in enumerate(self._progress):
            if progress is not None and not fresh[i]:
                reward[i] = progress.last(reward[i]) if self._ended[i] else progress.step()

    def close_extras(self, **kwargs: Any) -> None:
        for pool in (*self._threads, self._maker):
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def _run(self, action: Array) -> None:
        """All windows to their next choice, each thread its share."""
        self._flat = np.empty((self.num_envs, self._width), dtype=np.float32)
        calls = [(first, last, action) for first, last in self._parts]
        while calls:
            shared = iter(calls)
            others = [thread.submit(self._work, shared) for thread in self._threads[: len(calls) - 1]]
            self._work(shared)
            for other in others:
                other.result()
            calls = []
            for i in np.flatnonzero((self._status == CRAMPED) | (self._status == UNPLANNED)).tolist():
                self._planned[i] |= self._window(i).help(int(self._status[i]))
                calls.append((i, i + 1, np.full(self.num_envs, -1, dtype=np.int64)))

    def _work(self, calls: Iterator[tuple[int, int, Array]]) -> None:
        """Takes parts as long as there are any: several threads share one list."""
        for call in calls:
            self._part(*call)

    def _part(self, first: int, last: int, action: Array) -> None:
        go(
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
            self._context,
            self._mask,
            self._flat,
            self._planned,
            self._deferred,
            self._one.defer,
            self._one.defer_seconds,
        )

    def _window(self, i: int) -> Window:
        window = self._played[i]
        if window is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        return window

    def _enter(self, i: int) -> None:
        """A window for slot i: a copy of one that is kept, or a new one."""
        window = self._next(i)
        world = window.simulation.world
        self._records[i] = world.record[0]
        world.record = self._records[i : i + 1]
        world["features"], world["context"] = self._jobs[i], self._context[i]
        self._jobs[i] = self._mask[i] = self._planned[i] = self._deferred[i] = 0
        self._played[i] = window
        self._progress[i] = self._windows.follow(window) if self._one.stepwise else None
        self._status[i], self._picked[i], self._opening[i] = CHOICE, 0, window.opening
        self._count[i], self._pool[i], self._hand[i] = window.count[0], window.pool[0], window.hand

    def _next(self, i: int) -> Window:
        """Slot i's next window: one of those that are kept, or a new one."""
        dice, made = self._dice[i], self._ahead[i]
        if self._bank:
            return self._bank[int(dice.integers(len(self._bank)))].copy()
        window = self._windows.draw(dice) if made is None else made.result()
        if self._maker is not None:
            self._ahead[i] = self._maker.submit(self._make, dice)
        return window

    def _make(self, dice: np.random.Generator) -> Window:
        window = self._windows.draw(dice)
        self._windows.run_baseline(window)
        return window

    def _seen(self) -> Any:
        if self._width:
            return self._flat
        return {"jobs": self._jobs.copy(), "pool": self._context.copy(), "action_mask": self._mask.copy()}

    def _info(self) -> dict[str, Any]:
        there = np.ones(self.num_envs, dtype=bool)
        clock = self._records["clock"].astype(np.int64)
        return {"action_mask": self._mask == 1, "_action_mask": there, "now": clock, "_now": there}
