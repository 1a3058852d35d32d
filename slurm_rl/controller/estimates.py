"""Run-time estimates of a live site: the same estimator as in replay, fed from the accounting history."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from slurm_rl.domain.keys import KEY_LEVELS
from slurm_rl.domain.sizes import GROUP_LEVELS, group_columns
from slurm_rl.kernel.arrays import GROUP, Array
from slurm_rl.kernel.jit import kernel
from slurm_rl.kernel.world import bare_world
from slurm_rl.policy.estimate import finish, predict
from slurm_rl_sim.residuals import Residuals

_NO_KEYS: Mapping[str, str] = MappingProxyType({})
_TOGETHER = 200  # jobs that are estimated before they teach, at most: the first history may hold years


def batches(count: int, seen: int) -> Iterator[slice]:
    """Jobs that teach together: few at first, so that estimates without any history do not stand for later ones."""
    at = 0
    while at < count:
        size = min(max((seen + at) // 4, 1), _TOGETHER)
        yield slice(at, at + size)
        at += size


@kernel
def finish_all(world: Array, ran: Array) -> None:
    """Learns from jobs 0, 1, … of a world, which have ended after running so long."""
    w = world[0]
    for j in range(len(ran)):
        finish(w, j, ran[j])


@kernel
def predict_all(world: Array, jobs: Array) -> None:
    """Writes what finished jobs tell of each of these jobs."""
    w = world[0]
    for i in range(len(jobs)):
        predict(w, jobs[i])


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that has ended, and how long it ran."""

    user: str
    name: str
    volume: float
    uses_gpus: bool
    limit: int
    ran: float
    keys: Mapping[str, str] = field(default_factory=dict)


class Described(NamedTuple):
    """What of a job tells its groups."""

    user: str
    name: str
    volume: float
    uses_gpus: bool
    limit: int
    keys: Mapping[str, str] = _NO_KEYS


class RunTimes:
    """Groups of finished jobs by who ran what, numbered as they appear; never forgets a group, only ages it."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        """`keys`: further groups, by the names of what their jobs share (domain/keys.py)."""
        self.keys = tuple(keys)
        self._number: dict[tuple[object, ...] | None, int] = {}
        self._groups = np.zeros(256, dtype=GROUP)
        self.seen = 0
        self.residuals = Residuals()  # how far run times fell from their estimates

    def groups_of(
        self, user: str, name: str, volume: float, uses_gpus: bool, limit: int, told: Mapping[str, str] = _NO_KEYS
    ) -> tuple[int, ...]:
        """The groups a job belongs to, from general to specific, as replay forms them; -1: none."""
        (found,) = self.groups_of_all([Described(user, name, volume, uses_gpus, limit, told)])
        return found

    def groups_of_all(self, jobs: Sequence[Described]) -> list[tuple[int, ...]]:
        """`groups_of` for many jobs, at a fraction of the cost."""
        number = self._number
        return [
            tuple([number.setdefault(group, len(number)) if group is not None else -1 for group in groups])
            for groups in _groups_of_all(jobs, self.keys)
        ]

    def known_groups(self, user: str, name: str, volume: float, uses_gpus: bool, limit: int) -> tuple[int, ...]:
        """The same, of groups that exist by now and need no keys; may be asked from any thread."""
        (groups,) = _groups_of_all([Described(user, name, volume, uses_gpus, limit)], ())
        return tuple(self._number.get(g, -1) for g in groups)

    def learn(self, jobs: Iterable[Finished]) -> None:
        """Learns from jobs in the order in which they ended."""
        rows = list(jobs)
        for some in batches(len(rows), self.seen):
            self._learn(rows[some])

    def _learn(self, rows: list[Finished]) -> None:
        groups = self.groups_of_all(
            [Described(job.user, job.name, job.volume, job.uses_gpus, job.limit, job.keys) for job in rows]
        )
        world = bare_world(len(rows), {}, groups=self.table())
        world["jobs"]["limit"] = [max(job.limit, 1) for job in rows]
        world["jobs"]["group"] = groups
        ran = np.array([job.ran for job in rows], dtype=np.float64)
        predict_all(world.record, np.arange(len(rows)))
        expected, spread = np.log(np.maximum(world["live"]["expected"], 1.0)), world["live"]["spread"]
        self.residuals.note(expected, spread.astype(float), ran)
        finish_all(world.record, ran)
        self.seen += len(rows)

    def known(self) -> KnownRunTimes:
        """What is known by now, for other threads than the one that learns."""
        return KnownRunTimes(dict(self._number), self.table().copy(), self.residuals.copy(), self.keys)

    def table(self) -> Array:
        """What is known, as kernels read it; row 0 is of all jobs."""
        if len(self._groups) <= len(self._number):
            grown = np.zeros(2 * len(self._number) + 1, dtype=GROUP)
            grown[: len(self._groups)] = self._groups
            self._groups = grown
        return self._groups


class KnownRunTimes:
    """What is known at a moment; nothing is learned or numbered any more."""

    def __init__(
        self,
        number: dict[tuple[object, ...] | None, int],
        groups: Array,
        residuals: Residuals,
        keys: tuple[str, ...] = (),
    ) -> None:
        self._number, self._groups, self.residuals, self.keys = number, groups, residuals, keys

    def groups_of(
        self, user: str, name: str, volume: float, uses_gpus: bool, limit: int, told: Mapping[str, str] = _NO_KEYS
    ) -> tuple[int, ...]:
        """The groups a job belongs to, as far as they are known."""
        (found,) = self.groups_of_all([Described(user, name, volume, uses_gpus, limit, told)])
        return found

    def groups_of_all(self, jobs: Sequence[Described]) -> list[tuple[int, ...]]:
        return [tuple([self._number.get(g, -1) for g in groups]) for groups in _groups_of_all(jobs, self.keys)]

    def table(self) -> Array:
        return self._groups


def _groups_of_all(jobs: Sequence[Described], keys: Sequence[str]) -> Iterator[list[tuple[object, ...] | None]]:
    """The groups of each job by what its jobs share, with their level; None: of its name or a key, if it has none."""
    size, on_gpus = np.array([job.volume for job in jobs]), np.array([job.uses_gpus for job in jobs], dtype=np.int64)
    told = group_columns([job.user for job in jobs], [job.name for job in jobs], size, on_gpus, [j.limit for j in jobs])
    columns = {name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in told.items()}
    named = ["name" in of for of in GROUP_LEVELS]
    levels = [
        zip(itertools.repeat(level), *(columns[c] for c in of), strict=False) for level, of in enumerate(GROUP_LEVELS)
    ]
    nothing: list[tuple[object, ...] | None] = [None] * (KEY_LEVELS - len(keys[:KEY_LEVELS]))
    for job, exact, *found in zip(jobs, columns["exact"], *levels, strict=True):
        groups: list[tuple[object, ...] | None] = list(found)
        if not job.name:
            groups = [None if by_name else group for by_name, group in zip(named, groups, strict=True)]
        further = [(key, job.user, job.keys[key], exact) if key in job.keys else None for key in keys[:KEY_LEVELS]]
        yield [*groups, *further, *nothing]
