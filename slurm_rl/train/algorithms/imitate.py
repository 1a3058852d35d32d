"""A start for learning: the linear path is the heuristic sjf-age, and the rest learns the error of its estimate.

The teacher knows the true run times of a scene's jobs, the network sees only the features: it learns to expect, from
who asks for what, what their other jobs are doing and what else waits, how far the estimate will be off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.features import JOB_COUNT, JOB_FEATURES, POOL_COUNT
from slurm_rl.train.module import QueueNet
from slurm_rl.train.rollout import Episode, padded_queues
from slurm_rl.train.scenes import TrainingScene

if TYPE_CHECKING:
    from slurm_rl.train.trainer import Trainer

_ESTIMATE, _AGE_RATIO = JOB_FEATURES.index("estimate"), JOB_FEATURES.index("age_ratio")
_AGEING = 0.5  # of the heuristic's own: estimates that are better need less of it
_ROWS = 4000  # of each episode
_LONGEST = 128  # queues beyond are not learned from
_BATCH = 8192  # rows

# Jobs, pool, mask, and by how much the logarithm of the true run time exceeds that of the estimate.
Lesson = tuple[Tensor, Tensor, Tensor, Tensor]


class Imitate:
    """Scales of the features, the heuristic to start from, and run times: one step, for a network that is new."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.steps = trainer, 0 if trainer.start else 1

    def step(self, number: int) -> dict[str, float]:
        """Makes the network the heuristic, then teaches it."""
        net, s = self.trainer.net, self.trainer.settings
        first = s.seed * 7_000_003
        be_heuristic(net)
        scenes = self.trainer.scenes(range(first, first + max(s.lessons, 2 * s.scenes)))
        episodes = self.trainer.episodes(scenes, 0, s.temperature)
        set_scales(net, episodes)
        net.switch_off(s.without)
        be_heuristic(net)
        if not s.lessons:
            return {}
        lessons = lessons_of(episodes, [scene for scene, _ in scenes], s.seed)
        before, after = learn_run_times(net, lessons, seed=s.seed)
        return {"error_by_estimate": before, "error_by_network": after}

    def state(self) -> dict[str, Any]:
        """None: there is no second step."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up nothing."""


def set_scales(net: QueueNet, episodes: Sequence[Episode]) -> None:
    """Standardises the features over what was seen in some episodes."""
    rows = np.concatenate([e.tape[:: max(len(e.tape) // 5000, 1)] for e in episodes])
    net.normalise(rows[:, :JOB_COUNT], rows[:, JOB_COUNT : JOB_COUNT + POOL_COUNT])


def be_heuristic(net: QueueNet, ageing: float = 1.0) -> None:
    """Makes the linear path -log(estimate) + log(1 + wait / estimate), up to a constant: sjf-age."""
    with torch.no_grad():
        net.skip.zero_()
        for feature, weight in ((_ESTIMATE, -1.0), (_AGE_RATIO, ageing)):
            scale = float(net.job_scale[feature])
            net.skip[feature] = weight / scale if scale > 0 else 0.0


def learn_run_times(
    net: QueueNet, lessons: Sequence[Lesson], *, epochs: int = 30, seed: int = 0
) -> tuple[float, float]:
    """Fits all but the heuristic to what the estimates miss; the mean (Huber) errors without and with it."""
    bias = torch.zeros(1, requires_grad=True)
    learning = [p for name, p in net.named_parameters() if p.requires_grad and not name.startswith("value")]
    with torch.no_grad():
        net.skip.zero_()
    rate, step, steps = 3e-3, 0, epochs * len(lessons)
    optimiser = torch.optim.AdamW([*learning, bias], lr=rate, weight_decay=1e-3)
    dice = np.random.default_rng([seed, 13])
    before, after = 0.0, 0.0
    for epoch in range(epochs):
        errors = []
        for k in dice.permutation(len(lessons)).tolist():
            jobs, pool, mask, missed = lessons[k]
            for group in optimiser.param_groups:
                group["lr"] = rate * (1.0 - 0.97 * step / steps)
            scores, _ = net(jobs, pool, mask)
            loss = _error(bias - scores, missed, mask)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            errors.append(loss.item())
            step += 1
            if epoch == 0:
                before += _error(torch.zeros_like(missed), missed, mask).item() / len(lessons)
        after = float(np.mean(errors))
    learned = net.skip.detach().clone()
    be_heuristic(net, _AGEING)
    with torch.no_grad():
        net.skip.add_(learned)
    return before, after


def _error(guess: Tensor, missed: Tensor, mask: Tensor) -> Tensor:
    """Huber errors; a queue counts as much as the root of its length."""
    weight = mask / mask.sum(dim=1, keepdim=True).sqrt()
    return (torch.nn.functional.huber_loss(guess, missed, reduction="none") * weight).sum() / weight.sum()


def lessons_of(episodes: Sequence[Episode], scenes: Sequence[TrainingScene], seed: int) -> list[Lesson]:
    """Queues as they were seen, with what the estimates of their jobs missed, in batches of like length."""
    tapes, gaps, lengths = [], [], []
    for number, (episode, scene) in enumerate(zip(episodes, scenes, strict=True)):
        count = episode.turns["count"]
        order = np.random.default_rng([seed, 13, number]).permutation(np.flatnonzero(count <= _LONGEST))
        order = order[: np.searchsorted(np.cumsum(count[order]), _ROWS)]
        trace = scene.prepared.trace
        run = np.log(np.maximum(np.minimum(trace.run_time, trace.time_limit), 1.0))
        for first, length in zip(episode.turns["first"][order].tolist(), count[order].tolist(), strict=True):
            rows = episode.tape[first : first + length]
            job = rows[:, JOB_COUNT + POOL_COUNT].astype(np.int64)
            tapes.append(rows)
            gaps.append((run[job] - rows[:, _ESTIMATE]).astype(np.float32))
            lengths.append(length)
    tape, missed, count = np.concatenate(tapes), np.concatenate(gaps), np.array(lengths)
    return list(_batches(tape, missed, np.cumsum(count) - count, count))


def _batches(tape: Array, missed: Array, first: Array, count: Array) -> Iterator[Lesson]:
    order, at = np.argsort(count, kind="stable"), 0
    while at < len(order):
        wide = int(count[order[min(at + _BATCH // int(count[order[at]]), len(order) - 1)]])
        part = order[at : at + max(_BATCH // wide, 1)]
        at += len(part)
        rows, mask, jobs = padded_queues(tape, first[part], count[part])
        pool = tape[first[part], JOB_COUNT : JOB_COUNT + POOL_COUNT]
        yield tuple(torch.from_numpy(x) for x in (jobs, pool, mask, missed[rows] * mask))  # type: ignore[misc]
