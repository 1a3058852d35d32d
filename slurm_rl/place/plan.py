"""Plans where the jobs at the head of the queues go, and writes it into a World as hints.

Which jobs start stays with the order and the backfill rule. A hint names nodes for one job; a pass follows it as far as
the nodes have room when the job's turn comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_rl.errors import InputError, unknown_name
from slurm_rl.kernel.arrays import HINT, MIX, NEVER, NEW_HEAD, NOW, Array
from slurm_rl.kernel.tables import World
from slurm_rl.place.defer import Deferral, defer_jobs
from slurm_rl.place.gpu_counts import free_by_type, has_by_type
from slurm_rl.place.greedy import place_greedily
from slurm_rl.place.mip import SOLVERS, solve
from slurm_rl.place.prices import Prices
from slurm_rl.place.problem import Job, NodeKind, NodeState, PlacementProblem, Request, Weights, Where
from slurm_rl.place.solver_process import SHARED

_REMEMBERED = 1024
_REQUESTS = 512  # different ones of the mix: the most frequent
_Spots = list[tuple[int, int, int]]  # nodes of a job, its units on each, and the type of the GPUs there
_NO_MIX = np.zeros(0, dtype=MIX)
_REQUESTED = ("units", "per_node", "cpu", "mem", "gpu", "share")


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """How placement is planned."""

    weights: Weights = field(default_factory=Weights)
    jobs: int = 64  # at the head of each queue
    seconds: float = 1.0  # for one solution
    gap: float = 0.01
    solver: str = "cbc"
    deferral: Deferral | None = None  # None: a job that fits is never deferred

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
    deferred: int = 0  # times that a job was deferred
    failed: int = 0  # problems without an answer of the solver
    seconds: float = 0.0


class Planner:
    """Plans for one World after another, of the same jobs and nodes or of others; remembers solved problems."""

    def __init__(self, settings: PlannerSettings | None = None) -> None:
        self.settings = settings or PlannerSettings()
        self.tally = Tally()
        self.notes: list[str] = []
        self.awaited: dict[int, int] = {}  # by job that was deferred: the GPU type
        self.defer_jobs: dict[int, int] = {}  # likewise of all passes: the type that a job was last left for
        self._map: _Map | None = None
        self._solved: OrderedDict[object, dict[int, Where]] = OrderedDict()

    def plan(self, world: World, queues: Sequence[tuple[int, Array]]) -> None:
        """Writes hints for a planned placement; `queues` holds (pool, its waiting jobs in order)."""
        self.tally.passes += 1
        self.awaited.clear()
        if self._map is None or self._map.source is not world["kind_node"]:
            self._map = _Map(world)
        known = self._map
        hint_of, pools = world["hint_of"], world["pools"]
        hint_of[hint_of > 0] = 0
        spots_of: _Spots = []
        mixes: list[Array] = []
        for pool, ordered in queues:
            if pools["change"][pool] == 0 and pools["due"][pool] == 0:
                continue  # it has no pass: who was deferred stays so
            if (hint_of[ordered] < 0).any():
                # Who was deferred may start now though nothing has ended: that takes a whole pass.
                pools["change"][pool] = max(int(pools["change"][pool]), int(NEW_HEAD))
                hint_of[ordered] = 0
            weights = self.settings.weights
            cost = known.costs(world, pool, ordered, weights.energy, defer=self.settings.deferral is not None)
            queue = self._later(world, pool, ordered, cost)
            mix = known.mix(world, pool, ordered) if weights.blocked else _NO_MIX
            mixes.append(mix)
            for job, spots in self._of_pool(known, world, pool, queue, cost, mix).items():
                hint_of[job] = 1 + len(spots_of)
                spots_of += spots
        world["hint"] = np.array(spots_of, dtype=HINT)
        world["mix"] = np.concatenate(mixes) if mixes else _NO_MIX
        later = hint_of[hint_of < 0]
        world["wake"] = -int(later.max()) if len(later) else NEVER

    def _later(self, world: World, pool: int, queue: Array, cost: Array) -> Array:
        """Puts jobs off for which something better is expected; the rest of the queue."""
        rules = self.settings.deferral
        if rules is None:
            return queue
        off = defer_jobs(world, pool, queue, int(world["clock"]), cost, rules)
        if not off:
            return queue
        self.tally.deferred += len(off)
        for job, (until, awaited) in off.items():
            world["hint_of"][job] = -until
            self.awaited[job] = self.defer_jobs[job] = awaited
        return queue[world["hint_of"][queue] == 0]

    def _of_pool(
        self, known: _Map, world: World, pool: int, queue: Array, cost: Array, mix: Array
    ) -> dict[int, _Spots]:
        """Nodes of the jobs at the head of a queue: those that start in order, and the first that would not."""
        head = known.startable(world, pool, queue[: self.settings.jobs])
        rows = world["jobs"]["request"][head]
        in_problem = known.in_problem[rows]
        if world["blocks"] > 1:
            in_problem &= (
                world["requests"]["wide"][rows] == 0
            )  # the placer keeps gangs within blocks, which the model does not know
        head = head[in_problem]  # jobs without GPUs go best-fit, wherever they are
        if len(head) < 2:
            return {}  # one job: the placer alone finds its best type and node
        jobs = known.jobs(world, head, cost)
        states, members = known.states(world, pool)

        weights = self.settings.weights
        asked = [(portion, known.requests[s]) for portion, s in mix.tolist()]
        problem = PlacementProblem(jobs, known.kinds, states, weights=weights, mix=asked)
        if world["head_blocks"]:
            # What starts behind the first blocked job is up to the backfill rule: nobody gives way to it here.
            started = place_greedily(problem)
            blocked = next((rank for rank in range(len(jobs)) if rank not in started), len(jobs))
            if blocked + 1 < len(jobs):
                problem = PlacementProblem(jobs[: blocked + 1], known.kinds, states, weights=weights, mix=asked)
            if not blocked:
                return {}
        self.tally.problems += 1
        where = self._answer(problem)
        # From states back to nodes: those counted as equal, one after the other.
        nodes: dict[NodeState, list[int]] = {}
        for state, numbers in members.items():
            nodes.setdefault(problem.alike[state], []).extend(numbers)
        return {
            int(head[rank]): [(nodes[state][which], units, gpu_type) for (state, which), units, gpu_type in spots]
            for rank, spots in where.items()
        }

    def _answer(self, problem: PlacementProblem) -> dict[int, Where]:
        key = (problem.jobs, problem.kinds, tuple(problem.nodes.items()), problem.mix)
        known = self._solved.get(key)
        if known is not None:
            self._solved.move_to_end(key)
            self.tally.remembered += 1
            return known
        s = self.settings
        solution = solve(problem, seconds=s.seconds, gap=s.gap, solver=s.solver, ask=SHARED.ask)
        self.tally.seconds += solution.elapsed
        self.tally.solved += not solution.is_optimal or solution.winner != "greedy"
        self.tally.improved += solution.winner != "greedy"
        if solution.note:
            self.tally.failed += 1
            self.notes = [*self.notes[-9:], solution.note]
        # Greedy's answer needs no hints: the placer comes to it by itself.
        where = self._solved[key] = solution.where if solution.winner != "greedy" else {}
        if len(self._solved) > _REMEMBERED:
            self._solved.popitem(last=False)
        return where


class _Map:
    """What does not change in a World: which nodes are alike to all jobs, and which types jobs insist on."""

    def __init__(self, world: World) -> None:
        self.source = world["kind_node"]
        nodes, ptr, listed = world["nodes"], world["kind_ptr"], world["kind_node"]
        kinds = len(ptr) - 1
        member = np.zeros((kinds, len(nodes)), dtype=bool)
        for k in range(kinds):
            member[k, listed[ptr[k] : ptr[k + 1]]] = True
        self.prices = Prices(world)
        types = self.prices.types
        # On a node of several types, how many there are of each says what it is; on others its type does.
        has = has_by_type(world, 0, len(nodes), types).astype(np.int64)
        several = (has > 0).sum(axis=1) > 1
        self._several = several
        told = has[:, has[several].any(axis=0)].T if several.any() else ()
        columns = np.vstack([nodes["type"], nodes["gpu"], nodes["pool"], *member, *told]).astype(np.int64)
        _, first, alike = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        self.kind_of = alike.reshape(-1).astype(np.int64)
        self.kinds = tuple(
            NodeKind(
                int(nodes["type"][n]),
                int(nodes["gpu"][n]),
                tuple(np.flatnonzero(has[n]).tolist()) if several[n] else (),
            )
            for n in first.tolist()
        )
        self.accepts = [frozenset(np.flatnonzero(member[k, first]).tolist()) for k in range(kinds)]
        requests = world["requests"]
        self.in_problem = _in_problem(world)
        self._shares = bool((requests["share"] > 0).any())
        self._priced: dict[int, tuple[Array, Array, Array]] = {}  # by pool: prices, the table they are in, costs
        # Requests of which a unit is the same, by the first of them; and those that any free GPU would do for.
        units = np.column_stack([requests[f] for f in ("cpu", "mem", "gpu", "share", "kind")])
        _, leader, group = np.unique(units, axis=0, return_index=True, return_inverse=True)
        self._unit = leader[group.reshape(-1)]
        easy = (requests["gpu"] <= 1) & (requests["cpu"] == 0) & (requests["mem"] == 0) & (world["used"].shape[2] == 0)
        self._hard = (self.prices.gpus > 0) & ~easy & (requests["exact"] == 0)
        # Which types a request accepts matters where a node has several.
        masks = requests["accept"].tolist() if several.any() else [0] * len(requests)
        accepts = [frozenset(t for t in range(types) if mask >> t & 1) for mask in masks]
        self.requests = [
            Request._make([*(int(s[f]) for f in _REQUESTED), self.accepts[s["kind"]], accepts[i]])
            for i, s in enumerate(requests)
        ]

    def startable(self, world: World, pool: int, queue: Array) -> Array:
        """The first jobs of a queue up to the one with which the pool's sums are used up."""
        requests = world["requests"][world["jobs"]["request"][queue]]
        asked = np.stack([requests["units"] * requests[f] for f in ("cpu", "mem", "gpu")], axis=1).cumsum(axis=0)
        over = (asked > world["total"][NOW, pool]).any(axis=1)
        return queue[: int(over.argmax()) + 1 if over.any() else len(queue)]

    def costs(self, world: World, pool: int, queue: Array, energy: float, *, defer: bool) -> Array:
        """Seconds by [request, GPU type] for each second of work, prices included; the placer goes by them, too."""
        prices = self.prices.of(world, pool, queue, least=1 if defer else 2)
        if energy:
            prices = prices + energy * self._kwh(world, pool)
        known, written, cost = self._priced.get(pool, (prices, None, prices))
        if written is not world["prefer"] or not np.array_equal(known, prices):
            requests, prefer = world["requests"], world["prefer"]
            cost = (1.0 + self.prices.gpus[:, None] * prices) / world["speed"][requests["row"]]
            mine = requests["pool"] == pool
            prefer[mine] = 1.0 / cost[mine]
            self._priced[pool] = prices, prefer, cost
        return cost

    def _kwh(self, world: World, pool: int) -> Array:
        """What a second of a GPU of each type draws above idle, in kWh: as the replay's `energy_kwh` counts it."""
        nodes = world["nodes"][world["nodes"]["pool"] == pool]
        has = has_by_type(world, 0, len(world["nodes"]), self.prices.types)[world["nodes"]["pool"] == pool]
        gpus, watts = has.sum(axis=0), (has * nodes["watts"][:, None]).sum(axis=0)
        return watts / np.maximum(gpus, 1) / 3.6e6

    def mix(self, world: World, pool: int, queue: Array) -> Array:
        """What jobs of a pool that wait or run ask for, and their shares: who may want what is left free."""
        first = int(world["pools"]["first_job"][pool])
        running = world["running"][first : first + int(world["pools"]["running"][pool])]
        rows = world["jobs"]["request"][np.concatenate([running, queue])]
        count = np.bincount(self._unit[rows[self._hard[rows]]], minlength=len(self.requests))
        most = np.argsort(-count, kind="stable")[:_REQUESTS]
        most = most[count[most] > 0]
        mix = np.zeros(len(most), dtype=MIX)
        mix["portion"], mix["request"] = count[most] / max(len(rows), 1), most
        return mix

    def jobs(self, world: World, queue: Array, cost: Array) -> list[Job]:
        """The jobs of a problem; estimates in quarter octaves, so that jobs that are alike count as equal."""
        expected = np.maximum(world["live"]["expected"][queue], 1.0)
        rounded = np.exp2(np.round(4.0 * np.log2(expected)) / 4.0)
        rows = world["jobs"]["request"][queue]
        seconds = rounded[:, None] * cost[rows]
        return [Job(self.requests[s], tuple(t)) for s, t in zip(rows.tolist(), seconds.tolist(), strict=True)]

    def states(self, world: World, pool: int) -> tuple[dict[NodeState, int], dict[NodeState, list[int]]]:
        """The pool's nodes on which something is free, by state: how many, and which."""
        first, last = int(world["pools"]["first_node"][pool]), int(world["pools"]["last_node"][pool])
        free = world["free"][NOW, first:last]
        used = world["used"][NOW, first:last]
        some = np.flatnonzero((free[:, 0] > 0) | (free[:, 2] > 0))
        gpus = world["nodes"]["gpu"][first:last][some]
        several = self._several[first:last][some]
        slots = -np.sort(-used[some], axis=1) if self._shares else used[some][:, :0]
        by_type = np.zeros((len(some), self.prices.types if several.any() else 0), dtype=np.int64)
        if several.any():
            slots[several] = 0  # what is in part used there is of no use to the model
            by_type[several] = free_by_type(world, first, last, self.prices.types)[some[several]]
            by_type[free[some][:, 2] == 0] = 0  # a node that takes no jobs
        columns = np.column_stack(
            [self.kind_of[first:last][some], free[some][:, [2, 0, 1]], gpus, by_type, slots]
        ).astype(np.int64)
        keys = columns.view(np.dtype((np.void, columns.shape[1] * 8))).reshape(-1)
        _, chosen, which = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(which, kind="stable")
        cuts = np.searchsorted(which[order], np.arange(len(chosen) + 1)).tolist()
        numbers = (some[order] + first).tolist()
        members: dict[NodeState, list[int]] = {}
        for k, row in enumerate(columns[chosen].tolist()):
            types = self.kinds[row[0]].types
            has = tuple((t, row[5 + t]) for t in types)
            shared = tuple(row[len(row) - row[4] :]) if self._shares and not types else ()
            members[NodeState(row[0], row[1], row[2], row[3], shared, has)] = numbers[cuts[k] : cuts[k + 1]]
        return {state: len(found) for state, found in members.items()}, members


def _in_problem(world: World) -> Array:
    """Which requests the model knows: whole GPUs of one type, of several to choose from, or shares; one set of nodes.

    The others the placer places alone (docs/placement.md).
    """
    requests, demand = world["requests"], world["demand"]
    special = (requests["chain"] >= 0) | (requests["shards"] > 0) | (requests["exact"] > 0)
    special |= (requests["exclusive"] > 0) | (requests["switches"] + requests["segment"] > 0)
    if len(demand):
        special |= demand.any(axis=1)
    # Shares, where a node has several types.
    special |= (requests["share"] > 0) & (requests["accept"] != -1)
    return np.asarray((requests["gpu"] + requests["share"] > 0) & ~special)
