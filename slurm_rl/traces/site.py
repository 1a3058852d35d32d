"""Makes trace and cluster of a live site: from its accounting history and its nodes, anonymised on request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from slurm_rl.domain.cluster import Cluster, Gres, SiteNode, node_classes
from slurm_rl.domain.keys import Key, hashed
from slurm_rl.traces.files import Source
from slurm_rl.traces.jsonfile import entries_screen
from slurm_rl.traces.slurmjobs import Records, jobs_of
from slurm_rl.traces.trace import Floats, Labels, Trace

_NO_BLOCKS: Mapping[str, str] = {}


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
    @property
    def keys(self) -> Mapping[str, str]: ...


def history_trace(
    rows: Sequence[HistoryRow],
    site: str,
    partitions: Collection[str] = (),
    *,
    keys: Sequence[Key] = (),
    salt: str = "",
) -> Trace:
    """The finished jobs of these partitions (all, if none is named) as a trace; the rest is counted in its notes.

    Keys become salted hashes: a trace tells which jobs are of one kind, not where or how they were submitted.
    """
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
        keys={k.name: Labels.of(hashed([r.keys.get(k.name, "") for r in rows], salt, k.name[0])) for k in keys},
        number=np.array([r.job_id for r in rows], dtype=np.int64),
        meta={"format": "slurm"},
    )
    return replace(jobs_of(records, screen), name=site)


def _gpus(by_type: Mapping[str, int]) -> tuple[int, str]:
    named = [t for t, count in by_type.items() if t and count]
    return sum(by_type.values()), named[0] if len(named) == 1 else ""


def anonymised(trace: Trace, salt: str) -> Trace:
    """The same trace with users, accounts and job names replaced by a salted hash; equal names stay equal."""

    def secret(labels: Labels, prefix: str) -> Labels:
        return Labels(labels.codes, tuple(hashed(labels.names, salt, prefix)))

    return replace(
        trace,
        user=secret(trace.user, "u"),
        account=secret(trace.account, "g"),
        job_name=secret(trace.job_name, "n"),
    )


def _gres(node: SiteNode) -> Gres:
    """Types of GPUs and slices, where a node has several; no history tells of shards and other GRES."""
    kinds = tuple((f"gpu:{kind}", count) for kind, count in node.gpus.items() if count)
    return kinds if len(kinds) > 1 else ()


def site_cluster(
    nodes: Iterable[SiteNode], name: str, partitions: Collection[str] = (), blocks: Mapping[str, str] = _NO_BLOCKS
) -> tuple[Cluster, int]:
    """The nodes of these partitions as classes, and how many hold GPUs of several types; `blocks` by nodes' names."""
    found = node_classes(nodes, partitions, gres=_gres, block=lambda node: blocks.get(node.name, "") if blocks else "")
    mixed = sum(sum(1 for count in n.gpus.values() if count) > 1 for _, same in found for n in same)
    classes = sorted((c for c, _ in found), key=lambda c: (c.gpu_type, c.gpus, c.cpus, c.mem_gb, c.partition, c.block))
    return Cluster(name, tuple(classes)), mixed
