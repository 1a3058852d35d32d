"""Agents of stable-baselines3 and TorchRL, trained on the environment, as policies.

An agent sees the oldest `window` jobs of a queue, as in the environment. Its preferences (logits, or values of actions)
order them; jobs beyond the window follow in the order of submission.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT
from slurm_rl.policy.queue import Queue

Preferences = Callable[[Queue], Array]


def seen(queue: Queue, window: int) -> dict[str, Array]:
    """The observation of the environment: `jobs`, `pool` and `action_mask`."""
    count = min(len(queue), window)
    jobs = np.zeros((window, JOB_COUNT), dtype=np.float32)
    jobs[:count] = queue.features[:count]
    return {"jobs": jobs, "pool": queue.pool, "action_mask": (np.arange(window) < count).astype(np.int8)}


def flat(observed: Mapping[str, Array]) -> Array:
    """The same as one vector: jobs row by row, then the pool, then the mask."""
    parts = (observed["jobs"].ravel(), observed["pool"], observed["action_mask"])
    return np.concatenate(parts).astype(np.float32, copy=False)


def window_of(length: int) -> int:
    """The window of an agent that sees a vector of that length."""
    window, rest = divmod(length - POOL_COUNT, JOB_COUNT + 1)
    if window < 1 or rest:
        raise InputError(
            f"an observation of {length} values is none of the environment's",
            remedy=f"window × {JOB_COUNT + 1} + {POOL_COUNT} values, as slurm_rl/Replay-v0 gives them",
        )
    return window


def extended(preferences: Array, jobs: int) -> Array:
    """Scores for all jobs: those in the window by preference, the others behind them by submission."""
    scores = np.empty(jobs)
    inside = min(len(preferences), jobs)
    scores[:inside] = preferences[:inside]
    lowest = float(scores[:inside].min())
    scores[inside:] = lowest - 1.0 - np.arange(jobs - inside)
    return scores


def from_sb3(model: Any) -> Preferences:
    """An agent of stable-baselines3 or sb3-contrib (PPO, MaskablePPO, A2C, DQN, …) as a policy."""
    import torch

    space = model.observation_space
    as_dict = hasattr(space, "spaces")
    window = int(space["jobs"].shape[0]) if as_dict else window_of(int(space.shape[0]))

    def preferences(queue: Queue) -> Array:
        observed = seen(queue, window)
        tensors, _ = model.policy.obs_to_tensor(observed if as_dict else flat(observed))
        with torch.no_grad():
            if hasattr(model.policy, "q_net"):
                values = model.policy.q_net(tensors)
            else:
                values = model.policy.get_distribution(tensors).distribution.logits
        return extended(values[0, :window].cpu().numpy().astype(float), len(queue))

    return preferences


def from_torch(module: Any, window: int) -> Preferences:
    """A torch module as a policy: of (jobs, pool, mask) with a batch of one, or of TorchRL's tensordicts."""
    import torch

    keys = [str(k) for k in getattr(module, "in_keys", ())]

    def preferences(queue: Queue) -> Array:
        observed = seen(queue, window)
        named = {k: torch.as_tensor(v)[None] for k, v in observed.items()}
        with torch.no_grad():
            if not keys:
                values = module(named["jobs"], named["pool"], named["action_mask"])
            else:
                from tensordict import TensorDict

                named["observation"] = torch.as_tensor(flat(observed))[None]
                named["action_mask"] = named["action_mask"].bool()
                out = module(TensorDict(named, batch_size=[1]))
                values = next((out[k] for k in ("logits", "action_value", "scores") if k in out.keys()), None)  # noqa: SIM118
                if values is None:
                    raise KeyError("its output has neither logits nor action_value nor scores")
        return extended(values[0, :window].cpu().numpy().astype(float), len(queue))

    return preferences
