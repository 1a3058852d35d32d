"""Plans where the jobs at the head of the queues go, and writes it into a World as preferences and hints.

Which jobs start stays with the order and the backfill rule. `prefer` tells the placers `greedy` and `mip` which GPU
type each class of jobs should rather take; a hint names nodes for one job. A pass follows a hint as far as the nodes
have room when the job's turn comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_rl.domain.arrays import LOG, NOW, Array
from slurm_rl.domain.tables import World
from slurm_rl.errors import InputError, unknown_name
from slurm_rl.place.kernels import GREEDY, MIP
from slurm_rl.place.mip import SOLVERS, solve
from slurm_rl.place.problem import Ask, Job, NodeKind, Problem, State, Weights, Where

_REMEMBERED = 1024
_Spots = list[tuple[int, int]]  # nodes of a job, and its units on each
_ASKED = ("units", "per_node", "cpu", "mem", "gpu", "share")


@dataclass(frozen=True, slots=True)
class Settings:
    """How placement is planned."""

    weights: Weights = field(default_factory=Weights)
    jobs: int = 64  # at the head of each queue
    seconds: float = 1.0  # for one solution
    gap: float = 0.01
    solver: str = "cbc"

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise InputError(f"must be at least 1, got {self.jobs}", field="placement jobs")
        if self.solver not in SOLVERS:
            raise unknown_name("solver", self.solver, SOLVERS)
        if self.seconds <= 0:
            raise InputError(f"must be above 0, got {self.seconds:g}", field="placement seconds")


@dataclass(slots=True)
class Tally:
    """What planning came to."""

    passes: int = 0
    problems: int = 0  # passes with more than one job to place
    solved: int = 0  # problems that greedy did not settle
    remembered: int = 0  # problems met before
    improved: int = 0  # problems in which the solver beat greedy
    failed: int = 0  # problems without an answer of the solver
    seconds: float = 0.0


class Planner:
    """Plans for one World after another, of the same jobs and nodes or of others; remembers solved problems."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.tally = Tally()
        self.notes: list[str] = []
        self._map: _Map | None = None
        self._solved: OrderedDict[object, dict[int, Where]] = OrderedDict()

    def plan(self, world: World, queues: Sequence[tuple[int, Array]]) -> None:
        """Writes preferences, and hints for `mip`; `queues` holds (pool, its waiting jobs in order)."""
        placer = int(world["placer"])
        if placer < GREEDY:
            return
        self.tally.passes += 1
        if self._map is None or self._map.source is not world["kind_node"]:
            self._map = _Map(world)
        known = self._map
        demand = known.demand(world, np.concatenate([q for _, q in queues]) if queues else np.zeros(0, np.int64))
        world["prefer"][:] = world["speed"] / (1.0 + self.settings.weights.demand * demand)
        if placer != MIP:
            return
        hint_of = world["hint_of"]
        hint_of[hint_of > 0] = 0
        rows: list[tuple[int, int]] = []
        for pool, queue in queues:
            for job, spots in self._of_pool(known, world, pool, queue, demand).items():
                hint_of[job] = 1 + len(rows)
                rows += spots
        world["hint"] = np.array(rows, dtype=LOG)

    def _of_pool(
        self, known: _Map, world: World, pool: int, queue: Array, demand: Array
    ) -> dict[int, list[tuple[int, int]]]:
        """Nodes of the jobs at the head of a queue: those that start in order, and the first that would not."""
        head = known.startable(world, pool, queue[: self.settings.jobs])
        if len(head) < 2:
            return {}  # one job: the placer alone finds its best type and node
        jobs = known.jobs(world, head)
        states, members = known.states(world, pool)
        problem = Problem(
            jobs,
            known.kinds,
            states,
            demand=demand.tolist(),
            weights=self.settings.weights,
        )
        self.tally.problems += 1
        where = self._answer(problem)
        # From states back to nodes: those counted as equal, one after the other.
        nodes: dict[State, list[int]] = {}
        for state, numbers in members.items():
            nodes.setdefault(problem.alike[state], []).extend(numbers)
        return {
            int(head[rank]): [(nodes[state][which], units) for (state, which), units in spots]
            for rank, spots in where.items()
        }

    def _answer(self, problem: Problem) -> dict[int, Where]:
        key = (problem.jobs, problem.demand, tuple(problem.nodes.items()))
        known = self._solved.get(key)
        if known is not None:
            self._solved.move_to_end(key)
            self.tally.remembered += 1
            return known
        s = self.settings
        solution = solve(problem, seconds=s.seconds, gap=s.gap, solver=s.solver)
        self.tally.seconds += solution.elapsed
        self.tally.solved += not solution.is_optimal or solution.winner != "greedy"
        self.tally.improved += solution.winner != "greedy"
        if solution.note:
            self.tally.failed += 1
            self.notes = [*self.notes[-9:], solution.note]
        self._solved[key] = solution.where
        if len(self._solved) > _REMEMBERED:
            self._solved.popitem(last=False)
        return solution.where


class _Map:
    """What does not change in a World: which nodes are alike to all jobs, and which types jobs insist on."""

    def __init__(self, world: World) -> None:
        self.source = world["kind_node"]
        nodes, ptr, listed = world["nodes"], world["kind_ptr"], world["kind_node"]
        kinds = len(ptr) - 1
        member = np.zeros((kinds, len(nodes)), dtype=bool)
        for k in range(kinds):
            member[k, listed[ptr[k] : ptr[k + 1]]] = True
        columns = np.vstack([nodes["type"], nodes["gpu"], nodes["pool"], *member]).astype(np.int64)
        _, first, alike = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        self.kind_of = alike.reshape(-1).astype(np.int64)
        self.kinds = tuple(NodeKind(int(nodes["type"][n]), int(nodes["gpu"][n])) for n in first.tolist())
        self.accepts = [frozenset(np.flatnonzero(member[k, first]).tolist()) for k in range(kinds)]
        types = world["speed"].shape[1]
        self.capacity = np.maximum(np.bincount(nodes["type"], weights=nodes["gpu"], minlength=types), 1.0)
        offered = np.zeros((len(world["pools"]), types), dtype=bool)
        with_gpus = nodes["gpu"] > 0
        offered[nodes["pool"][with_gpus], nodes["type"][with_gpus]] = True
        shapes = world["shapes"]
        self.insists = np.zeros((len(shapes), types))
        for i, s in enumerate(shapes):
            if s["gpu"] + s["share"] == 0:
                continue
            accepted = np.zeros(types, dtype=bool)
            accepted[np.unique(nodes["type"][listed[ptr[s["kind"]] : ptr[s["kind"] + 1]]])] = True
            if accepted.sum() < offered[s["pool"]].sum():
                self.insists[i, accepted] = s["units"] * (s["gpu"] + s["share"] / 1000.0) / accepted.sum()
        self.asks = [Ask._make([*(int(s[f]) for f in _ASKED), self.accepts[s["kind"]]]) for s in shapes]

    def demand(self, world: World, waiting: Array) -> Array:
        """By GPU type, the GPUs that waiting jobs insist on (they would not take every type), as a share of all."""
        rows = world["jobs"]["request"][waiting]
        return self.insists[rows].sum(axis=0) / self.capacity

    def startable(self, world: World, pool: int, queue: Array) -> Array:
        """The first jobs of a queue up to the one with which the pool's sums are used up."""
        shapes = world["shapes"][world["jobs"]["request"][queue]]
        asked = np.stack([shapes["units"] * shapes[f] for f in ("cpu", "mem", "gpu")], axis=1).cumsum(axis=0)
        over = (asked > world["total"][NOW, pool]).any(axis=1)
        return queue[: int(over.argmax()) + 1 if over.any() else len(queue)]

    def jobs(self, world: World, queue: Array) -> list[Job]:
        """The jobs of a problem; estimates in quarter octaves, so that jobs that are alike count as equal."""
        expected = np.maximum(world["live"]["expected"][queue], 1.0)
        rounded = np.exp2(np.round(4.0 * np.log2(expected)) / 4.0)
        rows = world["jobs"]["request"][queue]
        seconds = rounded[:, None] / world["speed"][world["shapes"]["row"][rows]]
        return [Job(self.asks[s], tuple(t)) for s, t in zip(rows.tolist(), seconds.tolist(), strict=True)]

    def states(self, world: World, pool: int) -> tuple[dict[State, int], dict[State, list[int]]]:
        """The pool's nodes on which something is free, by state: how many, and which."""
        first, last = int(world["pools"]["first_node"][pool]), int(world["pools"]["last_node"][pool])
        free = world["free"][NOW, first:last]
        used = world["used"][NOW, first:last]
        some = np.flatnonzero(free[:, 0] > 0)
        members: dict[State, list[int]] = {}
        slots = -np.sort(-used[some], axis=1)
        gpus = world["nodes"]["gpu"][first:last][some]
        rows = np.column_stack([self.kind_of[first:last][some], free[some][:, [2, 0, 1]]]).tolist()
        for n, row, taken, total in zip(some.tolist(), rows, slots.tolist(), gpus.tolist(), strict=True):
            members.setdefault(State._make([*row, tuple(taken[len(taken) - total :])]), []).append(first + n)
        return {state: len(numbers) for state, numbers in members.items()}, members
