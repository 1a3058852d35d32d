"""Slurm's reservations beside live jobs: which nodes they keep, and until when (V1 of docs/backfill.md).

A job that names a reservation is left alone; every other one is planned around them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from slurm_rl.kernel.arrays import Array
from slurm_rl.kernel.build import Workload, pack_bits
from slurm_rl.kernel.reserved import reserved_rows
from slurm_rl.slurm.model import SlurmJob, SlurmNode, SlurmState
from slurm_rl.slurm.scontrol import setting

_FLAGS = {"RESERVED", "MAINT"}  # of a node that a reservation keeps now


def nodes_to_come(state: SlurmState) -> list[SlurmNode]:
    """The nodes; those that are kept now count as usable, because the reservation says until when."""
    kept = {name for r in state.reservations if r.start <= state.taken < r.end for name in r.nodes}
    return [
        msgspec.structs.replace(n, flags=tuple(f for f in n.flags if f not in _FLAGS))
        if n.name in kept and _FLAGS & set(n.flags)
        else n
        for n in state.nodes
    ]


def kept_tables(state: SlurmState, workload: Workload, members: Sequence[SlurmNode], jobs: int) -> dict[str, Array]:
    """The tables of a World for what is reserved from now on; none if nothing is."""
    place = {members[number].name: at for at, number in enumerate(workload.node_number.tolist())}
    found = [(r, [place[n] for n in r.nodes if n in place]) for r in state.reservations if r.end > state.taken]
    found = [(r, at) for r, at in found if at]
    if not found:
        return {}
    bits = np.zeros((len(found), len(members)), dtype=bool)
    for i, (_, at) in enumerate(found):
        bits[i, at] = True
    return {
        "kept": reserved_rows([replace(r, every_node=len(at) == len(members)) for r, at in found]),
        "kept_bits": pack_bits(bits),
        "kept_for": np.zeros(jobs, dtype=np.int64),
    }


def reservations_in_the_way(state: SlurmState, job: SlurmJob, *, to_user: bool = False) -> list[dict[str, Any]]:
    """What keeps nodes of a waiting job's partitions from it, if it started now; nothing where PrivateData hides it."""
    hidden = to_user and "reservations" in setting(state.config, "PrivateData").lower().split(",")
    if hidden or job.reservation or not job.pending or not state.reservations:
        return []
    parts = {n.name for n in state.nodes if set(n.partitions) & set(job.partitions)}
    until = math.inf if job.time_limit is None else state.taken + job.time_limit
    found = []
    for r in state.reservations:
        mine = parts & set(r.nodes)
        if mine and r.start < until and r.end > state.taken:
            begin, end = (time.strftime("%m-%d %H:%M", time.localtime(t)) for t in (r.start, r.end))
            nodes = f"{len(mine)} of its partition's {len(parts)} nodes"
            text = f"reservation {r.name} keeps {nodes} from {begin} to {end}, which its time limit reaches into"
            found.append({"reservation": r.name, "begins": r.start, "ends": r.end, "text": text})
    return found
