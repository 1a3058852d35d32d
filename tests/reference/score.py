"""What a policy thinks of a waiting job, higher first: the formulas of the documentation, one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

LN2 = math.log(2.0)
WEEK = 7 * 86400.0


class Scored(Protocol):
    """What a formula may look at."""

    submit: int
    limit: int
    deadline: int
    priority: float
    size: float
    done: float
    estimate: float
    inverse: float


def score(policy: str, job: Scored, now: int) -> float:
    """The policies that look at the job alone."""
    r = max(job.estimate, 1.0)
    wait = now - job.submit
    match policy:
        case "fcfs":
            return -job.submit
        case "lcfs":
            return job.submit
        case "sjf":
            return -r
        case "ljf":
            return r
        case "saf":
            return -r * job.size
        case "sjf-age":
            return math.log1p(wait / r) - math.log(r)
        case "smith":
            return job.inverse / r
        case "srpt":
            return -max(r - job.done, 1.0)
        case "f1":
            return -(math.log10(r) * job.size + 870.0 * math.log10(max(job.submit, 1.0)))
        case "wfp3":
            return (wait / r) ** 3 * job.size
        case "unicef":
            return wait / (max(math.log2(max(job.size, 1.0)), 1.0) * r)
        case "edf":
            return -job.deadline if job.deadline >= 0 else -math.inf
        case "static-priority":
            return job.priority
        case "dynamic":
            urgency = 1.0
            if job.deadline >= 0:
                urgency += r / max(job.deadline - now - r, 0.1 * r)
            return (1 + wait / r) * urgency * (1 + max(job.priority, 0.0))
    raise AssertionError(policy)


@dataclass
class Group:
    """Decayed count, mean and variance of log run time of finished jobs."""

    weight: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def learn(self, value: float, keep: float) -> None:
        old = self.weight * keep
        new = old + 1
        gap = value - self.mean
        self.variance = old * (self.variance + gap * gap / new) / new
        self.mean += gap / new
        self.weight = new


@dataclass
class History:
    """Run times learned from finished jobs: of a size, a user, a user's size, a user's request, a user's job name."""

    everyone: Group = field(default_factory=Group)
    groups: dict[tuple[object, ...], Group] = field(default_factory=dict)

    @staticmethod
    def keys(user: str, name: str, size: float, on_gpus: bool, limit: int) -> list[tuple[object, ...]]:
        bucket = (math.floor(math.log2(max(size, 1e-3)) + 20), on_gpus)
        exact = round(size * 1000)
        keys: list[tuple[object, ...]] = [
            ("size", bucket),
            ("user", user),
            ("user size", user, bucket),
            ("user request", user, exact, limit),
        ]
        return [*keys, ("user name", user, name, exact)] if name else keys

    def finish(self, keys: list[tuple[object, ...]], limit: int, ran: float) -> None:
        log_run = math.log(max(ran, 1.0))
        self.everyone.learn(log_run - math.log(limit), 0.999)
        for level, key in enumerate(keys):
            self.groups.setdefault(key, Group()).learn(log_run, 0.999 if level == 0 else 0.92)

    def predict(self, keys: list[tuple[object, ...]], limit: int) -> tuple[float, float, float]:
        """The estimate, E[1/r], and the standard deviation of the estimate's logarithm."""
        mean = math.log(limit) + (self.everyone.mean if self.everyone.weight else math.log(0.5))
        variance = self.everyone.variance if self.everyone.weight > 5 else 2.0
        for key in keys:
            group = self.groups.get(key)
            if group:
                share = group.weight / (group.weight + 1.0)
                gap = group.mean - mean
                variance = share * group.variance + (1 - share) * (variance + share * gap * gap)
                mean += share * gap
        mean, variance = min(mean, math.log(limit)), min(variance, 6.0)
        spread = float(np.float32(math.sqrt(variance)))
        return math.exp(mean), float(np.float32(math.exp(-mean + variance / 2))), spread


@dataclass
class Use:
    """What someone holds, and has used with a half-life of a week."""

    rate: float = 0.0
    usage: float = 0.0
    time: float = 0.0

    def at(self, now: float) -> float:
        if now <= self.time:
            return self.usage
        kept = math.exp(-LN2 / WEEK * (now - self.time))
        return self.usage * kept + self.rate * (1 - kept) / (LN2 / WEEK)

    def hold(self, change: float, now: float) -> None:
        self.usage, self.time = self.at(now), now
        self.rate += change


def fair_tree(users: dict[str, Use], accounts: dict[str, Use], home: dict[str, str], now: float) -> dict[str, float]:
    """Of each user, the share of users ranked at or below: accounts by usage, then users; ties share the better."""
    keys = {u: (accounts[home[u]].at(now), users[u].at(now)) for u in users}
    return {u: sum(k >= keys[u] for k in keys.values()) / len(keys) for u in users}
