"""GRES, features and node lists of a live site: the nodes' amounts, their use, and the nodes of each job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from slurm_rl.domain.cluster import Gres
from slurm_rl.domain.constraint import names_in, parse_constraint
from slurm_rl.domain.gres import MPS, SHARINGS, parse_request
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import OTHER, PARTS, SHARING, TYPE, Array
from slurm_rl.kernel.build import Workload
from slurm_rl.kernel.tables import World
from slurm_rl.slurm.gres import SHARED, WHOLE, plain
from slurm_rl.slurm.model import SlurmJob, SlurmNode


class NamedFeatures:
    """Features and lists of nodes that waiting jobs name; a list counts as a feature of the nodes that it allows."""

    def __init__(self, waiting: Sequence[SlurmJob]) -> None:
        texts = {j.features for j in waiting} | {j.prefer for j in waiting}
        self.features = {n for text in texts if text for n in names_in(text)}
        excluded = dict.fromkeys(frozenset(j.excluded_nodes) for j in waiting if j.excluded_nodes)
        listed = dict.fromkeys(frozenset(j.required_nodes) for j in waiting if j.required_nodes)
        self._excluded = {names: f"@not{i}" for i, names in enumerate(excluded)}
        self._listed = {names: f"@in{i}" for i, names in enumerate(listed)}
        self.named = (frozenset(self.features), tuple(self._excluded), tuple(self._listed))

    def of_node(self, node: SlurmNode) -> tuple[str, ...]:
        """Features of a node that matter to some job."""
        own = [f for f in node.features if f in self.features]
        own += [word for names, word in self._excluded.items() if node.name not in names]
        return (*own, *(word for names, word in self._listed.items() if node.name in names))

    def constraint(self, job: SlurmJob) -> str:
        """What a waiting job asks of its nodes, as `parse_constraint` reads it; "" for nothing."""
        words = []
        if job.excluded_nodes:
            words.append(self._excluded[frozenset(job.excluded_nodes)])
        if job.required_nodes:
            words.append(self._listed[frozenset(job.required_nodes)])
        return f"{','.join(words)};{job.features}" if words else job.features


def gres_of(node: SlurmNode) -> Gres:
    """All kinds that a node has; nothing where it has GPUs of one type alone."""
    has = node.gres or {f"gpu:{kind}" if kind else "gpu": count for kind, count in node.gpus.items()}
    return () if plain(has) else tuple(has.items())


def not_understood(job: SlurmJob, features: AbstractSet[str]) -> str:
    """Why a waiting job's request cannot be planned with; "" if it can. `features` are those that some node has."""
    if job.not_understood:
        return job.not_understood
    try:
        parse_constraint(job.features)
    except InputError as error:
        return error.message
    unknown = sorted(names_in(job.features) - features) if features and job.features else []
    if unknown:
        return f"requests the feature {unknown[0]!r}, which no node has"
    if job.required_nodes and job.nodes > len(set(job.required_nodes)):
        return "names fewer nodes than it needs (--nodelist), which is not understood"
    return ""


def fill_devices(world: World, wl: Workload, members: Sequence[SlurmNode], jobs: Sequence[SlurmJob]) -> None:
    """Which GPUs are in use, and by whom, as far as Slurm tells: where GPUs are told apart.

    Slurm says how many of each type are in use on a node, and since 23.02 how much of each shared GPU. Whose they are
    follows from what the running jobs asked for: those that named a type first. What nobody is known to hold stays in
    use.
    """
    holders: dict[int, list[tuple[SlurmJob, int, int]]] = {}  # node -> job, its row among requests, its entry
    entries, live = world["entries"], world["live"]
    for i, job in enumerate(jobs):
        at = int(live["held"][i]) if job.running else 0
        while at > 0:
            row = int(wl.jobs["request"][i])
            holders.setdefault(int(entries["node"][at]), []).append((job, row, at))
            at = int(entries["next"][at])
    for n, number in enumerate(wl.node_number.tolist()):
        node = members[number]
        devices = wl.devices[wl.node_class[n]]
        there = devices[:, TYPE] >= 0
        if not node.usable:
            world["used"][:, n, there] = devices[there, PARTS]
            continue
        used = _Used(node, devices, wl.type_names)
        for job, row, at in sorted(holders.get(n, ()), key=lambda h: not any(h[0].gpus)):
            entries["gpus"][at] = used.hold(job, wl.requests[row], int(entries["units"][at]))
        world["used"][:, n, there] = used.rest()[there]
        world["free"][:, n, 2] = int((used.parts[there] == 0).sum())
        for g, name in enumerate(wl.other_names):
            kind = node.gres.get(name, 0) - node.gres_allocated.get(name, 0)
            world["free"][:, n, OTHER + g] = max(kind, 0)


class _Used:
    """The GPUs of one node, given to its jobs one by one until all that is in use has an owner."""

    def __init__(self, node: SlurmNode, devices: Array, type_names: Sequence[str]) -> None:
        self.devices = devices
        # What a GPU counts that is given out whole: see `_need` in place/on_devices.py.
        self.everything = devices[:, PARTS] + (devices[:, SHARING] == MPS)
        self.names = [type_names[t].lower() if t >= 0 else "" for t in devices[:, TYPE].tolist()]
        self.parts = np.zeros(len(devices), dtype=np.int64)  # in use, as far as owners are known
        self.whole = Counter({kind.lower(): count for kind, count in node.gpus_allocated.items()})
        self.shared = np.zeros(len(devices), dtype=np.int64)  # parts in use, as Slurm says
        self.open = np.zeros(len(devices), dtype=bool)  # shared, how much is not known
        self.taken = np.zeros(len(devices), dtype=bool)  # given out whole, as Slurm says
        for code, sharing in enumerate(SHARINGS[1:], start=1):
            mine = np.flatnonzero(devices[:, SHARING] == code)
            listed = node.shared.get(sharing, ())
            for k, amount in zip(mine.tolist(), listed, strict=False):
                self.taken[k] = amount == WHOLE
                self.shared[k] = max(amount, 0) if node.shared_known else 0
                self.open[k] = amount == SHARED

    def _free_whole(self, k: int) -> bool:
        return bool(self.devices[k, TYPE] >= 0 and self.parts[k] == 0 and self.shared[k] == 0 and not self.open[k])

    def hold(self, job: SlurmJob, request: np.void, units: int) -> int:
        """GPUs that a job holds here, as bits."""
        if request["exclusive"]:
            mask = sum(1 << k for k in range(len(self.names)) if self.devices[k, TYPE] >= 0)
            self.parts = np.where(self.devices[:, TYPE] >= 0, self.everything, 0)
            self.whole.clear()
            return mask
        if request["share"] > 0:
            return self._share(request)
        asked = parse_request(job.gres) if job.gres else None
        wanted = Counter(dict(asked.types)) if asked else Counter({t: c for t, c in job.gpus.items() if t})
        wanted = Counter({kind.lower(): count for kind, count in wanted.items()})
        left, mask = units * int(request["gpu"]), 0
        order = sorted(range(len(self.names)), key=lambda k: (not self.taken[k], k))
        for k in order:
            name = self.names[k]
            if left and self._free_whole(k) and self.whole[name] > 0 and (not wanted or wanted[name] > 0):
                self.parts[k] = self.everything[k]
                self.whole[name] -= 1
                if asked is not None:
                    wanted[name] -= bool(wanted)
                left -= 1
                mask |= 1 << k
        return mask

    def _share(self, request: np.void) -> int:
        need, best, least = int(request["shards"]), -1, 1 << 30
        for k in range(len(self.names)):
            limit = self.devices[k, PARTS] if self.open[k] else self.shared[k]
            left = int(limit - self.parts[k])
            if self.devices[k, SHARING] == request["sharing"] and left >= need > 0 and left < least:
                best, least = k, left
        if best < 0:
            return 0
        self.parts[best] += need
        return 1 << best

    def rest(self) -> Array:
        """Parts in use of each GPU, those without a known owner included."""
        for k in sorted(range(len(self.names)), key=lambda k: (not self.taken[k], k)):
            if self._free_whole(k) and self.whole[self.names[k]] > 0:
                self.parts[k] = self.everything[k]
                self.whole[self.names[k]] -= 1
        self.parts = np.maximum(self.parts, self.shared)
        # Shared by somebody whom we do not see: nobody else is planned onto it.
        hidden = self.open & (self.parts == 0)
        self.parts[hidden] = self.devices[hidden, PARTS]
        return self.parts
