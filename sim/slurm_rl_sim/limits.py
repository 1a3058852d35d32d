"""A trace under a site's limits and licences: which quotas each job counts towards, and which can never start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from slurm_rl.domain.gres import GresRequest, parse_request
from slurm_rl.domain.limits import Limits
from slurm_rl.errors import InputError
from slurm_rl.kernel.arrays import GPU_MILLI, Array
from slurm_rl.kernel.build import Workload
from slurm_rl.kernel.codes import number
from slurm_rl.kernel.quotas import Asker, QuotaBook, Row
from slurm_rl.traces.trace import Labels, Trace
from slurm_rl_sim.site_priority import partition_tables, qos_table

_LICENSE = re.compile(r"(?P<name>[^:=,|\s]+?)(?:[:=](?P<count>\d+))?")


def with_limits(workload: Workload, trace: Trace, limits: Limits, *, own_limit: Array) -> Workload:
    """The workload with the quotas that its jobs fall under; jobs that can never start are rejected with the reason.

    `own_limit` says which jobs' time limits are their own: one that was made up never breaks MaxWall.
    """
    book = QuotaBook(limits)
    licenses = trace.asked.get("licenses", Labels.blank(len(trace)))
    gres = trace.asked.get("gres", Labels.blank(len(trace)))
    request = workload.jobs["request"]
    names = (trace.user, trace.account, trace.qos, trace.partition, trace.gpu_type, licenses, gres)
    alike, count = number(*(n.codes for n in names), request, np.maximum(trace.num_nodes, 0))
    first = np.zeros(count, dtype=np.int64)
    first[alike[::-1]] = np.arange(len(alike))[::-1]
    lists: dict[tuple[Row, ...], int] = {}
    of_kind = np.zeros(count, dtype=np.int64)
    never: dict[int, str] = {}
    longest = np.full(count, np.iinfo(np.int64).max)
    whose: dict[int, str] = {}
    for kind, j in enumerate(first.tolist()):
        asked = licenses.names[licenses.codes[j]] if licenses.codes[j] >= 0 else ""
        try:
            job = _asker(workload, trace, j, license_counts(asked))
        except InputError as error:
            never[kind] = error.message
            continue
        if why := book.why_never(job):
            never[kind] = why
        if (bound := book.longest(job)) is not None:
            longest[kind], whose[kind] = bound
        of_kind[kind] = lists.setdefault(tuple(book.rows(job)), len(lists))
    rejected = dict(workload.rejected)
    if never:
        for j in np.flatnonzero(np.isin(alike, list(never))).tolist():
            rejected.setdefault(j, never[int(alike[j])])
    for j in np.flatnonzero((trace.time_limit > longest[alike]) & own_limit).tolist():
        most = longest[alike[j]]
        rejected.setdefault(j, f"{whose[int(alike[j])]} is {most} s, its time limit is {trace.time_limit[j]} s")
    tables = book.tables([list(rows) for rows in lists] or [[]], of_kind[alike])
    tables |= partition_tables(workload, limits.partition, raw=False)
    jobs = workload.jobs
    if any(bounds.priority for bounds in limits.qos.values()):
        jobs = jobs.copy()
        jobs["qos"] = trace.qos.codes + 1
        tables["qos_factor"] = qos_table(trace.qos.names, limits)
    return replace(workload, jobs=jobs, rejected=rejected, site={**workload.site, **tables})


def license_counts(text: str) -> dict[str, int]:
    """`matlab:2,ansys` as counts; the server behind an @ belongs to the name."""
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = _LICENSE.fullmatch(item)
        if match is None:
            raise InputError(f"licenses {text!r} are not understood", remedy="write NAME:COUNT,…")
        found[match["name"]] = found.get(match["name"], 0) + int(match["count"] or 1)
    return found


def _asker(workload: Workload, trace: Trace, j: int, licenses: Mapping[str, int]) -> Asker:
    partition = _name(trace.partition, j).split(",")[0] or workload.cluster.partitions[0]
    return Asker(
        user=_name(trace.user, j),
        account=_name(trace.account, j),
        qos=_name(trace.qos, j),
        partition=partition,
        tres=_amounts(workload, trace, j),
        licenses=licenses,
    )


def _name(column: Labels, j: int) -> str:
    return column.names[column.codes[j]] if column.codes[j] >= 0 else ""


def _amounts(workload: Workload, trace: Trace, j: int) -> dict[str, float]:
    """What a job asks for, by TRES: nodes are those that it names, else the fewest that it could have."""
    request = workload.requests[workload.jobs["request"][j]]
    units = int(request["units"])
    nodes = int(trace.num_nodes[j]) or -(-units // max(int(request["per_node"]), 1))
    gpus = units * (int(request["gpu"]) + int(request["share"]) / GPU_MILLI)
    found = {"cpu": float(units * int(request["cpu"])), "mem": float(units * int(request["mem"])), "node": float(nodes)}
    found["gres/gpu"] = gpus
    text = _name(trace.asked["gres"], j) if "gres" in trace.asked else ""
    asked = parse_request(text) if text else GresRequest()
    for name, count in asked.types:
        found[f"gres/gpu:{name}".lower()] = float(count * nodes)
    for name, count in asked.others:
        found[f"gres/{name}".lower()] = float(count * nodes)
    if asked.shares:
        found[f"gres/{asked.sharing}"] = float(asked.shares)
    kind = _name(trace.gpu_type, j)
    if not asked.types and kind and "|" not in kind and gpus:
        found[f"gres/gpu:{kind}".lower()] = gpus
    return found
