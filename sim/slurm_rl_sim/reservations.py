"""A trace beside reservations: which jobs are for which, who may not be, and when something begins or ends.

Implements V1, V2, V5 and V9 of docs/backfill.md as far as they are known before the first event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurm_rl.domain.reservations import Reservation
from slurm_rl.kernel.arrays import EVENT, Array
from slurm_rl.kernel.build import Workload, pack_bits
from slurm_rl.kernel.fitting import Fitting
from slurm_rl.kernel.reserved import BEGINS, ENDS, reserved_rows
from slurm_rl.traces.trace import Labels, Trace

_FIRST = 1 << 40  # jobs of a reservation stand before every PriorityTier


def with_reservations(workload: Workload, trace: Trace, reservations: Sequence[Reservation]) -> Workload:
    """The workload beside reservations of its nodes; jobs that can never run in theirs are rejected with the reason."""
    if not reservations:
        return workload
    place = {str(number): at for at, number in enumerate(workload.node_number.tolist())}
    members = [[place[name] for name in r.nodes] for r in reservations]
    own = trace.asked.get("reservation", Labels.blank(len(trace)))
    by_name = {r.name: i for i, r in enumerate(reservations)}
    kept_for = np.array([1 + by_name.get(name, -1) for name in own.names] + [0], dtype=np.int64)[own.codes]
    rejected = dict(workload.rejected)
    wl = workload
    fitting = Fitting(wl.requests, wl.nodes, wl.demand, wl.devices, wl.others, wl.speed.shape[1])
    rooms: dict[tuple[int, int], int] = {}
    for j in np.flatnonzero(own.codes >= 0).tolist():
        name = own.names[own.codes[j]]
        if name not in by_name:
            rejected.setdefault(j, f"there is no reservation {name!r}")
            continue
        r, mine = reservations[by_name[name]], by_name[name]
        s = int(wl.jobs["request"][j])
        if (s, mine) not in rooms:
            rooms[s, mine] = _room(fitting, wl, s, members[mine])
        if not r.admits(_name(trace.user, j), _name(trace.account, j)):
            rejected.setdefault(j, f"reservation {name} does not admit its user or account")
        elif "FLEX" not in r.flags and rooms[s, mine] < wl.requests["units"][s]:
            rejected.setdefault(j, f"it does not fit on the nodes of reservation {name}")
        elif "FLEX" not in r.flags and trace.submit_time[j] >= r.end:
            rejected.setdefault(j, f"reservation {name} was over when it was submitted")
    bits = np.zeros((len(reservations), len(wl.nodes)), dtype=bool)
    for i, nodes in enumerate(members):
        bits[i, nodes] = True
    tables = {"kept": reserved_rows(reservations), "kept_bits": pack_bits(bits), "kept_for": kept_for}
    return replace(workload, rejected=rejected, site={**workload.site, **tables})


def _room(fitting: Fitting, workload: Workload, s: int, nodes: list[int]) -> int:
    """Units of a request for which empty nodes have room, on the best of the sets that it may use."""
    kinds, at = [int(workload.requests["kind"][s])], int(workload.requests["chain"][s])
    if at >= 0:
        kinds = []
    while at >= 0:
        kind, at = workload.node_sets[at].tolist()
        kinds.append(kind)
    mine = [workload.kind_node[workload.kind_ptr[k] : workload.kind_ptr[k + 1]] for k in kinds]
    return max(fitting.room(s, members[np.isin(members, nodes)])[0] for members in mine)


def _name(column: Labels, j: int) -> str:
    return column.names[column.codes[j]] if column.codes[j] >= 0 else ""


def reserved_first(own: dict[str, Array]) -> dict[str, Array]:
    """V4: jobs of a reservation stand before all others, tier by tier."""
    if "kept_for" not in own:
        return {}
    mine = own["kept_for"] > 0
    return {"tiers": own.get("tiers", np.zeros(len(mine), dtype=np.int64)) + _FIRST * mine} if mine.any() else {}


def boundaries(kept: Array | None) -> Array:
    """V2: an event at each begin and end of a reservation."""
    if kept is None or not len(kept):
        return np.zeros(0, dtype=EVENT)
    times = np.unique(kept[:, [BEGINS, ENDS]])
    rows = np.zeros(len(times), dtype=EVENT)
    rows["time"], rows["node"] = times, -1
    return rows
