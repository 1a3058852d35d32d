"""The placement problem as a mixed-integer programme: the only importer of `mip`.

Nodes flow through states. `put[s, g, t]` is how many jobs of group g are put on GPUs of type t of a node in state s,
which moves the node to the state without what the job takes; `span[h, s, u, t]` is how many nodes in first state s give
u units of type t to the job h that takes several nodes; `rest[s]` is how many nodes end in state s, which is where the
cost of free GPUs that are of no use is counted. Nodes of one state are one variable, and so are jobs that ask for the
same and cost the same: a thousand nodes make no larger a model than ten.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from slurm_rl.errors import EnvironmentMissing, unknown_name
from slurm_rl.place.greedy import NodesByState, place_greedily
from slurm_rl.place.problem import Job, Node, NodeState, PlacementProblem, Request, Spot, Where, evaluate, spans

SOLVERS = {"cbc": "CBC", "highs": "HIGHS"}
SMALL = 24  # states of nodes up to which a problem is solved with all of them
MAX_STATES = 4000
_SOLVING = 0.85  # of the time, building included
_BRANCHES = 500  # a limit that, other than the time, is the same on every machine


@dataclass(frozen=True, slots=True)
class Solution:
    """A placement, how good it is, and how it came about."""

    where: dict[int, Where]  # jobs by their place in the order; the others are not placed
    cost: float  # of the objective, in seconds; each start counts negatively
    bound: float  # no placement costs less
    gap: float  # what may be left to gain, as a share of the seconds that the placement costs
    is_optimal: bool  # within the gap asked for
    elapsed: float
    winner: str  # "greedy" or the solver
    note: str = ""  # why the solver's answer was not used


@dataclass(slots=True)
class _Group:
    """Jobs that ask for the same at the same cost, in order."""

    ranks: list[int]
    job: Job
    spans: frozenset[int]  # GPU types on which it would take several nodes


class Answer(NamedTuple):
    """What a solver says."""

    where: dict[int, Where] | None
    bound: float | None
    note: str = ""  # why there is no placement


def solve(
    problem: PlacementProblem,
    *,
    seconds: float = 1.0,
    gap: float = 0.01,
    solver: str = "cbc",
    ask: Callable[[PlacementProblem, dict[int, Where], str, float, float], Answer] | None = None,
) -> Solution:
    """The better of greedy and solver within the time; a solver that fails leaves greedy's answer, and a note.

    `ask` is how the solver is asked: here by default, or in a process of its own (`slurm_rl.place.solver_process`).
    """
    ask = ask or ask_solver
    if solver not in SOLVERS:
        raise unknown_name("solver", solver, SOLVERS)
    began = time.perf_counter()
    where = place_greedily(problem)
    cost = evaluate(problem, where)
    paid = cost + sum(problem.values[rank] for rank in where)  # seconds, without what starts are worth
    bound = lower_bound(problem)

    def made(winner: str, note: str = "") -> Solution:
        spent = max(abs(paid), 1e-9)
        left = max(cost - bound, 0.0)
        optimal = left <= gap * spent + 1e-6
        return Solution(where, cost, bound, left / spent, optimal, time.perf_counter() - began, winner, note)

    if cost - bound <= gap * abs(paid) + 1e-9 or not problem.jobs:
        return made("greedy")
    # Some of the time is kept for reading the answer back, and for solvers that seldom look at the clock.
    left_over = _SOLVING * seconds - (time.perf_counter() - began)
    try:
        answer = ask(problem, where, solver, left_over, gap * abs(paid))
    except EnvironmentMissing:
        raise
    except Exception as error:  # whatever breaks within a solver must not break scheduling
        return made("greedy", f"{solver} failed: {type(error).__name__}: {error}")
    if answer.bound is not None:
        bound = max(bound, answer.bound)
    if answer.where is None:
        return made("greedy", answer.note)
    found_cost = evaluate(problem, answer.where)
    if found_cost < cost - 1e-9:
        where, cost = answer.where, found_cost
        paid = cost + sum(problem.values[rank] for rank in where)
        return made(solver)
    return made("greedy")


def ask_solver(problem: PlacementProblem, where: dict[int, Where], solver: str, seconds: float, gap: float) -> Answer:
    """Builds the model, with greedy's answer as a start, and solves it; `gap` in seconds of the objective."""
    import_solvers()  # once in a process, and not at the cost of the first question's time
    began = time.perf_counter()
    try:
        model = _Model(problem, where, solver)
    except _TooLarge as error:
        return Answer(None, None, str(error))
    left = seconds - (time.perf_counter() - began)
    if left <= 0.0:
        return Answer(None, None, f"no time was left for {solver} when the model was built")
    status = model.run(left, gap)
    if not model.solved:
        return Answer(None, model.bound, f"{solver} found no solution: {status}")
    return Answer(model.placement(), model.bound)


def lower_bound(problem: PlacementProblem) -> float:
    """Every job where it would cost least were it alone: no placement costs less, and greedy often meets it."""
    if len(problem.jobs) == 1 and not spans(problem, problem.jobs[0].request):
        return evaluate(problem, place_greedily(problem))  # one job on one node: greedy has looked at every choice
    total = 0.0
    requests: dict[tuple[Request, tuple[float, ...]], float | None] = {}
    for rank, job in enumerate(problem.jobs):
        key = (job.request, job.seconds)
        if key not in requests:
            possible = set(spans(problem, job.request))
            types = problem.choices(job.request)
            possible |= {
                gpu_type
                for s in problem.nodes
                for gpu_type in types.get(s.kind, ())
                if problem.whole(s, job.request, gpu_type) is not None
            }
            # The most that a job can save on one node: what the node cost before.
            nodes = job.request.units if spans(problem, job.request) else 1
            requests[key] = min((problem.cost(job, k) - problem.relief[k] * nodes for k in possible), default=None)
        least = requests[key]
        if least is not None:
            total += min(least - problem.values[rank], 0.0)
    return total


def candidates(problem: PlacementProblem) -> dict[NodeState, int]:
    """The nodes that the model looks at: for each request, as many as there are jobs of its size, the best first.

    A small problem keeps all of its nodes.
    """
    if len(problem.nodes) <= SMALL:
        return dict(problem.nodes)
    alike: dict[tuple[int, Request], int] = {}
    size: dict[float, int] = {}
    for job in problem.jobs:
        request = job.request
        size[request.gpus] = size.get(request.gpus, 0) + 1
        for kind in request.kinds:
            alike[kind, request] = alike.get((kind, request), 0) + 1
    by_kind: dict[int, list[NodeState]] = {}
    for state in problem.nodes:
        by_kind.setdefault(state.kind, []).append(state)
    kept: set[NodeState] = set()
    choices = [(key, t, jobs) for key, jobs in alike.items() for t in problem.choices(key[1])[key[0]]]
    for (kind, request), gpu_type, jobs in choices:
        fits = []
        parts = []
        for state in by_kind.get(kind, ()):
            after = problem.whole(state, request, gpu_type)
            if after is not None:
                fits.append((problem.state_cost(after) - problem.state_cost(state), state.idle_gpus, state))
            elif request.units > 1:
                parts.append((-state.room(request, request.units, gpu_type), state.idle_gpus, state))
        wanted = size[request.gpus] if fits else jobs * request.units + 1
        for first, _, state in sorted(fits or parts):
            kept.add(state)
            wanted -= problem.nodes[state] if fits else -int(first) * problem.nodes[state]
            if wanted <= 0:
                break
    return {state: count for state, count in problem.nodes.items() if state in kept}


class _TooLarge(Exception):
    """The batch has too many different requests for a model."""


class _Model:
    def __init__(self, problem: PlacementProblem, start: dict[int, Where], solver: str) -> None:
        self.mip = import_solvers()
        self.problem = problem
        self.bound: float | None = None
        self.solved = False
        self.nodes = candidates(problem) | {s.node[0]: problem.nodes[s.node[0]] for w in start.values() for s in w}
        self.groups = _groups(problem)
        try:
            self.model = self.mip.Model(solver_name=SOLVERS[solver])
        except (FileNotFoundError, ModuleNotFoundError, NameError) as error:
            raise EnvironmentMissing(
                f"solver {solver} is not installed: pip install 'mip[highs]', or use cbc"
            ) from error
        self.model.verbose = 0
        self.model.threads = 1
        self.put: dict[tuple[NodeState, int, int], Any] = {}
        self.span: dict[tuple[int, NodeState, int, int], Any] = {}
        self.then: dict[tuple[NodeState, int, int], NodeState] = {}
        self._build(start)
        self.model.start = self._start(start)

    def _start(self, where: dict[int, Where]) -> list[tuple[Any, float]]:
        """Greedy's answer as values of the variables."""
        count: dict[Any, int] = {}
        group_of = {rank: g for g, group in enumerate(self.groups) for rank in group.ranks}
        now: dict[Node, NodeState] = {}
        for rank in sorted(where):
            g, request = group_of[rank], self.problem.jobs[rank].request
            for node, units, gpu_type in where[rank]:
                state = now.get(node, node[0])
                now[node] = self.problem.after(state, request, units, gpu_type)
                if len(where[rank]) > 1:
                    name = self.span[g, state, units, gpu_type]
                else:
                    name = self.put[state, g, gpu_type]
                count[name] = count.get(name, 0) + 1
        whole = [*self.put.values(), *self.span.values()]
        return [(name, float(count.get(name, 0))) for name in whole]

    def _build(self, start: dict[int, Where]) -> None:
        problem, model, xsum = self.problem, self.model, self.mip.xsum
        into: dict[NodeState, list[Any]] = {}
        out: dict[NodeState, list[Any]] = {}
        placed: dict[int, list[Any]] = {g: [] for g in range(len(self.groups))}
        known = dict.fromkeys(self.nodes)
        self.constant = sum(problem.state_cost(state) * count for state, count in self.nodes.items())

        # 1. Jobs on several nodes take them as they are at first.
        for g, group in enumerate(self.groups):
            request = group.job.request
            by_type: dict[int, list[tuple[int, Any]]] = {}
            types = problem.choices(request)
            choices = [(s, t) for s in self.nodes for t in types.get(s.kind, ()) if t in group.spans]
            for state, gpu_type in choices:
                for units in range(1, state.room(request, request.units, gpu_type) + 1):
                    most = min(self.nodes[state], request.units // units)
                    name = model.add_var(var_type="I", ub=most, obj=problem.weights.node)
                    self.span[g, state, units, gpu_type] = name
                    out.setdefault(state, []).append(name)
                    after = problem.after(state, request, units, gpu_type)
                    known.setdefault(after)
                    into.setdefault(after, []).append(name)
                    by_type.setdefault(gpu_type, []).append((units, name))
            for gpu_type, parts in by_type.items():
                # `node` counts nodes beyond the first.
                on = model.add_var(var_type="B", obj=problem.cost(group.job, gpu_type) - problem.weights.node)
                model.add_constr(xsum(units * name for units, name in parts) == request.units * on)
                placed[g].append(on)

        # 2. Jobs on one node, whatever state the node is in by then; new states are found on the way.
        frontier = list(known)
        asked = [problem.choices(group.job.request) for group in self.groups]
        while frontier:
            state = frontier.pop()
            moves = [(g, t) for g, types in enumerate(asked) for t in types.get(state.kind, ())]
            for g, gpu_type in moves:
                group = self.groups[g]
                full = problem.whole(state, group.job.request, gpu_type)
                if full is None:
                    continue
                name = model.add_var(var_type="I", ub=len(group.ranks), obj=problem.cost(group.job, gpu_type))
                self.put[state, g, gpu_type] = name
                self.then[state, g, gpu_type] = full
                out.setdefault(state, []).append(name)
                into.setdefault(full, []).append(name)
                placed[g].append(name)
                if full not in known:
                    known[full] = None
                    frontier.append(full)
                    if len(known) > MAX_STATES:
                        raise _TooLarge(f"more than {MAX_STATES} states of nodes")

        # 3. Every node ends in some state, and costs what that state costs.
        for state in known:
            rest = model.add_var(lb=0.0, obj=problem.state_cost(state))
            comes = xsum(into.get(state, []))
            model.add_constr(comes - xsum(out.get(state, [])) - rest == -self.nodes.get(state, 0))
        for state in self.nodes:
            spans = [v for (_, s, _, _), v in self.span.items() if s == state]
            if spans:
                model.add_constr(xsum(spans) <= self.nodes[state])

        # 4. No more starts than jobs, the earlier ones first, and none fewer than greedy has: order is not ours.
        for g, group in enumerate(self.groups):
            if not placed[g]:
                continue
            forced = sum(rank in start for rank in group.ranks)
            worth = [model.add_var(lb=0.0, ub=1.0, obj=-problem.values[rank]) for rank in group.ranks]
            model.add_constr(xsum(placed[g]) == xsum(worth))
            if forced:
                model.add_constr(xsum(placed[g]) >= forced)

    def run(self, seconds: float, gap: float) -> str:
        """Solves; the status in the solver's words."""
        self.model.max_mip_gap_abs = max(gap, 1e-6)
        self.model.max_mip_gap = 1e-9
        status = self.model.optimize(max_seconds=seconds, max_nodes=_BRANCHES)
        self.solved = self.model.num_solutions > 0
        bound = self.model.objective_bound
        if bound is not None and math.isfinite(bound) and self.solved:
            # CBC may report objective and bound shifted alike where it has presolved everything: count it ourselves.
            counted = sum(v.obj * v.x for v in self.model.vars)
            self.bound = float(bound) + counted - float(self.model.objective_value) - self.constant
        return str(status.name)

    def placement(self) -> dict[int, Where]:
        """Reads the answer back: which node gets which jobs."""
        problem, nodes = self.problem, NodesByState(self.problem)
        waiting = {g: iter(group.ranks) for g, group in enumerate(self.groups)}
        where: dict[int, Where] = {}
        spans: dict[int, list[tuple[NodeState, int, int]]] = {}
        for (g, state, units, gpu_type), name in self.span.items():
            spans.setdefault(g, []).extend([(state, units, gpu_type)] * round(name.x))
        for g, spots in spans.items():
            if spots:
                taken = [Spot(nodes.take_fresh(state), units, gpu_type) for state, units, gpu_type in spots]
                where[next(waiting[g])] = tuple(taken)
                for node, units, gpu_type in taken:
                    nodes.put(problem.after(node[0], self.groups[g].job.request, units, gpu_type), node)
        # Every move leaves less free: from the fullest states down, all that comes in has come.
        for (state, g, gpu_type), name in sorted(self.put.items(), key=lambda item: _freest_first(item[0][0])):
            for _ in range(round(name.x)):
                node = nodes.take(state)
                where[next(waiting[g])] = (Spot(node, self.groups[g].job.request.units, gpu_type),)
                nodes.put(self.then[state, g, gpu_type], node)
        return where


def _freest_first(state: NodeState) -> tuple[float, int, int]:
    return -state.idle_gpus, -state.cpu, -state.mem


def _groups(problem: PlacementProblem) -> list[_Group]:
    """Jobs by request and cost; a job that would take several nodes somewhere stands alone."""
    groups: list[_Group] = []
    index: dict[tuple[Request, tuple[float, ...]], int] = {}
    for rank, job in enumerate(problem.jobs):
        key = (job.request, job.seconds)
        at = index.get(key)
        if at is not None:
            groups[at].ranks.append(rank)
            continue
        group = _Group([rank], job, spans(problem, job.request))
        if not group.spans:
            index[key] = len(groups)
        groups.append(group)
    return groups


def import_solvers() -> Any:
    """The module `mip`; EnvironmentMissing where it is not installed."""
    try:
        with _quiet():
            import mip
    except ImportError as error:
        raise EnvironmentMissing("python-mip is not installed: pip install 'slurm-rl[mip]'") from error
    return mip


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """mip's module prints when an optional solver is absent."""
    import io

    with contextlib.redirect_stdout(io.StringIO()):
        yield
