"""What the algorithms share: turns of an episode as padded tensors, chances of orders, returns, a checked step."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT
from slurm_rl.train.rollout import Episode, padded_queues
from slurm_rl.train.settings import TrainingStopped

GRADIENT = 0.5  # the norm to which gradients are cut


def order_log_probability(scores: Tensor, mask: Tensor, lead: Tensor, picks: Tensor) -> Tensor:
    """Log probability [batch] of drawing the first `picks` positions of `lead`, one after the other."""
    left = scores.masked_fill(~mask, -math.inf)
    total = torch.zeros(len(scores))
    for k in range(int(picks.max())):
        counts = k < picks
        chosen = lead[:, k].clamp(min=0).unsqueeze(1)
        step = left.gather(1, chosen).squeeze(1) - torch.logsumexp(left, dim=1)
        total = total + torch.where(counts, step, 0.0)
        # Whoever was chosen is gone; a row without further choices keeps one to stay finite.
        gone = torch.zeros_like(mask).scatter(1, chosen, counts.unsqueeze(1) & (k + 1 < picks).unsqueeze(1))
        left = left.masked_fill(gone, -math.inf)
    return total


def first_entropy(scores: Tensor, mask: Tensor) -> Tensor:
    """Entropy [batch] of the first pick."""
    chances = torch.log_softmax(scores.masked_fill(~mask, -1e9), dim=1)
    return -(chances.exp() * chances).sum(dim=1)


def advantages(
    reward: Array, value: Array, after: Array, elapsed: Array, *, horizon: float, smoothing: float
) -> tuple[Array, Array]:
    """Generalised advantage estimates, and returns; turns of a pool follow each other through `after`."""
    advantage = np.zeros(len(reward))
    for k in range(len(reward) - 1, -1, -1):
        n = after[k]
        keep = math.exp(-elapsed[k] / horizon) if n >= 0 else 0.0
        delta = reward[k] + (keep * value[n] if n >= 0 else 0.0) - value[k]
        advantage[k] = delta + (keep * smoothing * advantage[n] if n >= 0 else 0.0)
    if not np.isfinite(advantage).all():
        raise TrainingStopped("rewards or values are not finite: the scene's costs overflowed")
    return advantage, advantage + value


def standardised(advantage: Array) -> Array:
    """Mean 0 and deviation 1 over an episode, outliers cut."""
    found: Array = np.clip((advantage - advantage.mean()) / max(float(advantage.std()), 1e-8), -5.0, 5.0)
    return found


def padded(episode: Episode, chosen: Array) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Jobs, pool, mask, lead and picks of some turns of an episode."""
    turns = episode.turns[chosen]
    _, mask, jobs = padded_queues(episode.tape, turns["first"], turns["count"])
    pool = episode.tape[turns["first"], JOB_COUNT : JOB_COUNT + POOL_COUNT]
    return (
        torch.from_numpy(jobs),
        torch.from_numpy(pool),
        torch.from_numpy(mask),
        torch.from_numpy(turns["lead"].copy()),
        torch.from_numpy(episode.picks[chosen]),
    )


def by_length(episode: Episode, rows: int, longest: int) -> Iterator[Array]:
    """Turns in groups of similar queue length, about `rows` rows each."""
    count = episode.turns["count"]
    order = np.argsort(count, kind="stable")
    order = order[count[order] <= longest]
    at = 0
    while at < len(order):
        size = max(1, rows // int(count[order[min(at + rows // max(int(count[order[at]]), 1), len(order)) - 1]]))
        yield order[at : at + size]
        at += size


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> float:
    """One step down a loss; NaN stops the training."""
    if not bool(torch.isfinite(loss)):
        raise TrainingStopped("the loss is not finite: a batch holds NaN, or the step is too large")
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_([p for group in optimiser.param_groups for p in group["params"]], GRADIENT)
    optimiser.step()
    return float(loss.item())
