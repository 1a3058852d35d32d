"""GPU memory that jobs need, as far as finished jobs tell: a job gets no MIG slice that is too small for it.

Implements P12 of docs/backfill.md. A job's *level* is how many sizes of slices are too small for it. Each request has a
row for every level. When the job's group (jobs of the same user and name) turns out to need more, the job goes to
another row.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurm_rl.backfill.conservative import unbook
from slurm_rl.domain.gres import slice_of
from slurm_rl.errors import InputError
from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import RELEASED, TYPE, Array, Record
from slurm_rl.kernel.build import Workload
from slurm_rl.kernel.codes import number
from slurm_rl.kernel.fitting import Fitting
from slurm_rl.kernel.jit import inlined, kernel
from slurm_rl.kernel.links import INT, NOTHING, by_address
from slurm_rl.traces.trace import Trace
from slurm_rl_sim.state import touch

SOURCES = ("off", "learned", "oracle")
GROUP, LEVEL = range(2)  # columns of `gpu_mem`


@inlined
def narrow(w: Record, j: int) -> bool:
    """Leaves a job only the slices that finished jobs of its group would fit on; whether that changes its request."""
    jobs = t.jobs(w)
    was = jobs.request[j]
    jobs.request[j] = t.gpu_mem_row(w)[was, t.gpu_mem_known(w)[t.gpu_mem(w)[j, GROUP]]]
    return jobs.request[j] != was


@kernel
def learn_memory(w: Record, j: int) -> None:
    """Learns from a job that has ended. A pool in which a waiting job's request changes plans anew."""
    own, known, pools, queue = t.gpu_mem(w), t.gpu_mem_known(w), t.pools(w), t.queue(w)
    group = own[j, GROUP]
    if own[j, LEVEL] <= known[group]:
        return
    known[group] = own[j, LEVEL]
    for pool in range(len(pools)):
        changed = False
        for i in range(pools.queue_first[pool], pools.queue_last[pool]):
            if own[queue[i], GROUP] == group:
                changed |= narrow(w, queue[i])
        if changed:
            for i in range(pools.queue_first[pool], pools.queue_last[pool]):
                unbook(w, queue[i])
            touch(w, pool, RELEASED)


call_learn_memory = by_address("learn_memory", learn_memory, NOTHING, INT)


def with_gpu_memory(workload: Workload, trace: Trace, source: str) -> Workload:
    """The workload with what `source` says of the GPU memory that jobs need: their group's past, or the truth.

    A job of which nothing is known may use what it asks for, and so may one for which nothing would be left.
    """
    if source not in SOURCES:
        raise InputError(f"must be {' or '.join(SOURCES)}, got {source!r}", field="--gpu-memory")
    used = trace.measured.get("gpu_mem_gb")
    if source == "off":
        return workload
    if used is None or np.isnan(used).all():
        raise InputError(
            "says of no job how much GPU memory it used",
            file=trace.name,
            field="gpu_mem_gb",
            remedy="use `slurm-rl traces from-slurm --telemetry`, or leave out --gpu-memory",
        )
    sizes = sorted({part.mem_gb for name in workload.type_names if (part := slice_of(name)) is not None})
    if not sizes:
        return workload
    level = np.where(np.isnan(used), 0, np.searchsorted(sizes, np.nan_to_num(used), side="left")).astype(np.int64)
    workload, rows = _with_rows(workload, sizes)
    jobs = workload.jobs.copy()
    if source == "oracle":
        jobs["request"] = rows[jobs["request"], level]
        return replace(workload, jobs=jobs)
    group, groups = number(trace.user.codes, trace.job_name.codes)
    # A job without a name is like no other.
    named = trace.job_name.codes >= 0
    table = np.column_stack([np.where(named, group + 1, 0), np.where(named, level, 0)]).astype(np.int64)
    known = np.zeros(groups + 1, dtype=np.int64)
    site = {"gpu_mem": table, "gpu_mem_row": rows, "gpu_mem_known": known}
    return replace(workload, jobs=jobs, site={**workload.site, **site})


def _with_rows(wl: Workload, sizes: list[int]) -> tuple[Workload, Array]:
    """The workload with requests for every level, and their rows: [requests, levels]."""
    part_of = [slice_of(name) for name in wl.type_names]
    enough = np.array([[p is None or p.mem_gb not in sizes[:k] for p in part_of] for k in range(len(sizes) + 1)])
    here = _types_of_classes(wl)
    kinds = [wl.kind_node[a:b] for a, b in zip(wl.kind_ptr[:-1], wl.kind_ptr[1:], strict=True)]
    requests, origin = list(wl.requests), list(range(len(wl.requests)))
    rows = np.repeat(np.arange(len(requests))[:, None], len(sizes) + 1, axis=1)
    narrower: dict[tuple[int, bytes], int] = {}  # kind and the types that will do -> kind
    for i, request in enumerate(wl.requests):
        if not request["gpu"] or request["exact"] or request["exclusive"] or request["chain"] >= 0:
            continue
        wanted = np.array([int(request["accept"]) >> k & 1 == 1 for k in range(len(part_of))])
        members = kinds[int(request["kind"])]
        there = here[wl.node_class[members]].any(axis=0) & wanted
        for k in range(1, len(sizes) + 1):
            rows[i, k] = rows[i, k - 1]
            good = wanted & enough[k]
            if not (there & enough[k - 1] & ~enough[k]).any():
                continue  # none of its types is too small now that was not so before
            left = members[(here[wl.node_class[members]] & good).any(axis=1)]
            found = _narrowed(request, good)
            key = (int(request["kind"]), left.tobytes())
            if not _holds(wl, found, i, left):
                continue
            if key not in narrower:
                narrower[key] = len(kinds)
                kinds.append(left)
            found["kind"] = narrower[key]
            rows[i, k] = len(requests)
            requests.append(found)
            origin.append(i)
    more = np.array([rows[i] for i in origin[len(wl.requests) :]], dtype=np.int64).reshape(-1, rows.shape[1])
    for at, mine in enumerate(more, len(wl.requests)):
        mine[: int(np.flatnonzero(mine == at)[0])] = at  # nothing is ever forgotten
    classes = [np.unique(wl.node_class[nodes]) for nodes in kinds]
    wl = replace(
        wl,
        requests=np.array(requests, dtype=wl.requests.dtype),
        demand=wl.demand[origin] if len(wl.demand) else wl.demand,
        kind_ptr=np.concatenate([[0], np.cumsum([len(k) for k in kinds])]).astype(np.int64),
        kind_node=np.concatenate(kinds).astype(np.int64),
        class_ptr=np.concatenate([[0], np.cumsum([len(c) for c in classes])]).astype(np.int64),
        class_list=np.concatenate(classes).astype(np.int64),
    )
    return wl, np.ascontiguousarray(np.concatenate([rows, more]), dtype=np.int64)


def _types_of_classes(wl: Workload) -> Array:
    """GPU types that nodes of each class have: bool [classes, types]."""
    found = np.zeros((len(wl.devices), len(wl.type_names)), dtype=bool)
    c, k = np.nonzero(wl.devices[:, :, TYPE] >= 0)
    found[c, wl.devices[c, k, TYPE]] = True
    return found


def _narrowed(request: np.void, good: Array) -> np.void:
    """A copy of a request that accepts these types alone."""
    found = request.copy()
    if request["accept"] != -1:
        found["accept"] = sum(1 << k for k in np.flatnonzero(good).tolist())
    return found


def _holds(wl: Workload, request: np.void, origin: int, members: Array) -> bool:
    """Whether these nodes, when empty, hold a request; marks it if one GPU type could."""
    demand = wl.demand[[origin]] if len(wl.demand) else wl.demand
    one = np.array([request], dtype=wl.requests.dtype)
    fitting = Fitting(one, wl.nodes, demand, wl.devices, wl.others, wl.speed.shape[1])
    room, by_type = fitting.room(0, members)
    request["alone"] = bool(by_type.max(initial=0) >= request["units"])
    return bool(room >= request["units"])
