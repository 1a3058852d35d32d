"""Places jobs one by one in their order, each where it costs least at that moment."""

from __future__ import annotations

import math

from slurm_rl.place.problem import Job, Node, NodeState, PlacementProblem, Where, spans


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
        spots = _best(problem, nodes, job)
        if spots is None:
            continue
        taken: list[tuple[Node, int]] = []
        for state, units in spots:
            taken.append((nodes.take(state) if len(spots) == 1 else nodes.take_fresh(state), units))
        for (node, units), (state, _) in zip(taken, spots, strict=True):
            nodes.put(problem.after(state, job.request, units), node)
        where[rank] = tuple(taken)
    return where


def _best(problem: PlacementProblem, nodes: NodesByState, job: Job) -> list[tuple[NodeState, int]] | None:
    """The states of the nodes that the job takes, with its units on each."""
    request = job.request
    least, best = _on_one_node(problem, nodes, job) if request.per_node >= request.units else (math.inf, None)
    spots = [(best, request.units)] if best else None
    if request.units > 1:
        split = _split(problem, nodes, job)
        if split is not None and split[0] < least:
            spots = split[1]
    return spots


def _on_one_node(problem: PlacementProblem, nodes: NodesByState, job: Job) -> tuple[float, NodeState | None]:
    """The state of the node on which the whole job costs least; of equals, the first in the states' own order."""
    request = job.request
    gpus, cpus, mem = request.units * request.gpu, request.units * request.cpu, request.units * request.mem
    costs = {k: problem.cost(job, problem.kinds[k].gpu_type) for k in request.kinds}
    least, best = math.inf, None
    weigh = problem.mix or request.share  # otherwise what is free says it all
    for state in nodes.states():  # this loop is what greedy's time goes into
        kind, free, free_cpus, free_mem, _ = state
        if free < gpus or free_cpus < cpus or free_mem < mem or kind not in costs:
            continue
        cost = costs[kind]
        if weigh:
            before = problem.state_cost(state)
            if cost - before > least:
                continue  # it could not cost less
            then = problem.whole(state, request)
            if then is None:
                continue
            cost += problem.state_cost(then) - before
        if cost < least or (cost == least and best is not None and state < best):
            least, best = cost, state
    return least, best


def _split(
    problem: PlacementProblem, nodes: NodesByState, job: Job
) -> tuple[float, list[tuple[NodeState, int]]] | None:
    """The best way to put a job on several nodes of one type, of types on which no node holds it alone.

    The roomiest nodes first, of equals the least costly; what is left goes where it costs least.
    """
    request = job.request
    several = spans(problem, request)
    rooms: dict[int, list[tuple[int, NodeState]]] = {}
    for state in problem.nodes if several else ():
        gpu_type = problem.kinds[state.kind].gpu_type
        if gpu_type in several and state.kind in request.kinds and nodes.fresh(state):
            room = state.room(request, request.units)
            if room:
                rooms.setdefault(gpu_type, []).append((room, state))
    best: tuple[float, list[tuple[NodeState, int]]] | None = None
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
                    (problem.state_cost(problem.after(state, request, most)) - problem.state_cost(state), state)
                    for room, state in options
                    if unused[state] and min(room, left) == most
                ),
            )
            cost += step[0] + problem.weights.node
            spots.append((step[1], most))
            unused[step[1]] -= 1
            left -= most
        if best is None or cost < best[0]:
            best = cost, spots
    return best
