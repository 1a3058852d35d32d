"""Shared by policy gradients: turns of an episode as padded tensors, chances of orders, returns, a checked step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT
from slurm_rl.train.module import QueueNet
from slurm_rl.train.rollout import Episode, padded_queues
from slurm_rl.train.settings import TrainingStopped

GRADIENT = 0.5  # the norm to which gradients are cut


@dataclass(slots=True)
class Batch:
    """Turns of an episode, padded to a common queue length, as the network saw them when it played."""

    jobs: Tensor
    pool: Tensor
    mask: Tensor
    lead: Tensor
    picks: Tensor
    old: Tensor  # log probability of the order
    advantage: Tensor
    target: Tensor  # of the value, in units of the scale of returns


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


def played(
    net: QueueNet,
    episode: Episode,
    *,
    temperature: float,
    rows: int,
    longest: int,
    horizon: float,
    smoothing: float,
    scale: float,
) -> tuple[list[Batch], float]:
    """An episode's turns with advantages by the network's own values, and the scale of returns, brought up to date."""
    groups = list(by_length(episode, rows, longest))
    if not groups:
        return [], scale
    value, old = np.zeros(len(episode.turns)), np.zeros(len(episode.turns), dtype=np.float32)
    parts = []
    with torch.no_grad():
        for chosen in groups:
            jobs, pool, mask, lead, picks = padded(episode, chosen)
            scores, worth = net(jobs, pool, mask)
            value[chosen] = worth.numpy() * scale
            old[chosen] = order_log_probability(scores / temperature, mask, lead, picks).numpy()
            parts.append((chosen, jobs, pool, mask, lead, picks))
    advantage, target = advantages(
        episode.reward, value, episode.after, episode.elapsed, horizon=horizon, smoothing=smoothing
    )
    scale = 0.99 * scale + 0.01 * max(float(np.std(target)), 1e-6)
    advantage = standardised(advantage)
    batches = [
        Batch(
            jobs, pool, mask, lead, picks,
            torch.from_numpy(old[chosen]),
            torch.from_numpy(advantage[chosen].astype(np.float32)),
            torch.from_numpy((target[chosen] / scale).astype(np.float32)),
        )
        for chosen, jobs, pool, mask, lead, picks in parts
    ]  # fmt: skip
    return batches, scale


def told(episodes: Sequence[Episode]) -> dict[str, float]:
    """Figures of what was played, for the curve."""
    return {
        "turns": float(sum(len(e.turns) for e in episodes)),
        "reward": float(np.mean([e.reward.sum() for e in episodes])),
    }


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> float:
    """One step down a loss; NaN stops the training."""
    if not bool(torch.isfinite(loss)):
        raise TrainingStopped("the loss is not finite: a batch holds NaN, or the step is too large")
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_([p for group in optimiser.param_groups for p in group["params"]], GRADIENT)
    optimiser.step()
    return float(loss.item())
