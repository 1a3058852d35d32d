"""A gymnasium environment over the replay engine: the agent chooses the next waiting job.

`gymnasium.make("slurm_rl/Replay-v0", trace=…, cluster=…)` makes one. At each scheduling pass of a pool in which
something could start, the agent picks jobs one after the other. A job that fits is to start at once, and the next pick
follows; the first that does not fit is the head of the queue, and the backfill rule takes over. An episode is a window
of the trace's training part on a cluster that the jobs before it have filled.

With `defer=N` the agent may also say "not now" of a job, N times at most: it is out of the way, of backfill too, for an
N-th of `defer_seconds`, and never later than `defer_seconds` after its submission.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from slurm_rl.domain.cluster import Cluster
from slurm_rl.errors import InputError, unknown_name
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.picking import not_now, pick, see
from slurm_rl_sim.progress import Progress, check_stepwise
from slurm_rl_sim.render import as_picture, as_text
from slurm_rl_sim.rewards import Payment, Rewards
from slurm_rl_sim.windows import Window, WindowSource

# Features are logarithms of seconds and counts, shares, and ratios of logarithms: none can leave these bounds.
BOUND = 64.0


class ReplayEnv(gymnasium.Env[Any, Any]):
    """One window of a trace at a time; `info["action_mask"]` and `action_masks()` say which slots hold a job.

    An observation is one vector: features of the jobs in hand slot by slot (`slurm_rl.JOB_FEATURES`), those of the pool
    (`slurm_rl.POOL_FEATURES`), the mask. `observation="dict"` gives `jobs`, `pool` and `action_mask` apart.
    `warm_up` jobs before a window fill the cluster and the queue; `part="test"` draws windows from the time that
    training leaves out. `contention` is the share of windows drawn where jobs queue. `rewards` may be a function of the
    window's metrics and the baseline's. They come at a window's end, or, `stepwise`, in parts that add up to the same.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012  (gymnasium declares it so)

    def __init__(
        self,
        trace: str | Path | Trace,
        cluster: str | Path | Cluster | None = None,
        *,
        jobs: int = 256,
        warm_up: int = 1024,
        window: int = 128,
        backfill: str = "easy",
        placement: str = "best-fit",
        baseline: str = "fcfs",
        rewards: Rewards | None = None,
        reward_scale: str = "log",
        stepwise: bool = False,
        train_share: float = 0.6,
        part: str = "train",
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
        if observation not in ("flat", "dict"):
            raise unknown_name("observation", observation, ("flat", "dict"))
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise unknown_name("render_mode", str(render_mode), self.metadata["render_modes"])
        self.render_mode = render_mode
        self.windows = WindowSource(
            trace,
            cluster,
            jobs=jobs,
            warm_up=warm_up,
            slots=window,
            backfill=backfill,
            placement=placement,
            baseline=baseline,
            train_share=train_share,
            part=part,
            contention=contention,
            defers=defer > 0,
            payment=Payment(rewards, reward_scale),
        )
        self.stepwise = stepwise
        self._progress: Progress | None = None
        if stepwise:
            check_stepwise(self.windows.payment)
        self.slots, self.defer, self.defer_seconds = window, defer, defer_seconds
        self.flat = observation == "flat"
        self._window: Window | None = None
        self._picked = 0
        self._deferred = np.zeros(self.windows.longest if defer else 0, dtype=np.int64)
        self._slot_numbers = np.arange(window)
        actions = 2 * window if defer else window
        self._mask = np.zeros(actions, dtype=bool)
        self.action_space = spaces.Discrete(actions)
        self.observation_space = spaces.Box(-BOUND, BOUND, (window * JOB_COUNT + POOL_COUNT + actions,), np.float32)
        if not self.flat:
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
        begin = (options or {}).get("begin")
        window = self.windows.draw(self.np_random) if begin is None else self.windows.open(int(begin))
        if window is None:
            raise self.windows.nobody_waits()
        self._window, self._picked = window, 0
        self._deferred[:] = 0
        self._progress = self.windows.follow(window) if self.stepwise else None
        self._look()
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Puts the job in slot `action` next, or, from the window's size on, leaves one for later.

        An action that the mask does not allow counts as the first slot.
        """
        window = self._open_window()
        record, hand, count = window.simulation.world.record, window.hand, int(window.count[0])
        at = int(action)
        at = at if 0 <= at < len(self._mask) and self._mask[at] else 0
        if at >= self.slots:
            at -= self.slots
            j = int(hand[at])
            self._deferred[j] += 1
            count = int(not_now(record, hand, count, at, self._until(j)))
        else:
            self._picked += 1
            count = int(pick(record, hand, count, at, self._picked))
        window.count[0] = count
        if count == 0:
            window.pool[0] += 1
            self._picked = 0
            if not window.to_choice():
                self._mask = np.zeros_like(self._mask)
                window.simulation.world["features"][:] = 0.0  # nobody is in hand
                reward, figures = self.windows.reward(window)
                reward = self._progress.last(reward) if self._progress else reward
                return self._observation(), reward, True, False, self._info() | figures
        self._look()
        paid = self._progress.step() if self._progress else 0.0
        return self._observation(), paid, False, False, self._info()

    def action_masks(self) -> Array:
        """Which actions name a job, and which of these may be deferred."""
        return self._mask

    def _open_window(self) -> Window:
        if self._window is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        return self._window

    def _look(self) -> None:
        """Observes the jobs in hand, and says which actions there are."""
        window = self._open_window()
        count = int(window.count[0])
        see(window.simulation.world.record, window.hand, count)
        mask = self._slot_numbers < count
        if self.defer:
            later = np.zeros(len(mask), dtype=bool)
            for i, j in enumerate(window.hand[:count].tolist()):
                later[i] = self._deferred[j] < self.defer and self._until(j) > window.simulation.now
            mask = np.concatenate([mask, later])
        self._mask = mask

    def _until(self, j: int) -> int:
        """When a job that is deferred now comes back."""
        simulation = self._open_window().simulation
        bound = int(simulation.world["jobs"]["submit"][j]) + int(self.defer_seconds)
        return min(simulation.now + int(self.defer_seconds / self.defer), bound)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._mask, "now": self._open_window().simulation.now}

    def _observation(self) -> Any:
        world = self._open_window().simulation.world
        jobs, pool = world["features"], world["context"]
        if self.flat:
            return np.concatenate([jobs.ravel(), pool, self._mask], dtype=np.float32)
        return {"jobs": jobs.copy(), "pool": pool.copy(), "action_mask": self._mask.astype(np.int8)}

    def render(self) -> Any:
        """The machine's occupancy and the queue: text (`ansi`) or a picture (`rgb_array`)."""
        if self.render_mode is None:
            return None
        window = self._open_window()
        hand = window.hand[: int(window.count[0])]
        if self.render_mode == "ansi":
            return as_text(window.simulation, window.prepared, hand)
        return as_picture(window.simulation, hand)
