"""A start for learning: the linear path is the heuristic sjf-age, and the rest learns what its estimate misses.

The teacher knows the true run times of a scene's jobs, the network sees only the features: it learns to expect, from
who asks for what and what their other jobs are doing, how far the estimate will be off.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from slurm_rl.domain.arrays import Array
from slurm_rl.policy.features import JOB_COUNT, JOB_FEATURES, POOL_COUNT
from slurm_rl.train.module import QueueNet
from slurm_rl.train.rollout import Episode
from slurm_rl.train.scenes import Scene

_ESTIMATE, _AGE_RATIO = JOB_FEATURES.index("estimate"), JOB_FEATURES.index("age_ratio")
_ROWS = 6000  # of each episode


def set_scales(net: QueueNet, episodes: Sequence[Episode]) -> None:
    """Standardises the features over what was seen in some episodes."""
    rows = np.concatenate([e.tape[:: max(len(e.tape) // 5000, 1)] for e in episodes])
    net.normalise(rows[:, :JOB_COUNT], rows[:, JOB_COUNT : JOB_COUNT + POOL_COUNT])


def be_heuristic(net: QueueNet) -> None:
    """Makes the linear path -log(estimate) + log(1 + wait / estimate), up to a constant: sjf-age."""
    with torch.no_grad():
        net.skip.zero_()
        net.skip[_ESTIMATE] = -1.0 / max(float(net.job_scale[_ESTIMATE]), 1e-6)
        net.skip[_AGE_RATIO] = 1.0 / max(float(net.job_scale[_AGE_RATIO]), 1e-6)


def learn_run_times(
    net: QueueNet, episodes: Sequence[Episode], scenes: Sequence[Scene], *, epochs: int = 12, seed: int = 0
) -> tuple[float, float]:
    """Fits the nonlinear path to what the estimates miss; the mean (Huber) errors without and with it."""
    rows, missed = _examples(episodes, scenes, seed)
    jobs = torch.from_numpy(rows[:, :JOB_COUNT].copy()).unsqueeze(1)
    pool = torch.from_numpy(rows[:, JOB_COUNT : JOB_COUNT + POOL_COUNT].copy())
    target = torch.from_numpy(missed.astype(np.float32))
    alone = torch.ones((len(jobs), 1), dtype=torch.bool)
    linear = net.skip.detach().clone()
    with torch.no_grad():
        net.skip.zero_()
    learning = [p for name, p in net.named_parameters() if name != "skip" and not name.startswith("value")]
    optimiser = torch.optim.AdamW(learning, lr=2e-3, weight_decay=1e-3)
    dice = torch.Generator().manual_seed(seed)
    error = 0.0
    for _ in range(epochs):
        errors = []
        for part in torch.split(torch.randperm(len(jobs), generator=dice), 1024):
            scores, _ = net(jobs[part], pool[part], alone[part])
            loss = torch.nn.functional.huber_loss(-scores[:, 0], target[part])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            errors.append(loss.item())
        error = float(np.mean(errors))
    with torch.no_grad():
        net.skip.copy_(linear)
    return torch.nn.functional.huber_loss(torch.zeros_like(target), target).item(), error


def _examples(episodes: Sequence[Episode], scenes: Sequence[Scene], seed: int) -> tuple[Array, Array]:
    """Rows of features, and by how much the logarithm of the true run time exceeds that of the estimate."""
    dice = np.random.default_rng([seed, 13])
    rows, missed = [], []
    for episode, scene in zip(episodes, scenes, strict=True):
        picked = episode.tape[dice.permutation(len(episode.tape))[:_ROWS]]
        trace = scene.prepared.trace
        run = np.log(np.maximum(np.minimum(trace.run_time, trace.time_limit), 1.0))
        job = picked[:, JOB_COUNT + POOL_COUNT].astype(np.int64)
        rows.append(picked)
        missed.append(run[job] - picked[:, _ESTIMATE])
    return np.concatenate(rows), np.concatenate(missed)
