"""A placement problem: nodes grouped by state, jobs by what they ask for, and what each choice costs in seconds.

A node's *state* is what is free on it. Nodes of one state are interchangeable, so that a problem's size follows the
number of states and of distinct requests, not that of nodes. Putting a job on a node moves the node to another state;
what the state in which a node ends costs is counted exactly once, so that a partly used node counts exactly when it is
one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

GPU_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Weights:
    """How many seconds each thing is worth; docs/placement.md has the formula and the measurements behind these."""

    partial: float = 60.0  # a node that is neither empty nor full
    node: float = 60.0  # each node of a job beyond its first


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes that all jobs of the problem see alike, but for what is free on them."""

    gpu_type: int
    gpus: int  # of an empty node


class State(NamedTuple):
    """What is free on a node of a kind; `slots` are thousandths in use of each GPU, where GPUs are shared."""

    kind: int
    gpu: int
    cpu: int
    mem: int
    slots: tuple[int, ...] = ()

    @property
    def idle_gpus(self) -> float:
        """Free GPUs, shares included."""
        return self.gpu + sum(GPU_MILLI - used for used in self.slots if 0 < used < GPU_MILLI) / GPU_MILLI

    def room(self, ask: Ask, wanted: int) -> int:
        """How many units of a request fit, at most `wanted`."""
        room = min(wanted, ask.per_node)
        for free, per in ((self.gpu, ask.gpu), (self.cpu, ask.cpu), (self.mem, ask.mem)):
            if per:
                room = min(room, free // per)
        if ask.share:
            room = min(room, sum((GPU_MILLI - used) // ask.share for used in self.slots))
        return room

    def after(self, ask: Ask, units: int) -> State:
        """The state once so many units are placed; a share goes to the fullest GPU that has room for it."""
        slots = self.slots
        gpu = self.gpu - units * ask.gpu
        if slots:
            used = list(slots)
            if ask.share:
                for _ in range(units):
                    at = max((k for k in range(len(used)) if used[k] + ask.share <= GPU_MILLI), key=used.__getitem__)
                    used[at] += ask.share
            else:
                for _ in range(units * ask.gpu):
                    used[used.index(0)] = GPU_MILLI
            slots = tuple(sorted(used, reverse=True))
            gpu = slots.count(0)
        return State(self.kind, gpu, self.cpu - units * ask.cpu, self.mem - units * ask.mem, slots)


class Ask(NamedTuple):
    """A job's request: `units` units, at most `per_node` on a node, all on nodes of one GPU type."""

    units: int
    per_node: int
    cpu: int  # of a unit, likewise below
    mem: int
    gpu: int
    share: int
    kinds: frozenset[int]  # node kinds that will do

    @property
    def gpus(self) -> float:
        """Of the whole job, shares included."""
        return self.units * (self.gpu + self.share / GPU_MILLI)


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the batch; jobs stand in the policy's order."""

    ask: Ask
    seconds: tuple[float, ...]  # by GPU type: run time as estimated, and what holding the GPUs costs others
    patience: float | None = None  # seconds at which not starting it now is put; None: it starts if it can


Node = tuple[State, int]  # a node by its state at first, and which of those in that state
Where = tuple[tuple[Node, int], ...]  # a job's nodes, and its units on each


class Problem:
    """Jobs in order, nodes by state, and what everything costs."""

    def __init__(
        self,
        jobs: Sequence[Job],
        kinds: Sequence[NodeKind],
        nodes: Mapping[State, int],
        *,
        weights: Weights | None = None,
    ) -> None:
        self.jobs = tuple(jobs)
        self.kinds = tuple(kinds)
        self.weights = weights or Weights()
        self._limits = [self._usable(k) for k in range(len(kinds))]
        self.alike: dict[State, State] = {s: self._canonical(s) for s in nodes}  # as given -> as counted
        self.nodes: dict[State, int] = {}
        for state, count in nodes.items():
            same = self.alike[state]
            self.nodes[same] = self.nodes.get(same, 0) + count
        self.shared = any(state.slots for state in self.nodes)  # whether GPUs are told apart one by one
        self._standing: dict[tuple[int, int, tuple[int, ...]], float] = {}
        self._gains: dict[int, list[list[float]]] = {}
        self.known_spans: dict[Ask, frozenset[int]] = {}
        self._moves: dict[Ask, dict[State, State | None]] = {}

    def _usable(self, kind: int) -> tuple[float, int, float, int]:
        """CPUs a GPU, and CPUs besides, that the batch could use on a node of a kind; memory likewise."""
        ratio, without = [0.0, 0.0], [0, 0]
        for ask in (j.ask for j in self.jobs if kind in j.ask.kinds):
            for r, per in enumerate((ask.cpu, ask.mem)):
                if ask.gpu or ask.share:
                    ratio[r] = max(ratio[r], per / (ask.gpu or ask.share / GPU_MILLI))
                else:
                    without[r] += per * ask.units
        return ratio[0], without[0], ratio[1], without[1]

    def _canonical(self, state: State) -> State:
        """The state with CPUs and memory that no set of the batch's jobs could use up cut off: exact, and far fewer.

        Whatever is placed on a node with G free GPUs uses at most ratio·G CPUs, besides what jobs without GPUs take.
        """
        cpu_ratio, cpus, mem_ratio, mems = self._limits[state.kind]
        gpus = state.idle_gpus
        cpu = min(state.cpu, math.ceil(cpu_ratio * gpus) + cpus)
        mem = min(state.mem, math.ceil(mem_ratio * gpus) + mems)
        if cpu == state.cpu and mem == state.mem:
            return state
        return State(state.kind, state.gpu, cpu, mem, state.slots)

    def after(self, state: State, ask: Ask, units: int) -> State:
        """The state of a node once so many units are placed on it."""
        return self._canonical(state.after(ask, units))

    def whole(self, state: State, ask: Ask) -> State | None:
        """The state of a node once it has a whole job, None if it has no room for it."""
        known = self._moves.setdefault(ask, {})
        if state not in known:
            fits = state.kind in ask.kinds and state.room(ask, ask.units) == ask.units
            known[state] = self.after(state, ask, ask.units) if fits else None
        return known[state]

    def cost(self, job: Job, gpu_type: int) -> float:
        """Seconds that it costs to run a job on a type."""
        return job.seconds[gpu_type]

    def standing(self, state: State) -> float:
        """Seconds that a node in this state costs: those of a partly used one, or none."""
        key = (state.kind, state.gpu, state.slots)
        if key not in self._standing:
            part = state.slots and any(0 < used < GPU_MILLI for used in state.slots)
            part = part or 0 < state.gpu < self.kinds[state.kind].gpus
            self._standing[key] = self.weights.partial if part else 0.0
        return self._standing[key]

    def gains(self, gpus: int) -> list[list[float]]:
        """What taking so many whole GPUs changes in a node's standing cost, by its kind and how many are free on it."""
        if gpus not in self._gains:
            self._gains[gpus] = []
            for kind, node in enumerate(self.kinds):
                cost = [self.standing(State(kind, free, 0, 0)) for free in range(node.gpus + 1)]
                self._gains[gpus].append([cost[f - gpus] - cost[f] if f >= gpus else 0.0 for f in range(len(cost))])
        return self._gains[gpus]

    @cached_property
    def values(self) -> tuple[float, ...]:
        """What starting each job is worth: more than anything it could cost the others, the earlier the more."""
        types = {k.gpu_type for k in self.kinds}
        dearest = sum(max((self.cost(j, t) for t in types), default=0.0) for j in self.jobs)
        nodes = (self.weights.partial + self.weights.node) * sum(j.ask.units for j in self.jobs)
        big, count = 1.0 + dearest + nodes, max(len(self.jobs), 1)
        return tuple(
            big * (2.0 - rank / count) if j.patience is None else j.patience for rank, j in enumerate(self.jobs)
        )


def spans(problem: Problem, ask: Ask) -> frozenset[int]:
    """GPU types on which a job would take several nodes: at first, none of them holds all of it."""
    if ask.units == 1:
        return frozenset()
    if ask not in problem.known_spans:
        problem.known_spans[ask] = _spans(problem, ask)
    return problem.known_spans[ask]


def _spans(problem: Problem, ask: Ask) -> frozenset[int]:
    rooms: dict[int, list[int]] = {}
    for state, count in problem.nodes.items():
        if state.kind in ask.kinds:
            room = state.room(ask, ask.units)
            found = rooms.setdefault(problem.kinds[state.kind].gpu_type, [0, 0])
            found[0] = max(found[0], room)
            found[1] += room * count
    return frozenset(k for k, (most, total) in rooms.items() if most < ask.units <= total)


def evaluate(problem: Problem, where: Mapping[int, Where]) -> float:
    """The objective of a placement in seconds, lower being better: the one definition for greedy, model and tests."""
    states: dict[Node, State] = {}
    total = 0.0
    for rank in sorted(where):
        job, spots = problem.jobs[rank], where[rank]
        gpu_type = problem.kinds[spots[0][0][0].kind].gpu_type
        total += problem.cost(job, gpu_type) + problem.weights.node * (len(spots) - 1) - problem.values[rank]
        for node, units in spots:
            states[node] = problem.after(states.get(node, node[0]), job.ask, units)
    for node, now in states.items():
        total += problem.standing(now) - problem.standing(node[0])
    return total


def violations(problem: Problem, where: Mapping[int, Where]) -> list[str]:
    """What is wrong with a placement: overcommitted nodes, wrong or mixed types, missing units."""
    wrong = []
    states: dict[Node, State] = {}
    for rank in sorted(where):
        ask, spots = problem.jobs[rank].ask, where[rank]
        if sum(units for _, units in spots) != ask.units:
            wrong.append(f"job {rank}: {sum(units for _, units in spots)} of {ask.units} units")
        if len({problem.kinds[node[0].kind].gpu_type for node, _ in spots}) != 1:
            wrong.append(f"job {rank}: on several GPU types")
        if len({node for node, _ in spots}) != len(spots):
            wrong.append(f"job {rank}: a node twice")
        for node, units in spots:
            state, which = node
            now = states.get(node, state)
            if state.kind not in ask.kinds:
                wrong.append(f"job {rank}: on a node it may not use")
            if not 0 <= which < problem.nodes.get(state, 0):
                wrong.append(f"job {rank}: on a node that is not there")
            if units < 1 or now.room(ask, units) < units:
                wrong.append(f"job {rank}: {units} units where there is no room for them")
            else:
                states[node] = problem.after(now, ask, units)
    return wrong
