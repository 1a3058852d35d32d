"""A placement problem: nodes grouped by state, jobs by request, and the cost of each choice in seconds.

A node's *state* is what is free on it. Nodes of one state are interchangeable, so that a problem's size follows the
number of states and of distinct requests, not that of nodes. Putting a job on a node moves the node to another state;
what the state in which a node ends costs is counted exactly once: free GPUs that the *mix*, the jobs that wait or run
at the time, could not use there.

A node may have GPUs of several types, MIG slices included, which share its CPUs and memory. A request that accepts
several of them is one choice for each. On nodes of one type there is one choice, and the state says nothing of types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

from slurm_rl.domain.pairs import parse_pairs
from slurm_rl.errors import InputError

GPU_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Weights:
    """How many seconds each thing is worth; docs/placement.md has the formula and the measurements behind these."""

    blocked: float = 0.0  # each free GPU that the jobs in sight could not use
    node: float = 60.0  # each node of a job beyond its first
    energy: float = 0.0  # each kWh that its GPUs draw above idle


def parse_weights(text: str, field: str) -> Weights:
    """Weights from `energy=1000,node=0`; those that are not named stay as they are."""
    wanted = "NAME=SECONDS,… from 0 to 1e9"
    given = parse_pairs(text, field, wanted, what="weight", known=[f.name for f in fields(Weights)])
    for name, value in given.items():
        if not 0.0 <= value < 1e9:
            raise InputError(f"must be {wanted}, got '{name}={value:g}'", field=field)
    return Weights(**given)


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes that all jobs of the problem see alike, but for what is free on them."""

    gpu_type: int  # of several, the first
    gpus: int  # of an empty node
    types: tuple[int, ...] = ()  # of nodes with GPUs of several types: all of them

    @property
    def all_types(self) -> tuple[int, ...]:
        """The GPU types of these nodes."""
        return self.types or (self.gpu_type,)


class NodeState(NamedTuple):
    """What is free on a node of a kind; `slots` are thousandths in use of each GPU, where GPUs are shared."""

    kind: int
    gpu: int
    cpu: int
    mem: int
    slots: tuple[int, ...] = ()
    by_type: tuple[tuple[int, int], ...] = ()  # GPU type and free GPUs of it, where a node has several types

    @property
    def idle_gpus(self) -> float:
        """Free GPUs, shares included."""
        return self.gpu + sum(GPU_MILLI - used for used in self.slots if 0 < used < GPU_MILLI) / GPU_MILLI

    def free_of(self, gpu_type: int) -> int:
        """Free whole GPUs of one of the node's types."""
        for kind, free in self.by_type:
            if kind == gpu_type:
                return free
        return 0 if self.by_type else self.gpu

    def room(self, request: Request, wanted: int, gpu_type: int) -> int:
        """How many units of a request fit on GPUs of one of the node's types, at most `wanted`."""
        room = min(wanted, request.per_node)
        gpu = self.free_of(gpu_type) if self.by_type else self.gpu
        for free, per in ((gpu, request.gpu), (self.cpu, request.cpu), (self.mem, request.mem)):
            if per:
                room = min(room, free // per)
        if request.share:
            room = min(room, sum((GPU_MILLI - used) // request.share for used in self.slots))
        return room

    def after(self, request: Request, units: int, gpu_type: int) -> NodeState:
        """The state after `units` are placed; a share goes to the fullest GPU that has room for it."""
        slots, by_type = self.slots, self.by_type
        gpu = self.gpu - units * request.gpu
        if by_type:
            by_type = tuple((k, free - units * request.gpu if k == gpu_type else free) for k, free in by_type)
        if slots:
            used = list(slots)
            if request.share:
                for _ in range(units):
                    roomy = (k for k in range(len(used)) if used[k] + request.share <= GPU_MILLI)
                    at = max(roomy, key=used.__getitem__)
                    used[at] += request.share
            else:
                for _ in range(units * request.gpu):
                    used[used.index(0)] = GPU_MILLI
            slots = tuple(sorted(used, reverse=True))
            gpu = slots.count(0)
        return NodeState(self.kind, gpu, self.cpu - units * request.cpu, self.mem - units * request.mem, slots, by_type)


class Request(NamedTuple):
    """A job's request: `units` units, at most `per_node` on a node, all on GPUs of one type."""

    units: int
    per_node: int
    cpu: int  # of a unit, likewise below
    mem: int
    gpu: int
    share: int
    kinds: frozenset[int]  # node kinds that will do
    types: frozenset[int] = frozenset()  # GPU types that will do on nodes that have several; of others `kinds` says all

    @property
    def gpus(self) -> float:
        """Of the whole job, shares included."""
        return self.units * (self.gpu + self.share / GPU_MILLI)


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the batch; jobs stand in the policy's order."""

    request: Request
    seconds: tuple[float, ...]  # by GPU type: run time as estimated, and what holding the GPUs costs others


Node = tuple[NodeState, int]  # a node by its state at first, and which of those in that state


class Spot(NamedTuple):
    """A node of a job."""

    node: Node
    units: int
    gpu_type: int  # of the GPUs that it gets there


Where = tuple[Spot, ...]  # a job's nodes


class PlacementProblem:
    """Jobs in order, nodes by state, and what everything costs."""

    def __init__(
        self,
        jobs: Sequence[Job],
        kinds: Sequence[NodeKind],
        nodes: Mapping[NodeState, int],
        *,
        weights: Weights | None = None,
        mix: Sequence[tuple[float, Request]] = (),
    ) -> None:
        self.jobs = tuple(jobs)
        self.kinds = tuple(kinds)
        self.weights = weights or Weights()
        self.mix = tuple(mix) if self.weights.blocked else ()  # requests, each with its share of all
        self._mix = [[entry for entry in self.mix if k in entry[1].kinds] for k in range(len(kinds))]
        self._limits = [self._usable(k) for k in range(len(kinds))]
        self.alike: dict[NodeState, NodeState] = {s: self._canonical(s) for s in nodes}  # as given -> as counted
        self.nodes: dict[NodeState, int] = {}
        for state, count in nodes.items():
            same = self.alike[state]
            self.nodes[same] = self.nodes.get(same, 0) + count
        self._state_costs: dict[NodeState, float] = {}
        self.known_spans: dict[Request, frozenset[int]] = {}
        self._moves: dict[Request, dict[NodeState | tuple[NodeState, int], NodeState | None]] = {}
        self._choices: dict[Request, dict[int, tuple[int, ...]]] = {}

    def _usable(self, kind: int) -> tuple[float, int, float, int]:
        """CPUs a GPU, and CPUs besides, that the batch or the mix could use on a node of a kind; memory likewise."""
        ratio, without = [0.0, 0.0], [0, 0]
        batch = [j.request for j in self.jobs if kind in j.request.kinds]
        for request in (*batch, *(request for _, request in self._mix[kind])):
            if request.gpu or request.share:
                for r, per in enumerate((request.cpu, request.mem)):
                    ratio[r] = max(ratio[r], per / (request.gpu or request.share / GPU_MILLI))
        for request in batch:
            if not request.gpu and not request.share:
                without[0] += request.cpu * request.units
                without[1] += request.mem * request.units
        return ratio[0], without[0], ratio[1], without[1]

    def _canonical(self, state: NodeState) -> NodeState:
        """The state with CPUs and memory that no set of the batch's jobs could use up cut off: exact, and far fewer.

        Whatever is placed on a node with G free GPUs uses at most ratio·G CPUs, besides what jobs without GPUs take;
        and when g GPUs are left, what of the mix fits in g needs at most ratio·g of the CPUs that are left.
        """
        cpu_ratio, cpus, mem_ratio, mems = self._limits[state.kind]
        gpus = state.idle_gpus
        cpu = min(state.cpu, math.ceil(cpu_ratio * gpus) + cpus)
        mem = min(state.mem, math.ceil(mem_ratio * gpus) + mems)
        if cpu == state.cpu and mem == state.mem:
            return state
        return NodeState(state.kind, state.gpu, cpu, mem, state.slots, state.by_type)

    def choices(self, request: Request) -> dict[int, tuple[int, ...]]:
        """By node kind, the GPU types on which a request may run there; kinds that it may not use are left out."""
        known = self._choices.get(request)
        if known is None:
            known = self._choices[request] = {}
            for kind in request.kinds:
                types = self.kinds[kind].types
                if types and request.gpu:
                    known[kind] = tuple(t for t in types if t in request.types)
                else:
                    known[kind] = (self.kinds[kind].gpu_type,)  # there is nothing to choose
        return known

    def after(self, state: NodeState, request: Request, units: int, gpu_type: int) -> NodeState:
        """The state of a node after `units` are placed on its GPUs of a type."""
        return self._canonical(state.after(request, units, gpu_type))

    def whole(self, state: NodeState, request: Request, gpu_type: int) -> NodeState | None:
        """The state of a node once it has a whole job on GPUs of a type, None if it has no room for it."""
        known = self._moves.setdefault(request, {})
        key = (state, gpu_type) if state.by_type else state
        if key not in known:
            fits = gpu_type in self.choices(request).get(state.kind, ())
            fits = fits and state.room(request, request.units, gpu_type) == request.units
            known[key] = self.after(state, request, request.units, gpu_type) if fits else None
        return known[key]

    def cost(self, job: Job, gpu_type: int) -> float:
        """Seconds that it costs to run a job on a type."""
        return job.seconds[gpu_type]

    def blocked(self, state: NodeState) -> float:
        """Free GPUs on a node that the mix could not use, on average of its requests that may use such a node.

        All of them where a unit of the request does not fit; else the GPUs of which too little is free for it, and
        those of types that it does not accept. On nodes of several types, requests for shares are left out.
        """
        idle, total = state.idle_gpus, 0.0
        if not idle:
            return 0.0
        if state.by_type:
            return sum(p * self._lost_by_type(state, m) for p, m in self._mix[state.kind] if not m.share)
        for portion, request in self._mix[state.kind]:
            if not state.room(request, 1, self.kinds[state.kind].gpu_type):
                total += portion * idle
            elif state.slots:
                need = request.share or GPU_MILLI
                total += portion * sum(GPU_MILLI - u for u in state.slots if GPU_MILLI - u < need) / GPU_MILLI
        return total

    def _lost_by_type(self, state: NodeState, request: Request) -> int:
        """Free GPUs on a node of several types that a request could not use: those of other types, or all."""
        mine = self.choices(request)[state.kind]
        if not any(state.room(request, 1, t) for t in mine):
            return state.gpu
        return state.gpu - sum(state.free_of(t) for t in mine)

    def state_cost(self, state: NodeState) -> float:
        """Seconds that a node in this state costs."""
        if not self.mix:
            return 0.0
        cost = self._state_costs.get(state)
        if cost is None:
            cost = self._state_costs[state] = self.weights.blocked * self.blocked(state)
        return cost

    @cached_property
    def relief(self) -> dict[int, float]:
        """The most that the cost of one node can fall, by GPU type."""
        most: dict[int, float] = {}
        for state in self.nodes:
            for gpu_type in self.kinds[state.kind].all_types:
                most[gpu_type] = max(most.get(gpu_type, 0.0), self.state_cost(state))
        return most

    @cached_property
    def values(self) -> tuple[float, ...]:
        """What starting each job is worth: more than anything it could cost the others, the earlier the more."""
        types = {t for k in self.kinds for t in k.all_types}
        dearest = sum(max((self.cost(j, t) for t in types), default=0.0) for j in self.jobs)
        most = self.weights.blocked * max((k.gpus for k in self.kinds), default=0) if self.mix else 0.0
        nodes = (most + self.weights.node) * sum(j.request.units for j in self.jobs)
        big, count = 1.0 + dearest + nodes, max(len(self.jobs), 1)
        return tuple(big * (2.0 - rank / count) for rank in range(len(self.jobs)))


def spans(problem: PlacementProblem, request: Request) -> frozenset[int]:
    """GPU types on which a job would take several nodes: at first, none of them holds all of it."""
    if request.units == 1:
        return frozenset()
    if request not in problem.known_spans:
        problem.known_spans[request] = _spans(problem, request)
    return problem.known_spans[request]


def _spans(problem: PlacementProblem, request: Request) -> frozenset[int]:
    rooms: dict[int, list[int]] = {}
    types = problem.choices(request)
    for state, count in problem.nodes.items():
        for gpu_type in types.get(state.kind, ()):
            room = state.room(request, request.units, gpu_type)
            found = rooms.setdefault(gpu_type, [0, 0])
            found[0] = max(found[0], room)
            found[1] += room * count
    return frozenset(k for k, (most, total) in rooms.items() if most < request.units <= total)


def evaluate(problem: PlacementProblem, where: Mapping[int, Where]) -> float:
    """The objective of a placement in seconds, lower being better: the one definition for greedy, model and tests."""
    states: dict[Node, NodeState] = {}
    total = 0.0
    for rank in sorted(where):
        job, spots = problem.jobs[rank], where[rank]
        total += problem.cost(job, spots[0].gpu_type) + problem.weights.node * (len(spots) - 1) - problem.values[rank]
        for node, units, gpu_type in spots:
            states[node] = problem.after(states.get(node, node[0]), job.request, units, gpu_type)
    for node, now in states.items():
        total += problem.state_cost(now) - problem.state_cost(node[0])
    return total


def violations(problem: PlacementProblem, where: Mapping[int, Where]) -> list[str]:
    """What is wrong with a placement: overcommitted nodes, wrong or mixed types, missing units."""
    wrong = []
    states: dict[Node, NodeState] = {}
    for rank in sorted(where):
        request, spots = problem.jobs[rank].request, where[rank]
        placed = sum(s.units for s in spots)
        if placed != request.units:
            wrong.append(f"job {rank}: {placed} of {request.units} units")
        if len({s.gpu_type for s in spots}) != 1:
            wrong.append(f"job {rank}: on several GPU types")
        if len({s.node for s in spots}) != len(spots):
            wrong.append(f"job {rank}: a node twice")
        for node, units, gpu_type in spots:
            state, which = node
            now = states.get(node, state)
            if gpu_type not in problem.choices(request).get(state.kind, ()):
                wrong.append(f"job {rank}: on a node or a GPU type it may not use")
            if not 0 <= which < problem.nodes.get(state, 0):
                wrong.append(f"job {rank}: on a node that is not there")
            if units < 1 or now.room(request, units, gpu_type) < units:
                wrong.append(f"job {rank}: {units} units where there is no room for them")
            else:
                states[node] = problem.after(now, request, units, gpu_type)
    return wrong
