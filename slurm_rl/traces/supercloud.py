"""Reads the scheduler log of the MIT Supercloud dataset: a dump of slurmdbd's job table, with names taken out."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from slurm_rl.traces.assemble import assemble, header_of, known, layout_of, renamed, require
from slurm_rl.traces.files import Source
from slurm_rl.traces.table import parse
from slurm_rl.traces.trace import Floats, Labels, Trace

_EXPECTED = "id_job,id_user,nodes_alloc,cpus_req,partition,state,time_submit,time_start,time_end,timelimit,tres_req"
# Slurm's numbers of states, as they stand in its database.
_STATES = {
    "3": "COMPLETED", "4": "CANCELLED", "5": "FAILED", "6": "TIMEOUT", "7": "NODE_FAIL", "8": "PREEMPTED",
    "11": "OUT_OF_MEMORY",
}  # fmt: skip
_NO_LIMIT = 4294967295.0  # INFINITE
# Slurm's numbers of trackable resources: CPUs, MB, nodes; generic ones come from 1001 on. The dataset's own list calls
# 1001 gpu:tesla and 1002 gpu:volta: its GPU nodes are taken to have V100s, by either name.
_CPU, _MEM, _NODE, _FIRST_GRES = 1, 2, 4, 1001
_GPU = "V100"


def sniff(head: str) -> bool:
    names = {n.strip().lower() for n in head.split("\n", 1)[0].split(",")}
    return {"id_job", "time_submit", "time_start", "time_end"} <= names


def read(source: Source) -> Trace:
    """Reads a log; times are Unix seconds, limits minutes. Jobs that never started are left out.

    GPUs are those of `tres_req` (else `tres_alloc`): the largest count of a generic resource, since a typed one is
    counted under its own number besides; else those of `gres_used` (or `gres_req`), `gpu:TYPE:N`, which are a node's.
    """
    names = header_of(source, source.raw)
    require(source, names, ("id_job", "time_submit", "time_start", "time_end"), _EXPECTED)
    layout = layout_of(
        names,
        numbers=("nodes_alloc", "cpus_req", "timelimit", "time_submit", "time_start", "time_end"),
        labels=("id_user", "partition", "state", "tres_req", "tres_alloc", "gres_used", "gres_req", "job_type"),
        ids=("id_job",),
    )
    table = parse(source, source.raw, layout)
    start, end = table.number("time_start"), table.number("time_end")
    table.screen.skip(~(start > 0), "the job never started")
    table.screen.skip(~(end > 0), "the job has not ended")
    asked = [_tres(table.label(name)) for name in ("tres_req", "tres_alloc")]
    nodes = _first(known(table.number("nodes_alloc")), *(t[_NODE] for t in asked))
    gres = _first(*(_gres(table.label(name)) for name in ("gres_used", "gres_req")))
    gpus = _first(*(t[_FIRST_GRES] for t in asked), gres * np.maximum(np.nan_to_num(nodes, nan=1.0), 1.0))
    gres_types = _types(table.label("gres_used" if "gres_used" in names else "gres_req"))
    limit = known(table.number("timelimit"))
    limit = np.where((limit > 0) & (limit < _NO_LIMIT), limit * 60.0, -1.0)
    return assemble(
        table.screen,
        table.number("time_submit"),
        end - start,
        absolute=True,
        job_id=table.ids["id_job"],
        time_limit=limit.astype(np.int64),
        num_gpus=np.nan_to_num(gpus, nan=0.0),
        gpu_type=_or_v100(gres_types, np.nan_to_num(gpus, nan=0.0) > 0),
        num_nodes=np.nan_to_num(nodes, nan=0.0),
        cpus=_first(known(table.number("cpus_req")), *(t[_CPU] for t in asked)),
        mem_gb=_first(*(t[_MEM] for t in asked)) / 1024.0,
        user=table.label("id_user"),
        partition=table.label("partition"),
        status=renamed(table.label("state"), _STATES),
        job_name=table.label("job_type"),
    )


def _first(*columns: Floats) -> Floats:
    """The first column that knows something, row by row."""
    found = columns[0]
    for column in columns[1:]:
        found = np.where(np.isnan(found), column, found)
    return found


def _by_row(labels: Labels, values: list[float]) -> Floats:
    return np.array([*values, np.nan])[labels.codes]


def _tres(labels: Labels) -> dict[int, Floats]:
    """CPUs, MB, nodes and GPUs of texts like `1=4,2=8000,4=1,5=4,1001=2`; NaN where nothing is said."""
    found = [{int(k): float(v) for k, v in re.findall(r"(\d+)=(\d+)", name)} for name in labels.names]
    columns = {number: _by_row(labels, [f.get(number, np.nan) for f in found]) for number in (_CPU, _MEM, _NODE)}
    generic = [max([v for k, v in f.items() if k >= _FIRST_GRES], default=np.nan) for f in found]
    return columns | {_FIRST_GRES: _by_row(labels, generic)}


def _gres(labels: Labels) -> Floats:
    """GPUs of a node from `gpu:volta:2` or `gpu:2`."""
    counts = [re.search(r"gpu(?::[A-Za-z]\w*)?:(\d+)", name) for name in labels.names]
    return _by_row(labels, [float(c.group(1)) if c else np.nan for c in counts])


def _types(labels: Labels) -> Labels:
    """GPU types from `gpu:volta:2`, as `V100` where it is that; a CPU job has none."""
    kinds = [re.search(r"gpu:([A-Za-z]\w*)", name) for name in labels.names]
    known_as = {"volta": _GPU, "tesla": _GPU}
    return renamed(
        labels,
        {
            name: known_as.get(k.group(1).lower(), k.group(1)) if k else ""
            for name, k in zip(labels.names, kinds, strict=True)
        },
    )


def _or_v100(labels: Labels, has_gpus: npt.NDArray[np.bool_]) -> Labels:
    """V100 for jobs with GPUs whose type is only a number of a trackable resource."""
    names = (*labels.names, *(() if _GPU in labels.names else (_GPU,)))
    codes = np.where((labels.codes < 0) & has_gpus, names.index(_GPU), labels.codes).astype(np.int32)
    return Labels(codes, names)
