"""Units of a request that empty nodes hold: jobs that can never run, and the GPU types a job fits on."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.arrays import GPU_MILLI, NAME, PARTS, SHARING, TYPE, Array


def room_on_nodes(request: np.void, nodes: Array) -> Array:
    """Units of a plain request on each of these empty nodes."""
    room = np.full(len(nodes), min(int(request["per_node"]), int(request["units"])), dtype=np.int64)
    for field in ("cpu", "mem", "gpu"):
        if request[field] > 0:
            room = np.minimum(room, nodes[field] // request[field])
    if request["share"] > 0:
        room = np.minimum(room, nodes["gpu"] * (GPU_MILLI // int(request["share"])))
    return room


def need_of(request: np.void, parts: int) -> int:
    """Parts of a GPU that a unit of a shared request takes where a GPU has so many."""
    shards = int(request["shards"])
    return shards if shards else -(-int(request["share"]) * parts // GPU_MILLI)


def room_of_class(
    request: np.void, demand: Array, node: np.void, devices: Array, others: Array, types: int, only: int = -1
) -> int:
    """Units of a request on one empty node of a class, looking at each of its GPUs; `only` one type counts."""
    room = min(int(request["per_node"]), int(request["units"]))
    for field in ("cpu", "mem"):
        if request[field] > 0:
            room = min(room, int(node[field]) // int(request[field]))
    mask = int(request["accept"])
    there = devices[devices[:, TYPE] >= 0]
    mine = there[[(mask >> int(t) & 1) == 1 and only in (-1, int(t)) for t in there[:, TYPE]]]
    if request["share"] > 0:
        code = int(request["sharing"])
        parts = [int(d[PARTS]) for d in mine if not code or int(d[SHARING]) == code]
        room = min(room, sum(p // need_of(request, p) for p in parts))
    elif request["exact"]:
        for t in range(types):
            if demand[t] > 0:
                room = min(room, int((there[:, NAME] == t).sum()) // int(demand[t]))
    elif request["gpu"] > 0:
        room = min(room, len(mine) // int(request["gpu"]))
    if len(demand):
        for g in range(others.shape[0]):
            if demand[types + g] > 0:
                room = min(room, int(others[g]) // int(demand[types + g]))
    return room


class Fitting:
    """Rooms of requests on sets of empty nodes."""

    def __init__(self, requests: Array, nodes: Array, demand: Array, devices: Array, others: Array, types: int) -> None:
        self.requests, self.nodes, self.demand = requests, nodes, demand
        self.devices, self.others, self.types = devices, others, types
        _, self._example = np.unique(nodes["klass"], return_index=True)  # a node of each class
        self._members: dict[int, tuple[Array, Array]] = {}
        types_of = [set(row[row >= 0].tolist()) for row in devices[:, :, TYPE]]
        self._simple = all(len(found) < 2 for found in types_of) and not devices[:, :, SHARING].any()

    def room(self, s: int, members: Array) -> tuple[int, Array]:
        """Units of a request on these nodes: in all, and by GPU type, each alone."""
        if id(members) not in self._members:
            self._members[id(members)] = members, self.nodes[members]
        mine = self._members[id(members)][1]
        request = self.requests[s]
        if not request["careful"] or (self._simple and self._plain(s)):
            each = room_on_nodes(request, mine)
            return int(each.sum()), np.bincount(mine["type"], weights=each, minlength=self.types)
        whole = int(self._by_class(s, -1)[mine["klass"]].sum())
        if request["exact"]:
            return whole, np.zeros(self.types)
        return whole, np.array([self._by_class(s, t)[mine["klass"]].sum() for t in range(self.types)])

    def on_one(self, s: int, members: Array) -> int:
        """Units of a request on the one of these nodes that holds most."""
        if not len(members):
            return 0
        mine = self.nodes[members]
        if not self.requests[s]["careful"] or (self._simple and self._plain(s)):
            return int(room_on_nodes(self.requests[s], mine).max())
        return int(self._by_class(s, -1)[np.unique(mine["klass"])].max())

    def _plain(self, s: int) -> bool:
        """Whether a careful request asks for nothing but a fraction of a GPU."""
        request = self.requests[s]
        others = len(self.demand) > 0 and bool(self.demand[s].any())
        return not (request["shards"] or request["exclusive"] or others)

    def _by_class(self, s: int, only: int) -> Array:
        demand = self.demand[s] if len(self.demand) else self.demand.reshape(-1)
        rooms = np.zeros(len(self.devices), dtype=np.int64)
        for n in self._example.tolist():
            c = int(self.nodes["klass"][n])
            rooms[c] = room_of_class(
                self.requests[s], demand, self.nodes[n], self.devices[c], self.others[c], self.types, only
            )
        return rooms
