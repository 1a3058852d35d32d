"""Builders of small placement problems, and a search through every placement on named nodes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

from slurm_rl.place.problem import Job, NodeKind, NodeState, PlacementProblem, Request, Weights

Named = dict[int, tuple[tuple[int, int, int], ...]]  # job -> (node, units, GPU type)


def an_ask(
    gpus: int = 1, *, nodes: int = 0, cpus: int = 0, mem: int = 0, share: int = 0, kinds: object = (0,)
) -> Request:
    """`gpus` GPUs wherever they are, or, with `nodes`, evenly on so many nodes; cpus and mem of each unit."""
    units, per_node = (nodes, 1) if nodes else (max(gpus, 1), max(gpus, 1))
    return Request(units, per_node, cpus, mem, 0 if share else gpus // units, share, frozenset(kinds))  # type: ignore[call-overload]


def a_problem(seed: int, *, shares: bool = False) -> tuple[PlacementProblem, list[NodeState]]:
    """Up to four jobs on up to four nodes of two types; the nodes as they are, one by one."""
    rng = random.Random(seed)
    kinds = [NodeKind(0, 4), NodeKind(1, rng.choice([2, 4])), NodeKind(0, 2)][: rng.choice([1, 2, 2, 3])]
    nodes = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(len(kinds))
        free = rng.randint(0, kinds[kind].gpus)
        slots: tuple[int, ...] = ()
        if shares:
            used = sorted((rng.choice([0, 0, 300, 500, 1000]) for _ in range(kinds[kind].gpus)), reverse=True)
            slots, free = tuple(used), used.count(0)
        nodes.append(NodeState(kind, free, rng.choice([2, 4, 8]), rng.choice([4, 8]), slots))
    jobs = []
    for _ in range(rng.randint(1, 4)):
        run = rng.choice([10.0, 100.0, 1000.0])
        wanted = frozenset(rng.sample(range(len(kinds)), rng.randint(1, len(kinds))))
        units, per_node, gpu = rng.choice([(1, 1, 1), (1, 1, 2), (1, 1, 4), (2, 1, 1), (3, 3, 1), (4, 2, 1), (1, 1, 0)])
        share = rng.choice([0, 0, 300, 500]) if shares and units == 1 else 0
        ask = Request(
            units,
            per_node,
            rng.choice([0, 1, 2]) or (gpu == 0),
            rng.choice([0, 1, 2]),
            0 if share else gpu,
            share,
            wanted,
        )
        rng.choice([1, 2, 3, 4])  # keeps the cases that these seeds have always drawn
        jobs.append(Job(ask, (run / rng.choice([1.0, 2.0]), run / rng.choice([0.5, 1.0]))))
    if rng.random() < 0.4:
        jobs.append(jobs[0])
    weights = Weights(blocked=rng.choice([0.0, 5.0]), node=rng.choice([0.0, 3.0]))
    mix = [(0.5, _in_the_mix(rng, kinds, shares=shares)), (0.3, _in_the_mix(rng, kinds, shares=shares))]
    count = {}
    for state in nodes:
        count[state] = count.get(state, 0) + 1
    return PlacementProblem(jobs, kinds, count, weights=weights, mix=mix), nodes


def _in_the_mix(rng: random.Random, kinds: list[NodeKind], *, shares: bool) -> Request:
    wanted = frozenset(rng.sample(range(len(kinds)), rng.randint(1, len(kinds))))
    share = rng.choice([0, 300, 700]) if shares else 0
    return Request(
        1, 1, rng.choice([0, 1, 3]), rng.choice([0, 2]), 0 if share else rng.choice([1, 2, 4]), share, wanted
    )


def a_mixed_problem(seed: int) -> tuple[PlacementProblem, list[NodeState]]:
    """Up to four jobs on up to three nodes, some with a whole type and slices of it, some with one type."""
    rng = random.Random(seed)
    mixed = [
        NodeKind(0, 4, (0, 1)),
        NodeKind(0, rng.choice([2, 3]), (0, 1, 2)),
        NodeKind(1, 3, (1, 2)),
        NodeKind(rng.randrange(3), 2),
    ]
    kinds = rng.sample(mixed, rng.choice([1, 2, 3]))
    if not any(k.types for k in kinds):
        kinds.append(mixed[0])
    nodes = []
    for _ in range(rng.choice([2, 2, 3])):
        kind = rng.randrange(len(kinds))
        amounts = (rng.choice([2, 4, 8]), rng.choice([4, 8]))
        by_type = tuple((t, rng.randint(0, 3)) for t in kinds[kind].types)
        free = sum(f for _, f in by_type) if by_type else rng.randint(0, kinds[kind].gpus)
        nodes.append(NodeState(kind, free, *amounts, (), by_type))

    def accepts() -> tuple[frozenset[int], frozenset[int]]:
        types = frozenset(rng.sample(range(3), rng.choice([1, 2, 3])))
        able = frozenset(k for k, kind in enumerate(kinds) if types & set(kind.all_types))
        return able, types

    jobs = []
    for _ in range(rng.randint(2, 4)):
        run = rng.choice([10.0, 100.0, 1000.0])
        units, per_node, gpu = rng.choice([(1, 1, 1), (1, 1, 1), (1, 1, 2), (2, 1, 1), (3, 3, 1), (1, 1, 0)])
        cpu = rng.choice([0, 1, 2]) or (gpu == 0)
        ask = Request(units, per_node, cpu, rng.choice([0, 1, 2]), gpu, 0, *accepts())
        jobs.append(Job(ask, tuple(run / rng.choice([0.3, 0.5, 1.0, 2.0]) for _ in range(3))))
    if rng.random() < 0.4:
        jobs.append(jobs[0])
    weights = Weights(blocked=rng.choice([0.0, 5.0, 50.0]), node=rng.choice([0.0, 3.0]))
    mix = [
        (part, Request(1, 1, rng.choice([0, 1, 3]), rng.choice([0, 2]), rng.choice([1, 1, 2]), 0, *accepts()))
        for part in (0.5, 0.3)
    ]
    count: dict[NodeState, int] = {}
    for state in nodes:
        count[state] = count.get(state, 0) + 1
    return PlacementProblem(jobs, kinds, count, weights=weights, mix=mix), nodes


def types_of(problem: PlacementProblem, kind: int, ask: Request) -> list[int]:
    """GPU types on which a request may run on nodes of a kind."""
    there = problem.kinds[kind]
    if kind not in ask.kinds:
        return []
    return [t for t in there.types if t in ask.types] if there.types and ask.gpu else [there.gpu_type]


class Cluster:
    """Named nodes with amounts, written without the code under test.

    What is free, GPU by GPU where they are shared, and by type where there are several.
    """

    def __init__(self, nodes: list[NodeState]) -> None:
        self.gpu = [s.gpu for s in nodes]
        self.cpu = [s.cpu for s in nodes]
        self.mem = [s.mem for s in nodes]
        self.used = [list(s.slots) for s in nodes]
        self.of_type = [dict(s.by_type) for s in nodes]

    def copy(self) -> Cluster:
        other = Cluster([])
        other.gpu, other.cpu, other.mem = self.gpu[:], self.cpu[:], self.mem[:]
        other.used = [u[:] for u in self.used]
        other.of_type = [dict(t) for t in self.of_type]
        return other

    def put(self, n: int, ask: Request, units: int, gpu_type: int) -> bool:
        """Takes units one by one; False if one finds no room."""
        for _ in range(units):
            if self.cpu[n] < ask.cpu or self.mem[n] < ask.mem:
                return False
            self.cpu[n] -= ask.cpu
            self.mem[n] -= ask.mem
            if self.used[n]:
                if ask.share:
                    fits = [k for k, u in enumerate(self.used[n]) if u + ask.share <= 1000]
                    if not fits:
                        return False
                    self.used[n][max(fits, key=lambda k: self.used[n][k])] += ask.share
                else:
                    empty = [k for k, u in enumerate(self.used[n]) if u == 0]
                    if len(empty) < ask.gpu:
                        return False
                    for k in empty[: ask.gpu]:
                        self.used[n][k] = 1000
                self.gpu[n] = self.used[n].count(0)
            elif self.of_type[n] and ask.gpu:
                if self.of_type[n].get(gpu_type, 0) < ask.gpu:
                    return False
                self.of_type[n][gpu_type] -= ask.gpu
                self.gpu[n] -= ask.gpu
            else:
                if self.gpu[n] < ask.gpu:
                    return False
                self.gpu[n] -= ask.gpu
        return True


def cost_by_hand(problem: PlacementProblem, nodes: list[NodeState], placed: Named) -> float | None:
    """The objective from the named nodes: None if something does not fit."""
    cluster, was = Cluster(nodes), Cluster(nodes)
    total = 0.0
    for rank in sorted(placed):
        job, spots = problem.jobs[rank], placed[rank]
        for spot in spots:
            if not cluster.put(*spot[:1], job.request, *spot[1:]):
                return None
        total += job.seconds[spots[0][2]] + problem.weights.node * (len(spots) - 1) - problem.values[rank]
    for n, before in enumerate(nodes):
        total += problem.weights.blocked * (
            blocked(problem, before.kind, cluster, n) - blocked(problem, before.kind, was, n)
        )
    return total


def blocked(problem: PlacementProblem, kind: int, cluster: Cluster, n: int) -> float:
    """Free GPUs of a named node that the mix cannot use: each request is tried on a copy, GPU by GPU."""
    free = [(1000 - u, None) for u in cluster.used[n]] or [(1000, None)] * cluster.gpu[n]
    if cluster.of_type[n]:
        free = [(1000, t) for t, count in cluster.of_type[n].items() for _ in range(count)]
    total = 0.0
    for part, ask in problem.mix:
        if kind not in ask.kinds:
            continue
        fits = any(cluster.copy().put(n, ask, 1, t) for t in types_of(problem, kind, ask))
        need = ask.share or 1000
        accepted = {None, *ask.types}
        total += part * sum(f for f, t in free if not fits or f < need or t not in accepted) / 1000
    return total


def ways(problem: PlacementProblem, nodes: list[NodeState], job: Job) -> list[tuple[tuple[int, int, int], ...]]:
    """Every way to put one job on named nodes: on one node, or over several of a type on which none holds it alone."""
    ask = job.request
    may = [types_of(problem, s.kind, ask) for s in nodes]
    found = [((n, ask.units, t),) for n, types in enumerate(may) for t in types if ask.per_node >= ask.units]
    for gpu_type in {t for types in may for t in types}:
        room = {n: room_by_hand(s, ask, gpu_type) for n, s in enumerate(nodes) if gpu_type in may[n]}
        mine = [n for n in room if room[n]]
        if ask.units == 1 or any(room[n] == ask.units for n in mine):
            continue
        found += [
            tuple((n, u, gpu_type) for n, u in zip(mine, units, strict=True) if u)
            for units in itertools.product(*(range(room[n] + 1) for n in mine))
            if sum(units) == ask.units
        ]
    return found


def room_by_hand(state: NodeState, ask: Request, gpu_type: int) -> int:
    """Units that one node holds: put one after the other."""
    node = Cluster([state])
    room = 0
    while room < min(ask.units, ask.per_node) and node.put(0, ask, 1, gpu_type):
        room += 1
    return room


def every_placement(problem: PlacementProblem, nodes: list[NodeState], must: Mapping[int, object]) -> Iterator[Named]:
    """Every placement in which the jobs of `must` are placed and no node serves two jobs of several nodes."""
    options: list[list[tuple[tuple[int, int, int], ...] | None]] = []
    for rank, job in enumerate(problem.jobs):
        mine: list[tuple[tuple[int, int, int], ...] | None] = list(ways(problem, nodes, job))
        options.append(mine if rank in must else [*mine, None])
    for choice in itertools.product(*options):
        wide = [n for spots in choice if spots and len(spots) > 1 for n, _, _ in spots]
        if len(set(wide)) == len(wide):
            # The wide ones take nodes as they are at first: order does not matter to amounts.
            yield {rank: spots for rank, spots in enumerate(choice) if spots}
