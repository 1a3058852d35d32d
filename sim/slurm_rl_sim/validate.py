"""Whether a simulation's state is consistent: nothing overcommitted, lists and heap right, free counts that add up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from slurm_rl.domain.gres import MPS
from slurm_rl.errors import SlurmRlError
from slurm_rl.kernel.arrays import BOTH, EXTRA, GPU, GPU_MILLI, NOW, OTHER, PARTS, SHARING, TYPE
from slurm_rl.kernel.build import pack_bits
from slurm_rl.kernel.fitting import need_of
from slurm_rl.place.counting import BY_LEVELS, level_bits
from slurm_rl_sim import state as st
from slurm_rl_sim.simulation import ReplayState

_RESOURCES = ("CPUs", "MB", "GPUs", "other GRES")


class StateError(SlurmRlError):
    """The engine's state contradicts itself: a bug of ours; the message names what is wrong."""


def run_checked(simulation: ReplayState) -> None:
    """Runs to the end and checks the state before and after every scheduling pass."""
    while simulation.to_next_pass():
        check_state(simulation)
        simulation.finish_pass()
        check_state(simulation)
    check_state(simulation)


def check_state(simulation: ReplayState) -> None:
    """Raises StateError with the first contradiction."""
    for problem in problems(simulation):
        raise StateError(f"at {simulation.now} s: {problem}: please report this, with the trace")


def problems(simulation: ReplayState) -> Iterator[str]:
    """What is wrong, if anything."""
    yield from _chains(simulation)
    yield from _free(simulation)
    yield from _runs(simulation)
    yield from _levels(simulation)
    yield from _running(simulation)
    yield from _queues(simulation)
    yield from _groups(simulation)


def _chain(simulation: ReplayState, at: int) -> list[int]:
    """The entries of a chain; stops at one that it has met before."""
    following = simulation.world["entries"]["next"]
    found: list[int] = []
    seen: set[int] = set()
    while at > 0 and at not in seen:
        found.append(at)
        seen.add(at)
        at = int(following[at])
    return found


def _chains(simulation: ReplayState) -> Iterator[str]:
    """Entries: each is spare, or in the chain of one job; a running job holds all its units on nodes it may use."""
    world = simulation.world
    live, jobs, requests, entries, nodes = (world[t] for t in ("live", "jobs", "requests", "entries", "nodes"))
    owner = dict.fromkeys(_chain(simulation, int(entries["next"][0])), "spare")
    for field in ("held", "booked"):
        for j in np.flatnonzero(live[field]).tolist():
            units = 0
            request = requests[jobs["request"][j]]
            kind = int(request["kind"])
            mine = world["kind_node"][world["kind_ptr"][kind] : world["kind_ptr"][kind + 1]]
            for e in _chain(simulation, int(live[field][j])):
                if e in owner:
                    yield f"entry {e} of job {j} is also {owner[e]}"
                owner[e] = f"of job {j}"
                units += int(entries["units"][e]) * (1 + int(entries["more"][e]))
                for n in _nodes(entries[e]):
                    if n not in mine:
                        yield f"job {j} has node {n}, which it may not use"
                    if field == "held" and nodes["down"][n]:
                        yield f"job {j} runs on node {n}, which is down"
            if units != request["units"]:
                yield f"job {j} has {units} of {request['units']} units"
    if len(owner) != len(entries) - 1:
        yield f"{len(entries) - 1 - len(owner)} entries are lost"


def _free(simulation: ReplayState) -> Iterator[str]:
    """What is free on each node is what it has less what jobs hold; pools' sums are the sums of their nodes."""
    world = simulation.world
    nodes, free, used, total, entries = (world[t] for t in ("nodes", "free", "used", "total", "entries"))
    slots = used.shape[2]
    up = 1 - nodes["down"]
    devices = world["devices"][nodes["klass"]][:, :slots]
    types, parts = devices[:, :, TYPE], devices[:, :, PARTS]
    whole = parts + (devices[:, :, SHARING] == MPS)  # see `_need` in place/on_devices.py
    has = np.column_stack([*(nodes[f] for f in ("cpu", "mem", "gpu")), world["others"][nodes["klass"]]])
    left = (has * up[:, None]).astype(np.int64)
    taken = np.where(types >= 0, parts * nodes["down"][:, None], GPU_MILLI)
    for j in np.flatnonzero(world["live"]["held"]).tolist():
        row = int(world["jobs"]["request"][j])
        request = world["requests"][row]
        demand = world["demand"][row, world["speed"].shape[1] :] if len(world["demand"]) else np.zeros(0, dtype=int)
        for e in _chain(simulation, int(world["live"]["held"][j])):
            units, gpus = int(entries["units"][e]), int(entries["gpus"][e])
            asked = np.concatenate([[units * int(request["cpu"]), units * int(request["mem"]), 0], units * demand])
            if len(asked) < left.shape[1]:
                asked = np.pad(asked, (0, left.shape[1] - len(asked)))
            for n in _nodes(entries[e]):
                if request["exclusive"]:
                    asked = has[n].copy()
                asked[GPU] = 0 if slots else units * int(request["gpu"])
                left[n] -= asked
                for k in range(slots):
                    if gpus >> k & 1:
                        taken[n, k] += need_of(request, int(parts[n, k])) if request["share"] else int(whole[n, k])
                        yield from _wrong_gpu(request, n, k, devices[n, k])
    if slots:
        left[:, GPU] = (taken == 0).sum(axis=1)
        for n, k in np.argwhere((types >= 0) & (taken > whole)).tolist():
            yield f"GPU {k} of node {n} is given out twice"
        serving = ((devices[:, :, SHARING] == MPS) & (taken > 0) & (taken <= parts)).sum(axis=1)
        for n in np.flatnonzero((serving > 1) & (nodes["down"] == 0)).tolist():
            yield f"{serving[n]} GPUs of node {n} serve MPS at a time"
        for n, k in np.argwhere(taken != used[NOW]).tolist():
            yield f"GPU {k} of node {n} has {used[NOW, n, k]} parts in use, jobs hold {taken[n, k]}"
    for n, c in np.argwhere(left < 0).tolist():
        yield f"node {n} has given out more {_RESOURCES[min(c, 3)]} than it has"
    for n, c in np.argwhere(left != free[NOW]).tolist():
        yield f"node {n} has {free[NOW, n, c]} {_RESOURCES[min(c, 3)]} free, jobs leave {left[n, c]}"
    for pool in range(len(world["pools"])):
        sums = left[nodes["pool"] == pool, :3].sum(axis=0)
        if (sums != total[NOW, pool]).any():
            yield f"pool {pool} has {total[NOW, pool].tolist()} free in sum, its nodes have {sums.tolist()}"


def _nodes(entry: np.void) -> range:
    """The nodes of an entry."""
    return range(int(entry["node"]), int(entry["node"]) + int(entry["more"]) + 1)


def _runs(simulation: ReplayState) -> Iterator[str]:
    """Runs cover each pool's nodes, say what is free on each now, and neighbours that are alike are in one."""
    world = simulation.world
    if not world["by_runs"]:
        return
    for pool, row in enumerate(world["pools"]):
        first, last = int(row["first_node"]), int(row["last_node"])
        rows = world["runs"][NOW, first : first + int(world["run_count"][NOW, pool])]
        state = np.column_stack([world["nodes"]["klass"][first:last], world["free"][NOW, first:last, :3]])
        begins = first + np.flatnonzero(np.append(True, (state[1:] != state[:-1]).any(axis=1)))
        if not np.array_equal(rows[:, 0], begins):
            yield f"pool {pool} has runs at {rows[:, 0].tolist()}, should be {begins.tolist()}"
        elif not np.array_equal(rows[:, 1:], world["free"][NOW, begins, :3]):
            yield f"pool {pool} has runs with another amount than its nodes"


def _levels(simulation: ReplayState) -> Iterator[str]:
    """Each node is in the rows of what is free on it, in each view, and views differ where that is noted alone."""
    world = simulation.world
    if simulation.index != BY_LEVELS:
        return
    shape = int(world["gpu_levels"]), int(world["cpu_levels"]), int(world["cpu_base"])
    words = -(-len(world["nodes"]) // 64)
    free, levels = world["free"], world["levels"]
    for view in (NOW, EXTRA, BOTH):
        bits = level_bits(free[view], *shape)
        if not np.array_equal(levels[view, :, :words], bits):
            yield f"view {view} has levels that are not those of its nodes"
        if not np.array_equal(levels[view, :, words:], pack_bits(bits != 0)):
            yield f"view {view} has levels of which the words are not marked"
    met = np.minimum(free[NOW, :, :OTHER], free[EXTRA, :, :OTHER])
    for which, view, wanted in ((0, EXTRA, free[NOW, :, :OTHER]), (1, BOTH, met)):
        differs = (free[view, :, :OTHER] != wanted).any(axis=1)
        for n in np.flatnonzero(differs & (world["changed"][which, :, 1] == 0)).tolist():
            yield f"view {view} differs on node {n}, which is not noted"


def _wrong_gpu(request: np.void, n: int, k: int, device: np.ndarray) -> Iterator[str]:
    accepted = int(request["accept"])
    if accepted != -1 and not request["exclusive"] and not accepted >> int(device[TYPE]) & 1:
        yield f"GPU {k} of node {n} is of a type that its job does not accept"
    if request["sharing"] and device[SHARING] != request["sharing"]:
        yield f"GPU {k} of node {n} is not shared as its job asks"


def _running(simulation: ReplayState) -> Iterator[str]:
    """Who runs holds nodes, is in the heap once, and stands in its pool's running list by expected end."""
    world = simulation.world
    live, pools = world["live"], world["pools"]
    running = np.flatnonzero(live["state"] == st.RUNNING)
    if not np.array_equal(running, np.flatnonzero(live["held"])):
        yield "the running jobs are not the jobs that hold nodes"
    heap = world["heap"][: int(world["heap_count"])].tolist()
    if sorted(heap) != running.tolist():
        yield "the heap does not hold the running jobs"
    for at in range(1, len(heap)):
        up, here = heap[(at - 1) // 2], heap[at]
        if (live["end"][up], up) > (live["end"][here], here):
            yield f"the heap has job {up}, which ends later, above job {here}"
    pool_of = world["requests"]["pool"][world["jobs"]["request"]]
    for pool in range(len(pools)):
        first = int(pools["first_job"][pool])
        listed = world["running"][first : first + int(pools["running"][pool])].tolist()
        wanted = sorted(running[pool_of[running] == pool].tolist(), key=lambda j: (int(live["expected_end"][j]), j))
        if listed != wanted:
            yield f"pool {pool}: its running list is {listed}, should be {wanted}"


def _queues(simulation: ReplayState) -> Iterator[str]:
    """Queues hold the waiting jobs of their pools in order; nobody is lost; bookings lie ahead."""
    world = simulation.world
    live, pools = world["live"], world["pools"]
    waiting = np.flatnonzero(live["state"] == st.QUEUED)
    pool_of = world["requests"]["pool"][world["jobs"]["request"]]
    for pool in range(len(pools)):
        first, last = int(pools["queue_first"][pool]), int(pools["queue_last"][pool])
        if not pools["first_job"][pool] <= first <= last <= pools["last_job"][pool]:
            yield f"pool {pool}: its queue is outside its region"
        queue = world["queue"][first:last].tolist()
        mine = waiting[pool_of[waiting] == pool].tolist()
        if world["fixed_order"]:
            mine.sort(key=lambda j: (-float(live["score"][j]), j))
        if queue != mine:
            yield f"pool {pool}: its queue is {queue}, should be {mine}"
    if int(world["touched"]) != int((pools["change"] > 0).sum()):
        yield f"{world['touched']} pools count as touched, {int((pools['change'] > 0).sum())} are"
    ended = int(((live["state"] == st.COMPLETED) | (live["state"] == st.KILLED)).sum())
    if ended != simulation.ended:
        yield f"{simulation.ended} jobs have ended, {ended} are in such a state"
    for j in np.flatnonzero(live["booked_start"] >= 0).tolist():
        if live["state"][j] != st.QUEUED or not live["booked"][j]:
            yield f"job {j} is booked and does not wait"
        elif live["booked_start"][j] < simulation.now:
            yield f"job {j} was booked for {live['booked_start'][j]} and has not started"


def _groups(simulation: ReplayState) -> Iterator[str]:
    """Groups of jobs that are alike list those that wait, the first in the queue first."""
    world = simulation.world
    alike, groups, lists = world["alike"], world["alikes"], world["alike_lists"]
    if not len(alike):
        return
    waiting = np.flatnonzero(world["live"]["state"] == st.QUEUED)
    listed = [int(groups[k, 3]) for first, count in lists.tolist() for k in range(first, first + count)]
    if sorted(listed) != np.unique(alike[waiting, 0]).tolist():
        yield f"the lists have groups {sorted(listed)}, those with waiting jobs are others"
    for g in listed:
        found: list[int] = []
        j, before = int(groups[g, 0]), -1
        while j >= 0 and len(found) <= len(waiting):
            if int(alike[j, 1]) != before:
                yield f"job {j} of group {g} has {alike[j, 1]} before it, not {before}"
            found.append(j)
            before, j = j, int(alike[j, 2])
        if found != waiting[alike[waiting, 0] == g].tolist() or before != groups[g, 1]:
            yield f"group {g} lists {found}, to {groups[g, 1]}"
