"""P4: the tier placer finds the best placement of its family: held to exhaustive search on small clusters."""

from __future__ import annotations

import random

from reference.kernel import checked_tier, compiled_placement
from reference.model import Ask, Card, Node, View

CASES = 4000


def a_node(gpus: int) -> Node:
    return Node(8, 100, (Card("", 1.0),) * gpus, "", 1.0, ("batch",))


def a_view(nodes: list[Node], cpus: list[int], gpus: list[int]) -> View:
    """So many CPUs and GPUs are free on each node, and nothing else is asked for."""
    return View(nodes, cpus, [100] * len(nodes), gpus, [{} for _ in nodes])


def a_state(seed: int) -> tuple[list[Node], View, Ask]:
    """A few nodes, some GPUs of each in use, and a request for up to a dozen units."""
    rng = random.Random(seed)
    sizes = rng.choice(((1, 2, 3, 4, 8), (4, 8), (8,)))
    nodes = [a_node(rng.choice(sizes)) for _ in range(rng.randint(2, 7))]
    cpus = [rng.randint(1, 8) if rng.random() < 0.3 else 8 for _ in nodes]
    view = a_view(nodes, cpus, [rng.randint(0, n.gpus) for n in nodes])
    units = rng.randint(1, 12)
    per_node, cpu, gpu = rng.choice((units, units, 1, 2, 3)), rng.choice((0, 0, 1)), rng.choice((1, 1, 1, 2))
    return nodes, view, Ask(units, per_node, cpu, 0, gpu, 0, tuple(range(len(nodes))), 0, 1.0)


def test_no_placement_of_the_family_is_better() -> None:
    placed = 0
    for seed in range(CASES):
        placed += checked_tier(*a_state(seed)) is not None
    assert placed > CASES / 4


def test_one_more_node_if_that_leaves_fewer_nodes_partly_used() -> None:
    # Six GPUs at most three a node: nodes 1 and 2 are enough, but then node 0 stays partly used; on all three, with
    # one GPU on node 1 which is partly used anyway, there is one such node less.
    nodes = [a_node(gpus) for gpus in (4, 8, 3)]
    view = a_view(nodes, [8] * 3, [2, 4, 3])
    ask = Ask(6, 3, 0, 0, 1, 0, (0, 1, 2), 0, 6.0)
    assert compiled_placement(nodes, view, ask, "tier") == [(0, 2), (1, 1), (2, 3)]


def test_fewest_nodes_unless_one_more_tidies_up() -> None:
    nodes = [a_node(8) for _ in range(3)]

    def choice(free: list[int], gpus: int) -> list[tuple[int, int]] | None:
        ask = Ask(gpus, gpus, 0, 0, 1, 0, (0, 1, 2), 0, gpus)
        return compiled_placement(nodes, a_view(nodes, [8] * 3, free), ask, "tier")

    assert choice([8, 8, 8], 12) == [(0, 8), (1, 4)]
    assert choice([8, 4, 6], 4) == [(1, 4)]  # fills up a node that is partly used
    assert choice([4, 8, 4], 8) == [(0, 4), (2, 4)]  # two nodes filled up instead of a fresh one taken
