"""Proximal policy optimisation of a queue network, in one file: play, value, update, keep the best.

An action is the order of a queue, drawn as Plackett and Luce would: the first job by a softmax of the scores, the next
one among the rest, and so on. Only positions that mattered count: the jobs that started, and the first that did not.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slurm_rl.errors import SlurmRlError
from slurm_rl.evaluate.goals import GOALS, price
from slurm_rl.kernel.arrays import Array
from slurm_rl.policy.checkpoint import flatten, unflatten
from slurm_rl.policy.features import JOB_COUNT, POOL_COUNT
from slurm_rl.policy.registry import parse_policy
from slurm_rl.train.imitate import be_heuristic, learn_run_times, lessons_of, set_scales
from slurm_rl.train.module import QueueNet
from slurm_rl.train.rollout import COSTS, Episode, Reference, padded_queues, play, reference_of
from slurm_rl.train.scenes import Scene, SceneSource, draw_scene
from slurm_rl.train.search import SearchSettings, log_ratios, search


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a training run is made of, beside its traces."""

    iterations: int = 60
    scenes: int = 12  # played in each iteration
    jobs: int = 3000  # of a scene
    generated: float = 0.5  # share of scenes that are made up
    epochs: int = 3
    rows: int = 16_384  # of a minibatch
    longest: int = 256  # queues beyond are left out of the update
    rate: float = 3e-4
    clip: float = 0.2
    stop_at: float = 0.03  # an update ends when the policy has moved this far (KL)
    horizon: float = 86_400.0  # seconds after which a cost counts 1/e
    smoothing: float = 0.95  # lambda of generalised advantage estimation
    entropy: tuple[float, float] = (0.003, 0.0)  # at first, at last
    value: float = 0.5
    temperature: float = 0.5
    validation: int = 150  # scenes on which the best network is chosen
    reference: str = "sjf-age@user"
    lessons: int = 400  # scenes from which run times are learned first; 0: not at all
    search: SearchSettings = field(default_factory=SearchSettings)  # then search over the linear path
    without: tuple[str, ...] = ()  # parts of the network that are switched off (module.PARTS)
    goals: dict[str, float] = field(default_factory=lambda: dict(GOALS))  # of the search and the validation
    costs: dict[str, float] = field(default_factory=lambda: dict(COSTS))  # of PPO
    seed: int = 0


# Mean queue beyond which a scene is left out where there are others: it would take as long to play as all of them.
_LONGEST_QUEUE = 40.0
SHORT_CAP = 3.0  # the cap in scenes, which end before the model's own would matter
_DRAWS = 5  # of as many scenes, if nobody waits in the first ones
_SHIFT = 100_000_007  # of their seeds


class TrainingStopped(SlurmRlError):
    """Training cannot go on; the message says why."""


@dataclass(slots=True)
class Batch:
    """Turns of several episodes, padded to a common queue length."""

    jobs: Tensor
    pool: Tensor
    mask: Tensor
    lead: Tensor
    picks: Tensor
    old: Tensor
    advantage: Tensor
    target: Tensor


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


def ppo_loss(
    ratio: Tensor,
    advantage: Tensor,
    value: Tensor,
    target: Tensor,
    entropy: Tensor,
    *,
    clip: float,
    weights: tuple[float, float],
) -> Tensor:
    """Clipped surrogate + squared value error - entropy bonus; `weights` is (value, entropy)."""
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    return -surrogate.mean() + weights[0] * (value - target).square().mean() - weights[1] * entropy.mean()


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
    return advantage, advantage + value


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


class Trainer:
    """Holds what a run needs to go on: the network, the optimiser, the best so far."""

    def __init__(self, settings: Settings, sources: Sequence[SceneSource], directory: Path) -> None:
        self.settings, self.sources, self.directory = settings, sources, directory
        torch.set_num_threads(1)  # the matrices are small: threads would only wait for each other
        self.net = QueueNet(settings.seed)
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=settings.rate, eps=1e-5)
        self.iteration = 0
        self.started = False  # from a finished network
        self.best = math.inf
        self.best_net: Array | None = None
        self.best_ratios: dict[str, float] = {}
        self.return_scale = 1.0
        self.reference = parse_policy(settings.reference)
        self.threads = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
        self._validation: list[tuple[Scene, Reference]] = []

    # -- scenes --------------------------------------------------------------------------------------------------

    def scenes(self, seeds: Sequence[int]) -> list[tuple[Scene, Reference]]:
        def make(seed: int) -> tuple[Scene, Reference]:
            scene = draw_scene(self.sources, seed, jobs=self.settings.jobs, generated=self.settings.generated)
            return scene, reference_of(scene, self.reference)

        for more in range(_DRAWS):
            made = self.threads.map(make, [seed + more * _SHIFT for seed in seeds])
            contended = [(s, r) for s, r in made if r.metrics["wait"] > 30.0]
            quick = [pair for pair in contended if pair[1].queue < _LONGEST_QUEUE]
            if contended:
                return quick or sorted(contended, key=lambda pair: pair[1].queue)[: -(-len(contended) // 4)]
        raise TrainingStopped("nobody waits in these workloads: there is nothing to learn (change the load)")

    def episodes(self, scenes: Sequence[tuple[Scene, Reference]], seed: int, temperature: float) -> list[Episode]:
        net = flatten(self.net.tensors())
        s = self.settings

        def one(k: int) -> Episode:
            scene, reference = scenes[k]
            return play(scene, reference, net, temperature=temperature, seed=seed + k, costs=s.costs)

        return list(self.threads.map(one, range(len(scenes))))

    def validation(self) -> dict[str, float]:
        """Geometric means, over fixed scenes that are not trained on, of each figure's ratio to the reference."""
        if not self._validation:
            first = 1_000_000_007  # whatever the seed: trainings of several seeds are compared
            self._validation = self.scenes(range(first, first + self.settings.validation))
        net = flatten(self.net.tensors())
        logs = list(self.threads.map(lambda pair: log_ratios(pair[0], pair[1], net, SHORT_CAP), self._validation))
        ratios = {name: math.exp(float(np.mean([row[name] for row in logs]))) for name in logs[0]}
        ratios["score"] = math.exp(float(np.mean([price(row, self.settings.goals) for row in logs])))
        return ratios

    # -- learning ------------------------------------------------------------------------------------------------

    def update(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """One PPO update from freshly played episodes."""
        s = self.settings
        share = self.iteration / max(s.iterations - 1, 1)
        entropy_weight = s.entropy[0] + (s.entropy[1] - s.entropy[0]) * share
        for group in self.optimiser.param_groups:
            group["lr"] = s.rate * (1.0 - 0.9 * share)
        batches = [b for e in episodes for b in self._batches(e)]
        if not batches:
            raise TrainingStopped("no queue of two or more jobs had a choice: there is nothing to learn")
        dice = np.random.default_rng([s.seed, 5, self.iteration])
        kl, losses = 0.0, []
        for _ in range(s.epochs):
            divergence = []
            for k in dice.permutation(len(batches)).tolist():
                b = batches[k]
                scores, value = self.net(b.jobs, b.pool, b.mask)
                scaled = scores / s.temperature
                log_ratio = order_log_probability(scaled, b.mask, b.lead, b.picks) - b.old
                ratio = log_ratio.exp()
                chances = torch.log_softmax(scaled.masked_fill(~b.mask, -1e9), dim=1)
                entropy = -(chances.exp() * chances).sum(dim=1)
                loss = ppo_loss(
                    ratio, b.advantage, value, b.target, entropy, clip=s.clip, weights=(s.value, entropy_weight)
                )
                self._step(loss)
                losses.append(loss.item())
                divergence.append((ratio - 1 - log_ratio).mean().item())
            kl = float(np.mean(divergence))
            if kl > s.stop_at:
                break
        return {"loss": float(np.mean(losses)), "kl": kl}

    def _batches(self, episode: Episode) -> list[Batch]:
        s = self.settings
        groups = list(by_length(episode, s.rows, s.longest))
        if not groups:
            return []
        value, old = np.zeros(len(episode.turns)), np.zeros(len(episode.turns), dtype=np.float32)
        parts = []
        with torch.no_grad():
            for chosen in groups:
                jobs, pool, mask, lead, picks = padded(episode, chosen)
                scores, worth = self.net(jobs, pool, mask)
                value[chosen] = worth.numpy() * self.return_scale
                old[chosen] = order_log_probability(scores / s.temperature, mask, lead, picks).numpy()
                parts.append((chosen, jobs, pool, mask, lead, picks))
        advantage, target = advantages(
            episode.reward, value, episode.after, episode.elapsed, horizon=s.horizon, smoothing=s.smoothing
        )
        if not np.isfinite(advantage).all():
            raise TrainingStopped("rewards or values are not finite: the scene's costs overflowed")
        self.return_scale = 0.99 * self.return_scale + 0.01 * max(float(np.std(target)), 1e-6)
        advantage = (advantage - advantage.mean()) / max(float(advantage.std()), 1e-8)
        advantage = np.clip(advantage, -5.0, 5.0)
        return [
            Batch(
                jobs, pool, mask, lead, picks,
                torch.from_numpy(old[chosen]),
                torch.from_numpy(advantage[chosen].astype(np.float32)),
                torch.from_numpy((target[chosen] / self.return_scale).astype(np.float32)),
            )
            for chosen, jobs, pool, mask, lead, picks in parts
        ]  # fmt: skip

    def _step(self, loss: Tensor) -> None:
        if not bool(torch.isfinite(loss)):
            raise TrainingStopped("the loss is not finite: a batch holds NaN, or the step is too large")
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimiser.step()

    # -- the run -------------------------------------------------------------------------------------------------

    def warm_up(self, report: Callable[[str], None]) -> None:
        """Scales of the features, the heuristic to start from, run times, and a search over the linear path."""
        s = self.settings
        first = s.seed * 7_000_003
        if not self.started:
            be_heuristic(self.net)
            scenes = self.scenes(range(first, first + max(s.lessons, 2 * s.scenes)))
            episodes = self.episodes(scenes, 0, s.temperature)
            set_scales(self.net, episodes)
            self.net.switch_off(s.without)
            be_heuristic(self.net)
            if s.lessons:
                lessons = lessons_of(episodes, [scene for scene, _ in scenes], s.seed)
                before, after = learn_run_times(self.net, lessons, seed=s.seed)
                report(f"run times: error of log run time {before:.3f} by the estimate, {after:.3f} by the network")
        if s.search.generations:
            net = search(
                flatten(self.net.tensors()),
                lambda g: self.scenes(range(first + 1000 + g * s.scenes, first + 1000 + (g + 1) * s.scenes)),
                s.search,
                threads=self.threads,
                seed=s.seed,
                goals=s.goals,
                starve_drain=SHORT_CAP,
                report=lambda g, price: report(f"search {g + 1}/{s.search.generations}: {math.exp(price):.4f}"),
            )
            self.net.take(unflatten(net))

    def run(self, report: Callable[[dict[str, float]], None], say: Callable[[str], None] = lambda text: None) -> Array:
        """Trains to the last iteration; the network that did best on the validation scenes."""
        s = self.settings
        if self.iteration == 0 and self.best_net is None:
            self.warm_up(say)
            self._judge(report, {})
        while self.iteration < s.iterations:
            seeds = range(s.seed * 1_000_003 + 10_000 + self.iteration * s.scenes,
                          s.seed * 1_000_003 + 10_000 + (self.iteration + 1) * s.scenes)  # fmt: skip
            scenes = self.scenes(seeds)
            episodes = self.episodes(scenes, 1000 * self.iteration + 1, s.temperature)
            numbers = self.update(episodes)
            numbers["turns"] = float(sum(len(e.turns) for e in episodes))
            numbers["reward"] = float(np.mean([e.reward.sum() for e in episodes]))
            self.iteration += 1
            self._judge(report, numbers)
        return flatten(self.net.tensors()) if self.best_net is None else self.best_net

    def _judge(self, report: Callable[[dict[str, float]], None], numbers: dict[str, float]) -> None:
        ratios = self.validation()
        if ratios["score"] < self.best:
            self.best, self.best_net, self.best_ratios = ratios["score"], flatten(self.net.tensors()), ratios
        row = {"iteration": float(self.iteration), **numbers, **ratios, "best": self.best}
        self._write_curve(row)
        self.save()
        report(row)

    def _write_curve(self, row: dict[str, float]) -> None:
        path = self.directory / "curve.csv"
        names = "iteration loss kl turns reward bsld wait p99 max score best".split()
        fresh = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names, extrasaction="ignore")
            if fresh:
                writer.writeheader()
            writer.writerow({k: f"{row[k]:.6g}" for k in names if k in row})

    # -- going on after a stop -----------------------------------------------------------------------------------

    def save(self) -> None:
        """Writes all that a resumed run needs, at once or not at all."""
        state = {
            "settings": asdict(self.settings),
            "net": self.net.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "iteration": self.iteration,
            "best": self.best,
            "best_net": None if self.best_net is None else torch.from_numpy(self.best_net),
            "best_ratios": self.best_ratios,
            "return_scale": self.return_scale,
        }
        temporary = self.directory / "training.pt.new"
        torch.save(state, temporary)
        temporary.replace(self.directory / "training.pt")

    def restore(self) -> bool:
        """Takes up a stopped run of the same settings; whether there was one."""
        path = self.directory / "training.pt"
        if not path.is_file():
            return False
        state = torch.load(path, weights_only=True)
        other = {k for k, v in asdict(self.settings).items() if k != "iterations" and state["settings"].get(k) != v}
        if other:
            raise TrainingStopped(
                f"{path} was made with other settings ({', '.join(sorted(other))}): use another --out"
            )
        self.net.switch_off(self.settings.without)
        self.net.load_state_dict(state["net"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.iteration, self.best = int(state["iteration"]), float(state["best"])
        self.best_net = None if state["best_net"] is None else state["best_net"].numpy()
        self.best_ratios = dict(state["best_ratios"])
        self.return_scale = float(state["return_scale"])
        return True

    def begin_with(self, net: Array) -> None:
        """Starts from a finished network instead of from a heuristic."""
        self.net.take(unflatten(net))
        self.started = True
