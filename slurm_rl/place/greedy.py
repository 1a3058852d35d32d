"""Places jobs one by one in their order, each where it costs least at that moment."""

from __future__ import annotations

import math

from slurm_rl.place.problem import Job, Node, NodeState, PlacementProblem, Spot, Where, spans


class NodesByState:
    """Nodes by the state they are in now; which node it is, is remembered from its first state on."""

    def __init__(self, problem: PlacementProblem) -> None:
        self._untouched = dict(problem.nodes)
        self._first = dict.fromkeys(problem.nodes, 0)
        self._touched: dict[NodeState, list[Node]] = {}

    def states(self) -> list[NodeState]:
        """States that at least one node is in."""
        return [*self._untouched, *(s for s in self._touched if s not in self._untouched)]

    def take(self, state: NodeState) -> Node:
        """Takes a node in a state: one that was touched before, if there is one."""
        touched = self._touched.get(state)
        if touched:
            node = touched.pop()
            if not touched:
                del self._touched[state]
            return node
        return self.take_fresh(state)

    def fresh(self, state: NodeState) -> int:
        """How many nodes in this state have not been touched."""
        return self._untouched.get(state, 0)

    def take_fresh(self, state: NodeState) -> Node:
        """Takes a node that has not been touched."""
        which = self._first[state]
        self._first[state] = which + 1
        self._untouched[state] -= 1
        if not self._untouched[state]:
            del self._untouched[state]
        return state, which

    def put(self, state: NodeState, node: Node) -> None:
        """Puts a node back, in its new state."""
        self._touched.setdefault(state, []).append(node)


def place_greedily(problem: PlacementProblem) -> dict[int, Where]:
    """Jobs in order, each on the nodes of one type where it costs least now; those that do not fit are left out."""
    nodes = NodesByState(problem)
    where: dict[int, Where] = {}
    for rank, job in enumerate(problem.jobs):
        found = _best(problem, nodes, job)
        if found is None:
            continue
        gpu_type, spots = found
        taken: list[Spot] = []
        for state, units in spots:
            taken.append(Spot(nodes.take(state) if len(spots) == 1 else nodes.take_fresh(state), units, gpu_type))
        for spot, (state, _) in zip(taken, spots, strict=True):
            nodes.put(problem.after(state, job.request, spot.units, gpu_type), spot.node)
        where[rank] = tuple(taken)
    return where


_Found = tuple[int, list[tuple[NodeState, int]]]  # a GPU type; states of the nodes that a job takes, units on each


def _best(problem: PlacementProblem, nodes: NodesByState, job: Job) -> _Found | None:
    """Where the job goes now."""
    request = job.request
    least, found = math.inf, None
    if request.per_node >= request.units:
        least, state, gpu_type = _on_one_node(problem, nodes, job)
        found = (gpu_type, [(state, request.units)]) if state else None
    if request.units > 1:
        split = _split(problem, nodes, job)
        if split is not None and split[0] < least:
            found = split[1]
    return found


def _on_one_node(problem: PlacementProblem, nodes: NodesByState, job: Job) -> tuple[float, NodeState | None, int]:
    """The state of the node on which the whole job costs least, and the GPU type that it gets there.

    Of equals, the first in the states' own order, and of a node's types the first.
    """
    request = job.request
    gpus, cpus, mem = request.units * request.gpu, request.units * request.cpu, request.units * request.mem
    costs = {k: [(t, problem.cost(job, t)) for t in types] for k, types in problem.choices(request).items()}
    least, best, best_type = math.inf, None, 0
    weigh = problem.mix or request.share  # otherwise what is free says it all
    for state in nodes.states():  # this loop is what greedy's time goes into
        kind, free, free_cpus, free_mem, _, by_type = state
        if free < gpus or free_cpus < cpus or free_mem < mem or kind not in costs:
            continue
        for gpu_type, seconds in costs[kind]:
            if by_type and request.gpu and state.free_of(gpu_type) < gpus:
                continue
            cost = seconds
            if weigh:
                before = problem.state_cost(state)
                if cost - before > least:
                    continue  # it could not cost less
                then = problem.whole(state, request, gpu_type)
                if then is None:
                    continue
                cost += problem.state_cost(then) - before
            if cost < least or (cost == least and best is not None and state < best):
                least, best, best_type = cost, state, gpu_type
    return least, best, best_type


def _split(problem: PlacementProblem, nodes: NodesByState, job: Job) -> tuple[float, _Found] | None:
    """The best way to put a job on several nodes of one type, of types on which no node holds it alone.

    The roomiest nodes first, of equals the least costly; what is left goes where it costs least.
    """
    request = job.request
    several, types = spans(problem, request), problem.choices(request)
    rooms: dict[int, list[tuple[int, NodeState]]] = {}
    for state in problem.nodes if several else ():
        for gpu_type in types.get(state.kind, ()) if nodes.fresh(state) else ():
            room = state.room(request, request.units, gpu_type) if gpu_type in several else 0
            if room:
                rooms.setdefault(gpu_type, []).append((room, state))
    best: tuple[float, _Found] | None = None
    for gpu_type, options in rooms.items():
        if sum(room * nodes.fresh(state) for room, state in options) < request.units:
            continue
        cost, spots = problem.cost(job, gpu_type) - problem.weights.node, list[tuple[NodeState, int]]()
        unused = {state: nodes.fresh(state) for _, state in options}
        left = request.units
        while left:
            most = max(min(room, left) for room, state in options if unused[state])
            step = min(
                (
                    (
                        problem.state_cost(problem.after(state, request, most, gpu_type)) - problem.state_cost(state),
                        state,
                    )
                    for room, state in options
                    if unused[state] and min(room, left) == most
                ),
            )
            cost += step[0] + problem.weights.node
            spots.append((step[1], most))
            unused[step[1]] -= 1
            left -= most
        if best is None or cost < best[0]:
            best = cost, (gpu_type, spots)
    return best
