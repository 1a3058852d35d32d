"""Clusters and requests as the reference sees them: plain objects, no arrays, no caches."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from builders import Job

from slurm_rl.domain.cluster import Cluster, NodeClass

UNLIMITED, UNLIMITED_MB = 2**20 - 1, 2**30  # of a node whose class leaves its CPUs or memory blank
WHOLE = 1000  # thousandths of a GPU


@dataclass(frozen=True)
class Card:
    """A GPU or a slice of one: its type and speed, and into how many parts it may be shared, in which way."""

    type: str
    speed: float
    parts: int = WHOLE
    sharing: str = ""


@dataclass(frozen=True)
class Node:
    """A node; its number is its place in the cluster file."""

    cpus: int
    mem: int  # MB
    cards: tuple[Card, ...]
    type: str
    speed: float
    partitions: tuple[str, ...]
    others: dict[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    block: str = ""
    span: float = 1.0

    @property
    def gpus(self) -> int:
        return len(self.cards)


@dataclass(frozen=True)
class Ask:
    """A request: `units` equal units, at most `per_node` of them on one node of `nodes`.

    All nodes of a job are in one of the `sets`, which are tried in order; `nodes` are all of them.
    """

    units: int
    per_node: int
    cpu: int
    mem: int
    gpu: int
    share: int
    nodes: tuple[int, ...]
    pool: int
    volume: float
    accept: frozenset[str] = frozenset()  # GPU types that will do, in capitals; empty: any
    exact: tuple[tuple[str, int], ...] = ()  # GPUs of several types at once
    shards: int = 0
    sharing: str = ""
    others: tuple[tuple[str, int], ...] = ()
    exclusive: bool = False
    sets: tuple[tuple[int, ...], ...] = ()
    all_nodes: tuple[int, ...] = ()  # those of all sets, also where `nodes` are those of one
    switches: int = 0
    segment: int = 0

    @property
    def on_gpus(self) -> bool:
        return self.gpu > 0 or self.share > 0

    def parts(self, card: Card) -> int:
        """Parts of a card that a unit takes."""
        if not self.share:
            return card.parts
        return self.shards or math.ceil(self.share * card.parts / WHOLE)

    def likes(self, card: Card) -> bool:
        """Whether a card is of a type that will do, and shared in the right way."""
        return (not self.accept or card.type.upper() in self.accept) and self.sharing in ("", card.sharing)


def nodes_of(cluster: Cluster) -> list[Node]:
    """The nodes of a cluster, in the order of its file."""
    return [
        Node(
            UNLIMITED if c.cpus is None else c.cpus,
            UNLIMITED_MB if c.mem_gb is None else int(c.mem_gb * 1024),
            tuple(cards_of(c)),
            c.gpu_type,
            c.speed,
            c.partitions,
            {name: count for name, count in c.gres if name.split(":")[0] not in ("gpu", "shard", "mps")},
            c.features,
            f"{i}.{k // c.block}" if isinstance(c.block, int) else c.block,
            c.span_speed,
        )
        for i, c in enumerate(cluster.classes)
        for k in range(c.count)
    ]


def cards_of(c: NodeClass) -> list[Card]:
    """GPUs and slices of a node; shards are dealt out evenly over the whole GPUs, the rest to the last."""
    if not c.gres:
        return [Card(c.gpu_type, c.speed)] * c.gpus
    types = [name[4:] for name, count in c.gres if name.startswith("gpu:") for _ in range(count)]
    cards = [Card(t, c.speed_of(t)) for t in types]
    for name, count in c.gres:
        sharing, _, kind = name.partition(":")
        if sharing in ("shard", "mps"):
            mine = [i for i, t in enumerate(types) if (t == kind if kind else "g." not in t)]
            for k, i in enumerate(mine):
                parts = count // len(mine) + (k >= len(mine) - count % len(mine))
                if parts:
                    cards[i] = Card(types[i], cards[i].speed, parts, sharing)
    return cards


def pools_of(cluster: Cluster, jobs: Sequence[Job] = ()) -> dict[str, int]:
    """Pool of each partition: partitions with a node, or a job, in common, directly or through others, are one pool."""
    pools = [{partition} for partition in cluster.partitions]
    named = [known for j in jobs if (known := set(j.partition.split(",")) & set(cluster.partitions))]
    for together in [*(set(c.partitions) for c in cluster.classes), *named]:
        joined = [p for p in pools if p & together]
        pools = [p for p in pools if p not in joined] + [set().union(*joined)]
    numbers: dict[str, int] = {}
    for partition in cluster.partitions:
        mine = next(p for p in pools if partition in p)
        known = [numbers[p] for p in mine if p in numbers]
        numbers[partition] = known[0] if known else len(set(numbers.values()))
    return numbers


def partitions_of(cluster: Cluster, job: Job) -> list[str]:
    """A job's partitions: a blank one is the first, a lone one takes every name; none if there is no such."""
    names = cluster.partitions
    if not job.partition or len(names) == 1:
        return [names[0]]
    return [p for p in dict.fromkeys(job.partition.split(",")) if p in names]


def meets(expression: str, features: tuple[str, ...]) -> bool:
    """Whether features meet an expression of one operator, or of parentheses that Python reads as we do."""
    words = re.findall(r"[&|()]|[^&|()\s]+", expression)
    python = {"&": " and ", "|": " or ", "(": "(", ")": ")"}
    return bool(eval("".join(python.get(word, str(word in features)) for word in words)))  # our own text


def ask_of(cluster: Cluster, nodes: list[Node], job: Job, jobs: Sequence[Job] = ()) -> Ask | None:
    """What a job asks for; None if no empty cluster could give it."""
    partitions = partitions_of(cluster, job)
    gres = gres_of(job.gres)
    if not partitions or gres is None or "*" in job.constraint:
        return None
    share = math.ceil(job.gpus * WHOLE - 1e-9) if 0 < job.gpus < 1 else 0
    whole = math.ceil(job.gpus) if job.gpus >= 1 else 0
    shards = sum(gres.get(name, {}).get("", 0) for name in ("shard", "mps"))
    sharing = next((name for name in ("shard", "mps") if gres.get(name)), "")
    typed = {t: n for t, n in gres.get("gpu", {}).items() if t}
    others = tuple(
        (name, n) for name, counts in gres.items() if name not in ("gpu", "shard", "mps") for n in counts.values()
    )
    if gres:
        cards = [card for n in nodes for card in n.cards if card.sharing == sharing]
        share = min(math.ceil(shards * WHOLE / cards[0].parts), WHOLE) if shards and cards else WHOLE * (shards > 0)
        whole = sum(gres.get("gpu", {}).values()) * max(job.nodes, 1)
    on_gpus = whole > 0 or share > 0
    cpus = math.ceil(job.cpus) if job.cpus is not None else 0 if on_gpus else max(job.nodes, 1)
    if not on_gpus:
        cpus = max(cpus, 1)
    mem = math.ceil((job.mem_gb or 0) * 1024)
    # GPUs lead, else CPUs: the leading amount is split evenly over the asked nodes if it can be, else one by one.
    lead = 1 if share else whole or cpus
    if gres or job.exclusive:
        units, per_node = max(job.nodes, 1), 1
    elif share:
        units, per_node = 1, 1
    elif job.nodes and lead % job.nodes == 0:
        units, per_node = job.nodes, 1
    else:
        units, per_node = lead, math.ceil(lead / job.nodes) if job.nodes else lead
    if job.exclusive and share:
        share, shards, sharing, whole = 0, 0, "", units
    named = any(card.type for n in nodes for card in n.cards)
    accept = {t.strip().upper() for t in (list(typed) or job.gpu_type.split("|")) if t.strip()} if named else set()
    pools = pools_of(cluster, jobs)
    pool = pools[partitions[0]]
    inside = [n for n in nodes if pools[n.partitions[0]] == pool]
    gpus, all_cpus = sum(n.gpus for n in inside), sum(n.cpus for n in inside)
    cpu = math.ceil(cpus / units) if cpus >= units or gres or job.exclusive else 0
    gpu = math.ceil(whole / units)
    volume = units * (gpu + share / WHOLE) or units * cpu * (gpus / max(all_cpus, 1) if gpus else 1.0)
    ask = Ask(
        units,
        per_node,
        cpu,
        math.ceil(mem / units),
        gpu,
        share,
        (),
        pool,
        max(volume, 1e-9),
        frozenset(accept),
        tuple(typed.items()) if len(typed) > 1 else (),
        shards,
        sharing,
        others,
        job.exclusive,
        switches=job.switches,
        segment=job.segment,
    )
    empty = View.empty(nodes, told_apart=True)
    able = [
        n
        for n, node in enumerate(nodes)
        if not on_gpus or any(not accept or c.type.upper() in accept for c in node.cards)
    ]
    able = [n for n in able if empty.room(replace(ask, units=1, per_node=1, cpu=0, mem=0), n, 1) or not gres]
    ways, wishes = alternatives(job.constraint), [*(alternatives(job.prefer) if job.prefer else ()), ""]
    sets = []
    for partition in partitions:
        for wish in wishes:
            for way in ways:
                good = tuple(
                    n
                    for n in able
                    if partition in nodes[n].partitions
                    and (not way or meets(way, nodes[n].features))
                    and (not wish or meets(wish, nodes[n].features))
                )
                if good and good not in sets:
                    sets.append(good)
    every = tuple(sorted({n for s in sets for n in s}))
    ask = replace(ask, nodes=every, all_nodes=every, sets=tuple(sets))
    fits = any(could_hold(nodes, empty, ask, s) for s in sets)
    return ask if fits else None


def could_hold(nodes: list[Node], empty: View, ask: Ask, members: Sequence[int]) -> bool:
    """Whether empty nodes could hold a job, within as many switches, and in such segments, as it asks for."""
    if ask.segment and (ask.units % ask.segment or ask.per_node != 1):
        return False
    rooms: dict[str, int] = {}
    for n in members:
        rooms[nodes[n].block] = rooms.get(nodes[n].block, 0) + empty.room(ask, n, ask.units)
    whole = sorted((r // (ask.segment or 1) * (ask.segment or 1) for r in rooms.values()), reverse=True)
    return sum(whole[: ask.switches or len(whole)]) >= ask.units


def alternatives(expression: str) -> list[str]:
    """`[a|b]`: all nodes of a job have a, or all have b."""
    return expression[1:-1].split("|") if expression.startswith("[") else [expression]


def gres_of(text: str) -> dict[str, dict[str, int]] | None:
    """`gpu:A:2,fpga` by name and type; None for what Slurm would refuse."""
    found: dict[str, dict[str, int]] = {}
    for item in filter(None, text.split(",")):
        name, *rest = item.split(":")
        count = int(rest.pop()) if rest and rest[-1].isdecimal() else 1
        kinds = found.setdefault(name, {})
        kinds[rest[0] if rest else ""] = kinds.get(rest[0] if rest else "", 0) + count
    gpu = found.get("gpu", {})
    shared = [name for name in ("shard", "mps") if found.get(name)]
    wrong = ("" in gpu and len(gpu) > 1) or (shared and gpu) or len(shared) > 1
    return None if wrong else found


@dataclass
class View:
    """What is free on each node: CPUs, MB, GPUs and other GRES.

    GPUs are counted, unless some job of the trace asks for a share of one or a whole node, or a node has several types:
    then it is known how much of each is in use (in parts), and one that is free now is not the same as another that is
    free later.
    """

    nodes: list[Node]
    cpu: list[int]
    mem: list[int]
    gpus: list[int]  # free ones
    others: list[dict[str, int]]
    used: list[list[int]] | None = None  # of each GPU, if they are told apart
    mps: list[list[int]] = field(default_factory=list)  # of each GPU: jobs that it serves by MPS

    @classmethod
    def empty(cls, nodes: list[Node], told_apart: bool) -> View:
        """A cluster on which nothing runs."""
        used = [[0] * n.gpus for n in nodes] if told_apart else None
        return cls(
            nodes,
            [n.cpus for n in nodes],
            [n.mem for n in nodes],
            [n.gpus for n in nodes],
            [dict(n.others) for n in nodes],
            used,
            [[0] * n.gpus for n in nodes],
        )

    def copy(self) -> View:
        used = None if self.used is None else [list(u) for u in self.used]
        mps = [list(m) for m in self.mps]
        others = [dict(o) for o in self.others]
        return View(self.nodes, list(self.cpu), list(self.mem), list(self.gpus), others, used, mps)

    def may_share(self, ask: Ask, n: int, g: int) -> bool:
        """P7: whether a GPU will do, and, if it has MPS, no other one of its node serves it."""
        serving = [k for k, jobs in enumerate(self.mps[n]) if jobs]
        card = self.nodes[n].cards[g]
        return ask.likes(card) and (card.sharing != "mps" or not serving or serving == [g])

    def room(self, ask: Ask, n: int, wanted: int) -> int:
        """How many units a node can take, at most `wanted`."""
        node = self.nodes[n]
        if ask.exclusive and (self.cpu[n], self.mem[n], self.gpus[n], self.others[n]) != (
            node.cpus,
            node.mem,
            node.gpus,
            node.others,
        ):
            return 0
        room = min(wanted, ask.per_node)
        if ask.cpu:
            room = min(room, self.cpu[n] // ask.cpu)
        if ask.mem:
            room = min(room, self.mem[n] // ask.mem)
        for name, count in ask.others:
            room = min(room, self.others[n].get(name, 0) // count)
        cards = list(enumerate(node.cards))
        if self.used is None:
            return min(room, self.gpus[n] // ask.gpu) if ask.gpu else room
        idle = [card for g, card in cards if self.used[n][g] == 0]
        if ask.share:
            mine = [(card, self.used[n][g]) for g, card in cards if self.may_share(ask, n, g)]
            rooms = [(card.parts - used) // ask.parts(card) for card, used in mine]
            return min(room, sum(rooms))
        if ask.exact:
            return min([room, *(sum(c.type.upper() == t.upper() for c in idle) // k for t, k in ask.exact)])
        return min(room, sum(map(ask.likes, idle)) // ask.gpu) if ask.gpu else room

    def pick(self, ask: Ask, n: int, units: int) -> tuple[int, ...]:
        """GPUs of a node for units of a job: the first free ones, or for a share the fullest that has room."""
        if self.used is None:
            return ()
        used, cards = self.used[n], self.nodes[n].cards
        if ask.share:
            mine = [(g, card) for g, card in enumerate(cards) if self.may_share(ask, n, g)]
            fits = [g for g, card in mine if used[g] + ask.parts(card) <= card.parts]
            return (max(fits, key=lambda g: (used[g] * WHOLE // cards[g].parts, -g)),)
        if ask.exclusive:
            return tuple(range(len(cards)))
        idle = [g for g in range(len(used)) if used[g] == 0]
        if ask.exact:
            mine = [[g for g in idle if cards[g].type.upper() == t.upper()][: units * k] for t, k in ask.exact]
            return tuple(sorted(g for found in mine for g in found))
        return tuple(g for g in idle if ask.likes(cards[g]))[: units * ask.gpu]

    def take(self, ask: Ask, placement: Placement, sign: int = 1) -> None:
        """Takes a placement out of what is free."""
        for n, units, gpus in placement:
            node = self.nodes[n]
            self.cpu[n] -= sign * (node.cpus if ask.exclusive else units * ask.cpu)
            self.mem[n] -= sign * (node.mem if ask.exclusive else units * ask.mem)
            for name in node.others:
                asked = dict(ask.others).get(name, 0) * units
                self.others[n][name] -= sign * (node.others[name] if ask.exclusive else asked)
            if self.used is None:
                self.gpus[n] -= sign * units * ask.gpu
            else:
                for g in gpus:
                    self.used[n][g] += sign * ask.parts(node.cards[g])
                    self.mps[n][g] += sign * (ask.share > 0 and node.cards[g].sharing == "mps")
                self.gpus[n] = self.used[n].count(0)

    def give(self, ask: Ask, placement: Placement) -> None:
        """Gives a placement back."""
        self.take(ask, placement, -1)

    def meet(self, other: View) -> View:
        """What is free in both."""
        cpu = [min(a, b) for a, b in zip(self.cpu, other.cpu, strict=True)]
        mem = [min(a, b) for a, b in zip(self.mem, other.mem, strict=True)]
        others = [{k: min(a[k], b[k]) for k in a} for a, b in zip(self.others, other.others, strict=True)]
        if self.used is None or other.used is None:
            gpus = [min(a, b) for a, b in zip(self.gpus, other.gpus, strict=True)]
            return View(self.nodes, cpu, mem, gpus, others, None, self.mps)
        pairs = zip(self.used, other.used, strict=True)
        used = [[max(a, b) for a, b in zip(one, two, strict=True)] for one, two in pairs]
        serving = zip(self.mps, other.mps, strict=True)
        mps = [[max(a, b) for a, b in zip(one, two, strict=True)] for one, two in serving]
        return View(self.nodes, cpu, mem, [u.count(0) for u in used], others, used, mps)


Placement = tuple[tuple[int, int, tuple[int, ...]], ...]  # node, units, GPUs if they are told apart
