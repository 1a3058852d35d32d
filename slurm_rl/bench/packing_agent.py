"""An agent that puts pods on nodes, or skips them: PPO with attention over a few candidate nodes and the skip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slurm_rl.bench.pods import MILLI, Filling, PodNodes
from slurm_rl.kernel.arrays import Array

CANDIDATES = 8
_NODE, _POD, _WIDTH = 8, 11, 32
_HEAVY = 1.5  # times the free CPUs of a free GPU: where it begins to skip
_NEVER = -1e9


class PodView:
    """What the agent sees of one pod: candidate nodes, the pod and the whole cluster, all as shares."""

    def __init__(self, filling: Filling) -> None:
        self.asks, self.nodes = filling.asks(), PodNodes(filling.cluster, filling.mix())
        self.total = self.nodes.free
        self.asked, self.given, self.at = 0.0, 0.0, 0
        self.choice = np.zeros(CANDIDATES, dtype=np.int64)
        self.grown = np.zeros(CANDIDATES)
        self.placed = np.zeros(len(self.asks), dtype=bool)
        self.bare = self.nodes.size[:, 2] == 0  # nodes without GPUs: nothing is stranded there

    @property
    def over(self) -> bool:
        return self.at >= len(self.asks)

    def look(self, node: Array, pod: Array) -> int:
        """Writes features of the candidates and of the pod; how many candidates there are."""
        ask, nodes = self.asks[self.at], self.nodes
        count = nodes.best(ask, self.choice, self.grown)
        gpus = ask[2] + ask[3] / MILLI
        cpus, mem, idle = nodes.free
        here = self.choice[:count]
        size = np.maximum(nodes.size[here], 1.0)
        free = nodes.gpus[here]
        node[:] = 0.0
        node[:count, 0] = nodes.cpus[here] / size[:, 0]
        node[:count, 1] = nodes.mem[here] / size[:, 1]
        node[:count, 2] = free.sum(axis=1) / (MILLI * 8)
        node[:count, 3] = (free == MILLI).sum(axis=1) / 8
        node[:count, 4] = self.grown[:count]
        node[:count, 5] = nodes.waste[here] / 8
        node[:count, 6] = (nodes.cpus[here] - ask[0]) / size[:, 0]
        node[:count, 7] = 1.0
        ratio = self.total[0] / max(self.total[2], 1e-9)
        pod[:] = (
            gpus / 8, float(ask[3] > 0), ask[0] / 96, np.tanh(ask[0] / max(gpus, 0.1) / ratio / 4),
            ask[1] / (1024 * 768), idle / self.total[2], cpus / self.total[0], mem / self.total[1],
            np.tanh(cpus / max(idle, 0.1) / ratio / 4), self.asked / self.total[2], self._heavy(ask, count),
        )  # fmt: skip
        return count

    def _heavy(self, ask: Array, count: int) -> float:
        """Logarithm of the pod's CPUs for each GPU, over 1.5 times those that are free for each free GPU."""
        cpus, _, idle = self.nodes.free
        cpus -= float(self.nodes.cpus[self.bare].sum())
        if not count or idle <= 0 or cpus <= 0 or self.bare[self.choice[0]]:
            return -3.0
        gpus = max(ask[2] + ask[3] / MILLI, 0.1)
        return float(np.clip(np.log(max(ask[0], 0.1) / (_HEAVY * gpus * cpus / idle)), -3.0, 3.0))

    def act(self, action: int) -> float:
        """Puts the pod on a candidate, or skips it (the last action); the GPUs that it got."""
        ask = self.asks[self.at]
        gpus = float(ask[2] + ask[3] / MILLI)
        self.asked += gpus
        self.at += 1
        if action == CANDIDATES:
            return 0.0
        self.nodes.put(int(self.choice[action]), ask)
        self.placed[self.at - 1] = True
        self.given += gpus
        return gpus


class Net(nn.Module):
    """Scores of candidates and of the skip; it begins as FGD that skips pods heavy in CPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.node, self.pod = nn.Linear(_NODE, _WIDTH), nn.Linear(_POD, _WIDTH)
        self.skip = nn.Parameter(torch.zeros(_WIDTH))
        self.attend = nn.MultiheadAttention(_WIDTH, 4, batch_first=True)
        self.mind = nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))
        self.worth = nn.Sequential(nn.Linear(_WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))
        self.steep = nn.Parameter(torch.tensor(12.0))
        self.keen = nn.Parameter(torch.tensor(6.0))
        with torch.no_grad():
            last = self.mind[3]
            assert isinstance(last, nn.Linear)  # noqa: S101  # for the type checker
            last.weight.mul_(0.05)
            last.bias.zero_()

    def forward(self, node: Tensor, pod: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [batch, candidates + 1], impossible ones far below all others, and the value of the state."""
        own = self.pod(pod)[:, None, :]
        tokens = torch.cat([self.node(node), self.skip.expand(len(node), 1, -1)], dim=1) + own
        absent = torch.arange(CANDIDATES)[None, :] >= count[:, None]
        absent = torch.cat([absent, torch.zeros(len(node), 1, dtype=torch.bool)], dim=1)
        seen, _ = self.attend(tokens, tokens, tokens, key_padding_mask=absent, need_weights=False)
        hidden = tokens + seen
        # How much a candidate wastes beside the best one: if all waste alike, that is no reason to skip.
        grown = node[:, :, 4] - node[:, :1, 4]
        bias = torch.cat([-self.steep * grown, self.keen * pod[:, 10:11]], dim=1)
        scores = self.mind(hidden).squeeze(-1) + bias
        value = self.worth(torch.where(absent[..., None], 0.0, hidden).mean(dim=1)).squeeze(-1)
        return scores.masked_fill(absent, _NEVER), value


@dataclass(frozen=True)
class Recipe:
    """How the agent is trained."""

    steps: int = 24_576  # pods shown
    together: int = 16  # clusters side by side
    length: int = 256  # pods of each between two updates
    epochs: int = 4
    batch: int = 1024
    rate: float = 1e-3
    clip: float = 0.2
    trace: float = 0.97  # of generalised advantages
    entropy: float = 0.002


def train(make: Callable[[int], Filling], recipe: Recipe, seed: int) -> tuple[Net, list[tuple[int, float]]]:
    """A network trained by PPO on fillings of many seeds, and its curve: (pods shown, mean GPUs given out)."""
    torch.manual_seed(seed)
    net = Net()
    optimiser = torch.optim.Adam(net.parameters(), lr=recipe.rate)
    number = 10_000 * (seed + 1)
    views = [PodView(make(number + i)) for i in range(recipe.together)]
    number += recipe.together
    curve, ended = [], []
    shape = (recipe.length, recipe.together)
    node = np.zeros((*shape, CANDIDATES, _NODE), dtype=np.float32)
    pod = np.zeros((*shape, _POD), dtype=np.float32)
    count, action = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    reward, last = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    value, chance = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    rounds = max(recipe.steps // (recipe.length * recipe.together), 1)
    for turn in range(rounds):
        for t in range(recipe.length):
            for e, view in enumerate(views):
                count[t, e] = view.look(node[t, e], pod[t, e])
            with torch.no_grad():
                scores, worth = net(*(torch.from_numpy(v) for v in (node[t], pod[t], count[t])))
                drawn: Any = torch.distributions.Categorical(logits=scores)
                chosen = drawn.sample()
                chance[t], value[t] = drawn.log_prob(chosen).numpy(), worth.numpy()
            action[t] = chosen.numpy()
            for e, view in enumerate(views):
                reward[t, e] = 100.0 * view.act(int(action[t, e])) / view.total[2]
                last[t, e] = view.over
                if view.over:
                    ended.append(view.given / view.total[2])
                    views[e] = PodView(make(number))
                    number += 1
        final = np.zeros(recipe.together, dtype=np.float32)
        seen = [
            np.zeros((recipe.together, CANDIDATES, _NODE), np.float32),
            np.zeros((recipe.together, _POD), np.float32),
        ]
        many = np.array([v.look(seen[0][e], seen[1][e]) for e, v in enumerate(views)])
        with torch.no_grad():
            final = net(torch.from_numpy(seen[0]), torch.from_numpy(seen[1]), torch.from_numpy(many))[1].numpy()
        gain = _advantages(reward, value, last, final, recipe.trace)
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate * (1.0 - turn / rounds)
        _update(net, optimiser, recipe, [node, pod, count, action, chance, gain, gain + value], seed * 7919 + turn)
        if ended:  # a cluster that is not full yet says nothing
            curve.append(((turn + 1) * recipe.length * recipe.together, float(np.mean(ended[-64:]))))
    return net, curve


def _advantages(reward: Array, value: Array, last: Array, final: Array, trace: float) -> Array:
    """Generalised advantages without discount: all GPUs given out in an episode count the same."""
    gain = np.zeros_like(reward)
    ahead, running = final, np.zeros(reward.shape[1], dtype=np.float32)
    for t in range(len(reward) - 1, -1, -1):
        goes_on = 1.0 - last[t]
        running = reward[t] + ahead * goes_on - value[t] + trace * goes_on * running
        gain[t], ahead = running, value[t]
    return gain


def _update(net: Net, optimiser: torch.optim.Optimizer, recipe: Recipe, tape: list[Array], seed: int) -> None:
    flat = [torch.from_numpy(v.reshape(-1, *v.shape[2:])) for v in tape]
    node, pod, count, action, chance, gain, target = flat
    gain = (gain - gain.mean()) / (gain.std() + 1e-6)
    dice = torch.Generator().manual_seed(seed)
    for _ in range(recipe.epochs):
        order: Any = torch.randperm(len(gain), generator=dice)
        for rows in order.split(recipe.batch):
            scores, worth = net(node[rows], pod[rows], count[rows])
            drawn: Any = torch.distributions.Categorical(logits=scores)
            change = (drawn.log_prob(action[rows]) - chance[rows]).exp()
            clipped = change.clamp(1 - recipe.clip, 1 + recipe.clip)
            policy = -torch.minimum(change * gain[rows], clipped * gain[rows]).mean()
            loss = (
                policy + 0.5 * nn.functional.huber_loss(worth, target[rows]) - recipe.entropy * drawn.entropy().mean()
            )
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimiser.step()


def fill(net: Net, filling: Filling) -> tuple[Array, PodNodes]:
    """Which pods a trained agent places, always its first choice; and what is left free."""
    view = PodView(filling)
    node, pod = np.zeros((1, CANDIDATES, _NODE), dtype=np.float32), np.zeros((1, _POD), dtype=np.float32)
    tensors = torch.from_numpy(node), torch.from_numpy(pod)
    with torch.no_grad():
        while not view.over:
            count = view.look(node[0], pod[0])
            view.act(int(net(*tensors, torch.tensor([count]))[0][0].argmax()))
    return view.placed, view.nodes
