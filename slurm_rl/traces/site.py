"""Makes trace and cluster of a live site: from its accounting history and its nodes, anonymised on request."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from slurm_rl.domain.cluster import Cluster, Gres, SiteNode, node_classes
from slurm_rl.traces.files import Source
from slurm_rl.traces.jsonfile import entries_screen
from slurm_rl.traces.slurmjobs import Records, jobs_of
from slurm_rl.traces.trace import Floats, Labels, Trace


class HistoryRow(Protocol):
    """What is needed of an accounting record; times in Unix seconds, GPUs by type with "" for any."""

    @property
    def job_id(self) -> int: ...
    @property
    def display_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def account(self) -> str: ...
    @property
    def partition(self) -> str: ...
    @property
    def qos(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def submit_time(self) -> int | None: ...
    @property
    def start_time(self) -> int | None: ...
    @property
    def elapsed(self) -> int: ...
    @property
    def time_limit(self) -> int | None: ...
    @property
    def nodes(self) -> int: ...
    @property
    def cpus(self) -> int: ...
    @property
    def mem_mb(self) -> int: ...
    @property
    def gpus_requested(self) -> Mapping[str, int]: ...
    @property
    def gpus_allocated(self) -> Mapping[str, int]: ...
    @property
    def priority(self) -> int: ...


def history_trace(rows: Sequence[HistoryRow], site: str, partitions: Collection[str] = ()) -> Trace:
    """The finished jobs of these partitions (all, if none is named) as a trace; the rest is counted in its notes."""
    screen = entries_screen(Source(Path(f"history of {site}"), {}), len(rows))
    if partitions:
        elsewhere = [not set(r.partition.split(",")) & set(partitions) for r in rows]
        screen.skip(np.array(elsewhere, dtype=bool), "in another partition")
    wanted = [_gpus(r.gpus_requested) for r in rows]
    given = [_gpus(r.gpus_allocated) for r in rows]

    def numbers(name: str) -> Floats:
        return np.array([getattr(r, name) for r in rows], dtype=np.float64)  # None becomes NaN

    def labels(name: str) -> Labels:
        return Labels.of([getattr(r, name) for r in rows])

    records = Records(
        job_id=[r.display_id for r in rows],
        submit=numbers("submit_time"),
        start=numbers("start_time"),
        elapsed=numbers("elapsed"),
        limit=numbers("time_limit"),
        nodes=numbers("nodes"),
        cpus=numbers("cpus"),
        mem_gb=numbers("mem_mb") / 1024,
        gpus=np.array([w[0] or g[0] for w, g in zip(wanted, given, strict=True)], dtype=np.float64),
        gpu_type=Labels.of([w[1] for w in wanted]),
        user=labels("user"),
        account=labels("account"),
        partition=labels("partition"),
        qos=labels("qos"),
        state=labels("state"),
        name=labels("name"),
        priority=numbers("priority"),
        number=np.array([r.job_id for r in rows], dtype=np.int64),
        meta={"format": "slurm"},
    )
    return replace(jobs_of(records, screen), name=site)


def _gpus(by_type: Mapping[str, int]) -> tuple[int, str]:
    named = [t for t, count in by_type.items() if t and count]
    return sum(by_type.values()), named[0] if len(named) == 1 else ""


def anonymised(trace: Trace, salt: str) -> Trace:
    """The same trace with users, accounts and job names replaced by a salted hash; equal names stay equal."""

    key = hashlib.sha256(salt.encode()).digest()

    def hashed(labels: Labels, prefix: str) -> Labels:
        # The prefix is part of what is hashed: a user named like an account must not show as such.
        digests = [hashlib.blake2b(f"{prefix}:{n}".encode(), key=key, digest_size=5) for n in labels.names]
        return Labels(labels.codes, tuple(prefix + d.hexdigest() for d in digests))

    return replace(
        trace,
        user=hashed(trace.user, "u"),
        account=hashed(trace.account, "g"),
        job_name=hashed(trace.job_name, "n"),
    )


def _gres(node: SiteNode) -> Gres:
    """Types of GPUs and slices, where a node has several; no history tells of shards and other GRES."""
    kinds = tuple((f"gpu:{kind}", count) for kind, count in node.gpus.items() if count)
    return kinds if len(kinds) > 1 else ()


def site_cluster(nodes: Iterable[SiteNode], name: str, partitions: Collection[str] = ()) -> tuple[Cluster, int]:
    """The nodes of these partitions as classes, and how many hold GPUs of several types."""
    found = node_classes(nodes, partitions, gres=_gres)
    mixed = sum(sum(1 for count in n.gpus.values() if count) > 1 for _, same in found for n in same)
    classes = sorted((c for c, _ in found), key=lambda c: (c.gpu_type, c.gpus, c.cpus, c.mem_gb, c.partition))
    return Cluster(name, tuple(classes)), mixed
