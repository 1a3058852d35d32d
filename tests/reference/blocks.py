"""P11 as it reads: gangs inside one block, else in the fewest; and what jobs insist on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from reference.model import Ask, Node, View
from reference.place import node_by_node

Chosen = list[tuple[int, int]]


def insists(ask: Ask) -> bool:
    return ask.switches > 0 or ask.segment > 0


def on_empty_nodes(nodes: Sequence[Node], ask: Ask, members: Sequence[int]) -> list[int]:
    empty = View.empty(list(nodes), told_apart=True)
    return [empty.room(ask, n, ask.units) for n in members]


def is_wide(nodes: Sequence[Node], ask: Ask) -> bool:
    """Whether no empty node that it may use could hold all of it."""
    return (
        len({n.block for n in nodes}) > 1
        and ask.units > 1
        and max(on_empty_nodes(nodes, ask, ask.all_nodes)) < ask.units
    )


def one_type_could(nodes: Sequence[Node], ask: Ask) -> bool:
    """Whether each set of nodes that could hold it when empty has a GPU type that could alone."""
    for members in ask.sets:
        room = dict(zip(members, on_empty_nodes(nodes, ask, members), strict=True))
        if sum(room.values()) >= ask.units:
            kinds = {kind(nodes[n]) for n in members}
            if max(sum(r for n, r in room.items() if kind(nodes[n]) == k) for k in kinds) < ask.units:
                return False
    return True


def kind(node: Node) -> tuple[str, float]:
    return node.type, node.speed


def by_block(nodes: Sequence[Node], view: View, ask: Ask) -> Chosen | None:
    """The nodes of a job by P11."""
    typed = ask.on_gpus and one_type_could(nodes, ask)
    if not insists(ask) and not is_wide(nodes, ask):
        if not typed:
            return node_by_node(view, ask, emptiest=False)
        holds = [n for n in ask.nodes if view.room(ask, n, ask.units) == ask.units]
        if holds:
            idle = {b: sum(view.gpus[n] for n in ask.nodes if nodes[n].block == b) for b in {n.block for n in nodes}}
            best = min(holds, key=lambda n: (-nodes[n].speed, view.gpus[n], idle[nodes[n].block], n))
            return [(best, ask.units)]
    options = []
    for k in dict.fromkeys(kind(nodes[n]) for n in ask.nodes) if typed else (None,):
        mine = [n for n in ask.nodes if k in (None, kind(nodes[n]))]
        room = {n: view.room(ask, n, ask.units) for n in mine}
        blocks: dict[str, list[int]] = {}
        for n in mine:
            blocks.setdefault(nodes[n].block, []).append(n)
        size = {b: segments(ask, sum(room[n] for n in inside)) for b, inside in blocks.items()}
        if sum(size.values()) < ask.units:
            continue
        holding = [b for b, s in size.items() if s >= ask.units]
        fewest = next(
            count
            for count in range(1, len(size) + 1)
            if any(sum(size[b] for b in some) >= ask.units for some in itertools.combinations(size, count))
        )
        if ask.switches and fewest > ask.switches:
            continue
        slow = 1.0 if holding else min(nodes[n].span for n in mine if room[n])
        speed = k[1] if k else 1.0
        spare = min(size[b] for b in holding) if holding else 0
        options.append((1.0 / (speed * slow), not holding, spare, len(options), blocks, size, room))
    if not options:
        return None
    *_, blocks, size, room = min(options, key=lambda o: o[:4])
    return from_blocks(view, ask, blocks, size, room)


def segments(ask: Ask, units: int) -> int:
    return units // ask.segment * ask.segment if ask.segment else units


def from_blocks(
    view: View, ask: Ask, blocks: dict[str, list[int]], size: dict[str, int], room: dict[int, int]
) -> Chosen:
    """The tightest block that holds all that is left, else the roomiest; of a block the fullest nodes."""
    left, chosen = ask.units, []
    names = [b for b in blocks if size[b]]
    while left:
        holding = [b for b in names if size[b] >= left]
        block = min(holding, key=size.__getitem__) if holding else max(names, key=size.__getitem__)
        names.remove(block)
        here = min(left, size[block])
        left -= here
        inside = list(blocks[block])
        while here:
            best = min(inside, key=lambda n: (-min(room[n], here), view.gpus[n], view.cpu[n], n))
            inside.remove(best)
            chosen.append((best, min(room[best], here)))
            here -= chosen[-1][1]
    return chosen
