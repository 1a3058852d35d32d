"""Which nodes jobs may use: by partition, GPU type, GRES and features; and sets of nodes to try one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slurm_rl.domain.cluster import Cluster, NodeClass
from slurm_rl.domain.constraint import Term, holds
from slurm_rl.domain.gres import GresRequest
from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.request_columns import NOTHING, RequestColumns

if TYPE_CHECKING:
    from slurm_rl.kernel.build import Requests


@dataclass(frozen=True, slots=True)
class Kinds:
    """Nodes of each kind of job; kinds with several sets have these as kinds behind the others."""

    nodes: tuple[Array, ...]
    classes: tuple[Array, ...]
    chain: Array  # of each kind: its first row in `node_sets`, -1: the kind alone
    node_sets: Array  # [rows, 2] kind, next row

    def sets(self, kind: int) -> list[int]:
        """The kinds that are tried for a kind."""
        at = int(self.chain[kind]) if kind < len(self.chain) else -1
        found = []
        while at >= 0:
            found.append(int(self.node_sets[at, 0]))
            at = int(self.node_sets[at, 1])
        return found or [kind]


def accepted_types(wanted: str, ask: GresRequest) -> set[str]:
    """GPU types that a job names, in capitals; none: any will do."""
    named = [kind for kind, _ in ask.types] or ([ask.share_type] if ask.share_type else wanted.split("|"))
    return {t.strip().upper() for t in named if t.strip()}


def find_kinds(
    requests: Requests,
    columns: RequestColumns,
    cluster: Cluster,
    node_class: Array,
    lists: tuple[tuple[int, ...], ...],
    listing: Array,
    first: Array,
) -> Kinds:
    """The nodes of each kind, of which `first` has a job; `lists` are sets of partitions, `listing` is a job's."""
    names = cluster.partitions
    typed = any(t for c in cluster.classes for t in c.gpu_types)
    found: list[Array] = []
    chains: list[list[Array]] = []
    for i in first.tolist():
        code = int(requests.gpu_type[i])
        wanted = requests.gpu_type_names[code] if code >= 0 else ""
        ask = columns.gres(i)
        accepted = accepted_types(wanted, ask) if typed else set()
        needs_gpu = bool(requests.gpus[i] > 0)
        able = [not needs_gpu or _has_gpu(c, accepted) for c in cluster.classes]
        if ask != NOTHING:
            able = [good and may_serve(c, ask) for good, c in zip(able, cluster.classes, strict=True)]
        terms: list[Term | None] = [*columns.terms(i)] or [None]
        ways = [(t, w) for w in (*columns.terms(i, wish=True), None) for t in terms]
        sets = []
        for partition in lists[int(listing[i])]:
            for term, wish in ways:
                good = [
                    able[k] and names[partition] in c.partitions and _has(c, term) and _has(c, wish)
                    for k, c in enumerate(cluster.classes)
                ]
                sets.append(np.flatnonzero(np.array(good)[node_class]).astype(np.int32))
        unique = list({s.tobytes(): s for s in sets if len(s)}.values())
        found.append(unique[0] if len(unique) == 1 else np.unique(np.concatenate(sets)).astype(np.int32))
        chains.append(unique if len(unique) > 1 else [])
    chain = np.full(len(found), -1, dtype=np.int64)
    node_sets: list[tuple[int, int]] = []
    for kind, sets in enumerate(chains):
        if sets:
            chain[kind] = len(node_sets)
        for k, nodes in enumerate(sets):
            node_sets.append((len(found), len(node_sets) + 1 if k + 1 < len(sets) else -1))
            found.append(nodes)
    return Kinds(
        tuple(found),
        tuple(np.unique(node_class[nodes]) for nodes in found),
        chain,
        np.array(node_sets, dtype=np.int64).reshape(-1, 2),
    )


def _has_gpu(c: NodeClass, accepted: set[str]) -> bool:
    return c.gpus > 0 and (not accepted or any(t.upper() in accepted for t in c.gpu_types))


def _has(c: NodeClass, term: Term | None) -> bool:
    return term is None or holds(term, c.features)


def may_serve(c: NodeClass, ask: GresRequest) -> bool:
    """Whether nodes of a class have all that a request names, in such numbers."""
    has = c.has
    folded = [d.type.upper() for d in has.devices]
    if any(folded.count(kind.upper()) < count for kind, count in ask.types) or ask.gpus > len(folded):
        return False
    if any(has.others.get(name, 0) < count for name, count in ask.others):
        return False
    return not ask.shares or any(
        d.sharing == ask.sharing and d.parts >= ask.shares and ask.share_type.upper() in ("", d.type.upper())
        for d in has.devices
    )
