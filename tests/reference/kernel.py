"""The compiled tier placer on a view of the reference: ties among its best placements are its own affair."""

from __future__ import annotations

import numpy as np

from reference.model import Ask, Node, View
from reference.place import tier_best, tier_cost, tier_family
from slurm_rl.domain.gres import SHARINGS
from slurm_rl.kernel.arrays import ENTRY, NODE, POOL, REQUEST
from slurm_rl.kernel.catalogue import find_kernel
from slurm_rl.kernel.links import link
from slurm_rl.kernel.tables import World
from slurm_rl.place.catalogue import PLACEMENTS
from slurm_rl.place.kernels import place


def compiled_placement(nodes: list[Node], view: View, ask: Ask, placer: str) -> list[tuple[int, int]] | None:
    """What the compiled placer chooses for a request on a view."""
    count = len(nodes)
    requests, pools = np.zeros(1, dtype=REQUEST), np.zeros(1, dtype=POOL)
    for name in ("units", "per_node", "cpu", "mem", "gpu", "share"):
        requests[name] = getattr(ask, name)
    pools["last_node"] = count
    table = np.zeros(count, dtype=NODE)
    table["gpu"], table["cpu"], table["mem"] = [n.gpus for n in nodes], [n.cpus for n in nodes], [n.mem for n in nodes]
    table["klass"] = np.arange(count)
    types = list(dict.fromkeys(card.type.upper() for n in nodes for card in n.cards))
    devices = np.full((count, max([1, *(n.gpus for n in nodes)]), 4), -1, dtype=np.int64)
    for n, node in enumerate(nodes):
        for k, card in enumerate(node.cards):
            kind = types.index(card.type.upper())
            devices[n, k] = kind, card.parts, SHARINGS.index(card.sharing), kind
    names = list(dict.fromkeys(name for n in nodes for name in n.others))
    others = np.array([[n.others.get(name, 0) for name in names] for n in nodes], dtype=np.int64)
    demand = np.zeros((1, len(types) + len(names)), dtype=np.int64)
    for kind, amount in ask.exact:
        demand[0, types.index(kind.upper())] = amount
    for name, amount in ask.others:
        demand[0, len(types) + names.index(name)] = amount
    requests["chain"], requests["careful"], requests["exact"] = -1, view.used is not None, bool(ask.exact)
    requests["accept"] = sum(1 << types.index(kind) for kind in ask.accept if kind in types) if ask.accept else -1
    requests["shards"], requests["sharing"] = ask.shards, SHARINGS.index(ask.sharing)
    free = np.array([[view.cpu, view.mem, view.gpus]], dtype=np.int32).transpose(0, 2, 1)
    left = np.array([[[o.get(name, 0) for name in names] for o in view.others]], dtype=np.int32).reshape(
        1, count, len(names)
    )
    free = np.ascontiguousarray(np.concatenate([free, left.reshape(1, count, len(names))], axis=2))
    slots = max((n.gpus for n in nodes), default=0) if view.used is not None else 0
    used = np.full((1, count, slots), 1000, dtype=np.int16)
    for n in range(count if view.used is not None else 0):
        used[0, n, : nodes[n].gpus] = view.used[n]  # type: ignore[index]  # not None: told apart
        for k, card in enumerate(nodes[n].cards):  # one that is given out whole does not serve MPS
            used[0, n, k] += card.sharing == "mps" and used[0, n, k] == card.parts and not view.mps[n][k]
    world = World(
        requests=requests,
        pools=pools,
        nodes=table,
        kind_ptr=np.array([0, len(ask.nodes)]),
        kind_node=np.array(ask.nodes, dtype=np.int64),
        free=free,
        used=used,
        devices=devices,
        others=others.reshape(count, len(names)),
        demand=demand,
        speed=np.ones((1, max(len(types), 1))),
        total=np.array([[[sum(view.cpu), sum(view.mem), sum(view.gpus)]]], dtype=np.int64),
        spot=np.zeros(ask.units + 1, dtype=ENTRY),
    )
    row = PLACEMENTS[placer]
    for name, value in row.settings.items():
        world[name] = value
    for name, where in row.kernels.items():
        link(world, name, find_kernel(where))
    entries = place(world.record[0], 0, 0)
    spot = world["spot"][:entries]
    return list(zip(spot["node"].tolist(), spot["units"].tolist(), strict=True)) or None


def checked_tier(nodes: list[Node], view: View, ask: Ask) -> list[tuple[int, int]] | None:
    """The compiled choice, held to be one of the best that exhaustive search finds."""
    best = tier_best(nodes, view, ask)
    chosen = compiled_placement(nodes, view, ask, "tier")
    if best is None or chosen is None:
        assert best is chosen is None, (view, ask, chosen)
        return None
    assert sorted(chosen) in [sorted(f) for f in tier_family(view, ask)], (view, ask, chosen)
    assert tier_cost(nodes, view, ask, chosen) == best, (nodes, view, ask, chosen, best)
    return chosen
