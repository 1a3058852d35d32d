"""Large machines by runs: neighbouring nodes that are alike and equally free are one row, and cost follows the rows.

Implements P1 and P2 of docs/backfill.md, exactly as kernels.py does node by node (counting.py says when). The table
`runs` has, for each view and pool, rows (first node, CPU, MB, GPUs free on each node of the run), ascending; a row ends
where the next begins, and the last with the pool. `free` is kept for the view NOW alone.
"""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel import tables as t
from slurm_rl.kernel.arrays import CPU, GPU, MEM, NOW, Array, Record
from slurm_rl.kernel.jit import inlined, inner, kernel
from slurm_rl.kernel.links import INT, NOTHING, by_address
from slurm_rl.place.capacity import fits_totals, node_times, sort_keys
from slurm_rl.place.catalogue import FIRST_FIT, SPREAD

_FIRST, _CPU, _MEM, _GPU = range(4)  # columns of the table `runs`
_AMOUNT = np.int64((1 << 20) - 1)


@inlined
def run_end(w: Record, view: int, pool: int, k: int) -> int:
    """The node behind a run."""
    base = t.pools(w).first_node[pool]
    if k + 1 < t.run_count(w)[view, pool]:
        return t.runs(w)[view, base + k + 1, _FIRST]
    return t.pools(w).last_node[pool]


@inlined
def first_node(w: Record, view: int, row: int) -> int:
    """The first node of a row of the table `runs`."""
    return t.runs(w)[view, row, _FIRST]


@inlined
def _find(w: Record, view: int, pool: int, n: int) -> int:
    """The run that a node is in, counted from the pool's first."""
    runs, base = t.runs(w), t.pools(w).first_node[pool]
    low, high = 0, t.run_count(w)[view, pool] - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if runs[view, base + middle, _FIRST] <= n:
            low = middle
        else:
            high = middle - 1
    return low


@inlined
def _split(w: Record, view: int, pool: int, k: int, n: int) -> None:
    """Cuts a run before node `n`, which is in it and not its first."""
    runs, base = t.runs(w), t.pools(w).first_node[pool]
    for i in range(base + t.run_count(w)[view, pool], base + k, -1):
        for c in range(4):
            runs[view, i, c] = runs[view, i - 1, c]
    runs[view, base + k + 1, _FIRST] = n
    t.run_count(w)[view, pool] += 1


@inlined
def _join(w: Record, view: int, pool: int, k: int) -> None:
    """Makes a run one with that before it, if they are alike."""
    runs, base = t.runs(w), t.pools(w).first_node[pool]
    count = t.run_count(w)[view, pool]
    if k <= 0 or k >= count or not _alike(w, runs, view, base + k - 1, view, base + k):
        return
    for i in range(base + k, base + count - 1):
        for c in range(4):
            runs[view, i, c] = runs[view, i + 1, c]
    t.run_count(w)[view, pool] -= 1


@inlined
def _alike(w: Record, runs: Array, va: int, a: int, vb: int, b: int) -> bool:
    """Whether two rows have nodes of one class with the same left."""
    klass = t.nodes(w).klass
    return (
        runs[va, a, _CPU] == runs[vb, b, _CPU]
        and runs[va, a, _MEM] == runs[vb, b, _MEM]
        and runs[va, a, _GPU] == runs[vb, b, _GPU]
        and klass[runs[va, a, _FIRST]] == klass[runs[vb, b, _FIRST]]
    )


@inner
def add_to_run(w: Record, view: int, pool: int, n: int, count: int, cpu: int, mem: int, gpu: int) -> None:
    """Adds to what is free on each of `count` neighbouring nodes."""
    runs, base = t.runs(w), t.pools(w).first_node[pool]
    k = _find(w, view, pool, n)
    if runs[view, base + k, _FIRST] < n:
        _split(w, view, pool, k, n)
        k += 1
    first, behind = k, n + count
    while k < t.run_count(w)[view, pool] and runs[view, base + k, _FIRST] < behind:
        if run_end(w, view, pool, k) > behind:
            _split(w, view, pool, k, behind)
        runs[view, base + k, _CPU] += cpu
        runs[view, base + k, _MEM] += mem
        runs[view, base + k, _GPU] += gpu
        k += 1
    _join(w, view, pool, k)
    _join(w, view, pool, first)
    if view == NOW:
        free = t.free(w)
        for i in range(n, behind):
            free[NOW, i, CPU] += cpu
            free[NOW, i, MEM] += mem
            free[NOW, i, GPU] += gpu


@kernel
def shift_run(w: Record, s: int, view: int, n: int, units: int, count: int) -> None:
    """Adds `units` of a request (less than 0: takes them) to each of `count` neighbouring nodes of a view."""
    requests = t.requests(w)
    pool = np.int64(requests.pool[s])
    add_to_run(w, view, pool, n, count, units * requests.cpu[s], units * requests.mem[s], units * requests.gpu[s])


call_shift_run = by_address("shift_run", shift_run, NOTHING, INT, INT, INT, INT, INT)


@kernel
def change_node(w: Record, n: int, sign: int) -> None:
    """Adds a whole node to what is free now, or takes it."""
    nodes = t.nodes(w)
    add_to_run(
        w, NOW, np.int64(nodes.pool[n]), n, np.int64(1), sign * nodes.cpu[n], sign * nodes.mem[n], sign * nodes.gpu[n]
    )


call_change_node = by_address("change_node", change_node, NOTHING, INT, INT)


@kernel
def copy_runs(w: Record, pool: int, source: int, target: int) -> None:
    """Copies a pool's runs from one view to another."""
    runs, base, count = t.runs(w), t.pools(w).first_node[pool], t.run_count(w)[source, pool]
    for k in range(base, base + count):
        for c in range(4):
            runs[target, k, c] = runs[source, k, c]
    t.run_count(w)[target, pool] = count
    for c in range(3):
        t.total(w)[target, pool, c] = t.total(w)[source, pool, c]


call_copy_runs = by_address("copy_runs", copy_runs, NOTHING, INT, INT, INT)


@kernel
def meet_runs(w: Record, pool: int, a: int, b: int, target: int) -> None:
    """What is free in both views, with its sums; `target` is neither of them."""
    runs, total, base = t.runs(w), t.total(w), t.pools(w).first_node[pool]
    i, j, count = 0, 0, 0
    cpu, mem, gpu = np.int64(0), np.int64(0), np.int64(0)
    at, last = base, t.pools(w).last_node[pool]
    while at < last:
        end_a, end_b = run_end(w, a, pool, i), run_end(w, b, pool, j)
        end = min(end_a, end_b)
        row = base + count
        runs[target, row, _FIRST] = at
        for c in range(_CPU, 4):
            runs[target, row, c] = min(runs[a, base + i, c], runs[b, base + j, c])
        cpu += (end - at) * runs[target, row, _CPU]
        mem += (end - at) * runs[target, row, _MEM]
        gpu += (end - at) * runs[target, row, _GPU]
        if count == 0 or not _alike(w, runs, target, row - 1, target, row):
            count += 1
        i += end_a == end
        j += end_b == end
        at = end
    t.run_count(w)[target, pool] = count
    total[target, pool, CPU], total[target, pool, MEM], total[target, pool, GPU] = cpu, mem, gpu


call_meet_runs = by_address("meet_runs", meet_runs, NOTHING, INT, INT, INT, INT)


@inlined
def room_of_run(w: Record, s: int, view: int, row: int, wanted: int) -> int:
    """Units of a request that each node of a run has room for, at most `wanted`; 0 if the request may not use them."""
    requests, runs = t.requests(w), t.runs(w)
    units = node_times(runs[view, row, _GPU], requests.gpu[s], wanted)
    if units > 0:
        units = node_times(runs[view, row, _CPU], requests.cpu[s], units)
    if units > 0:
        units = node_times(runs[view, row, _MEM], requests.mem[s], units)
    if units > 0 and not _of_kind(w, s, t.nodes(w).klass[runs[view, row, _FIRST]]):
        units = 0
    return units


@inlined
def _of_kind(w: Record, s: int, klass: int) -> bool:
    kind = t.requests(w).kind[s]
    for i in range(t.class_ptr(w)[kind], t.class_ptr(w)[kind + 1]):
        if t.class_list(w)[i] == klass:
            return True
    return False


@inlined
def put_entry(w: Record, at: int, n: int, units: int, count: int) -> int:
    """Writes an entry, or makes the one before longer; how many there are then."""
    spot = t.spot(w)
    if at > 0 and spot.units[at - 1] == units and spot.node[at - 1] + spot.more[at - 1] + 1 == n:
        spot.more[at - 1] += count
        return at
    spot.node[at], spot.units[at], spot.gpus[at], spot.more[at] = n, units, 0, count - 1
    return at + 1


@kernel
def place_runs(w: Record, s: int, view: int) -> int:
    """Chooses nodes for a request, as `place` does; the number of entries written to `t.spot(w)`."""
    if not fits_totals(w, s, view):
        return 0
    pool = np.int64(t.requests(w).pool[s])
    if w.placer == FIRST_FIT:
        return _first(w, s, view, pool)
    return _fewest(w, s, view, pool, w.placer == SPREAD)


@inner
def _first(w: Record, s: int, view: int, pool: int) -> int:
    """P1: nodes as they come."""
    base, left, entries = t.pools(w).first_node[pool], t.requests(w).units[s], 0
    most = min(left, t.requests(w).per_node[s])
    for k in range(t.run_count(w)[view, pool]):
        units = room_of_run(w, s, view, base + k, most)
        if units == 0:
            continue
        n = t.runs(w)[view, base + k, _FIRST]
        here = run_end(w, view, pool, k) - n
        whole = min(here, left // units)
        if whole > 0:
            entries = put_entry(w, entries, n, units, whole)
            left -= whole * units
        if left > 0 and whole < here:
            entries = put_entry(w, entries, n + whole, left, np.int64(1))  # fewer than the node could hold
            left = 0
        if left == 0:
            return entries
    return 0


@inner
def _fewest(w: Record, s: int, view: int, pool: int, emptiest: bool) -> int:
    """P2: one node that holds all that is left, else those that hold most; then the fullest (or emptiest)."""
    requests, runs, base = t.requests(w), t.runs(w), t.pools(w).first_node[pool]
    column = _GPU if requests.gpu[s] > 0 else _CPU
    left, rows = requests.units[s], t.run_count(w)[view, pool]
    most = min(left, requests.per_node[s])
    best, best_free, candidates, room = -1, 0, 0, 0
    for k in range(rows):
        units = room_of_run(w, s, view, base + k, most)
        if units == 0:
            continue
        candidates += 1
        room += units * (run_end(w, view, pool, k) - runs[view, base + k, _FIRST])
        if units == left:
            amount = runs[view, base + k, column]
            if best < 0 or (amount > best_free if emptiest else amount < best_free):
                best, best_free = runs[view, base + k, _FIRST], amount
    if best >= 0:
        return put_entry(w, np.int64(0), best, left, np.int64(1))
    if room < left:
        return 0
    keys = np.empty(candidates, dtype=np.int64)
    at = 0
    for k in range(rows):
        units = room_of_run(w, s, view, base + k, most)
        if units > 0:
            amount = min(runs[view, base + k, column], _AMOUNT)
            keys[at] = -(units << 40) + ((_AMOUNT - amount if emptiest else amount) << 20) + k
            at += 1
    sort_keys(keys)
    entries = 0
    for i in range(candidates):
        k = keys[i] & _AMOUNT
        n = runs[view, base + k, _FIRST]
        here = run_end(w, view, pool, k) - n
        units = room_of_run(w, s, view, base + k, most)
        whole = min(here, (left - 1) // units)
        if whole > 0:
            entries = put_entry(w, entries, n, units, whole)
            left -= whole * units
        if whole < here:
            # The last node: of all the rest that hold what is left, the fullest (or emptiest).
            n = _last(w, s, view, keys, i, n + whole, left, column, emptiest, pool)
            return put_entry(w, entries, n, left, np.int64(1))
    return 0


@inlined
def _last(
    w: Record,
    s: int,
    view: int,
    keys: np.ndarray,
    start: int,
    n: int,
    left: int,
    column: int,
    emptiest: bool,
    pool: int,
) -> int:
    runs, base = t.runs(w), t.pools(w).first_node[pool]
    best, best_free = n, runs[view, base + (keys[start] & _AMOUNT), column]
    for i in range(start + 1, len(keys)):
        row = base + (keys[i] & _AMOUNT)
        if room_of_run(w, s, view, row, left) < left:
            break  # rows are sorted by room: no later one holds more
        amount, first = runs[view, row, column], runs[view, row, _FIRST]
        if (amount > best_free if emptiest else amount < best_free) or (amount == best_free and first < best):
            best, best_free = first, amount
    return best
