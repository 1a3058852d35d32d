"""A pool's waiting jobs as arrays, for Python policies: the figures of formulas, and a network's features."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.jit import kernel
from slurm_rl.kernel.tables import World
from slurm_rl.policy.estimate import refresh
from slurm_rl.policy.features import JOB_FEATURES, POOL_FEATURES, observe
from slurm_rl.policy.heuristics import multifactor_priority


@kernel
def renew(world: Array, queue: Array) -> None:
    """Renews the estimates of waiting jobs."""
    refresh(world[0], queue, len(queue))


@kernel
def _observe(world: Array, now: float, queue: Array) -> None:
    observe(world[0], now, queue, len(queue))


@kernel
def slurms_order(world: Array, now: float, queue: Array, scores: Array) -> None:
    """Slurm's own priorities: what stands where a policy says nothing usable."""
    for i in range(len(queue)):
        scores[i] = multifactor_priority(world[0], now, queue[i])


class Queue:
    """The waiting jobs of one pool, in the order of submission; arrays have one entry a job, and are copies.

    Nothing here tells a job's true run time.
    """

    job_features = JOB_FEATURES
    pool_features = POOL_FEATURES

    def __init__(self, world: World, now: int, jobs: Array) -> None:
        self._world, self.now, self.jobs = world, now, jobs
        self._rows = world["jobs"][jobs]
        self._live = world["live"][jobs]
        self._requests = world["requests"][self._rows["request"]]

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def rows(self) -> Array:
        """The jobs' rows of the table `jobs`."""
        return self._rows

    @property
    def submit(self) -> Array:
        return self._rows["submit"].astype(float)

    @property
    def wait(self) -> Array:
        return self.now - self.submit

    @property
    def limit(self) -> Array:
        return self._rows["limit"].astype(float)

    @property
    def estimate(self) -> Array:
        return np.maximum(self._live["expected"], 1.0)

    @property
    def spread(self) -> Array:
        return self._live["spread"].astype(float)

    @property
    def seen(self) -> Array:
        return self._live["seen"].astype(float)

    @property
    def size(self) -> Array:
        return self._requests["volume"].copy()

    @property
    def units(self) -> Array:
        return self._requests["units"].astype(float)

    @property
    def gpus(self) -> Array:
        return self.units * (self._requests["gpu"] + self._requests["share"] / 1000.0)

    @property
    def cpus(self) -> Array:
        return self.units * self._requests["cpu"]

    @property
    def mem_gb(self) -> Array:
        return self.units * self._requests["mem"] / 1024.0

    @property
    def priority(self) -> Array:
        return self._rows["priority"].astype(float)

    @property
    def deadline(self) -> Array:
        return self._rows["deadline"].astype(float)

    @property
    def user(self) -> Array:
        return self._rows["user"].astype(float)

    @property
    def account(self) -> Array:
        return self._rows["account"].astype(float)

    @property
    def partition(self) -> Array:
        return self._rows["partition"].astype(float)

    @property
    def qos(self) -> Array:
        return self._rows["qos"].astype(float)

    @property
    def fairshare(self) -> Array:
        return self._world["users"]["fairshare"][self._rows["user"]].astype(float)

    @property
    def held(self) -> Array:
        return self._world["users"]["rate"][self._rows["user"]].astype(float)

    @cached_property
    def _observed(self) -> tuple[Array, Array]:
        _observe(self._world.record, float(self.now), self.jobs)
        return self._world["features"][: len(self)].copy(), self._world["context"].copy()

    @property
    def features(self) -> Array:
        """[jobs, 32] float32: what a network sees of each job, by `job_features`."""
        return self._observed[0]

    @property
    def pool(self) -> Array:
        """[8] float32: what a network sees of the pool, by `pool_features`."""
        return self._observed[1]
