"""The World: one record of addresses and settings that kernels pass around, and the tables behind the addresses.

A kernel takes the record as `w` and reads `t.jobs(w).submit[j]`. One pointer is all that is handed from kernel to
kernel: tuples of arrays would cost a reference count for each array at each call, and minutes of compilation.
`World` in Python owns the arrays and keeps the addresses right.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import from_dtype

from slurm_rl.kernel.arrays import (
    ACCOUNT,
    CHOOSER,
    ENTRY,
    EVENT,
    FIRST_ROW,
    GPU_MILLI,
    GROUP,
    HINT,
    JOB,
    LEAVER,
    LEFT,
    LIVE,
    LOG,
    MIX,
    NODE,
    OTHER,
    PIECE,
    POOL,
    REQUEST,
    ROW,
    SCALARS,
    SHAPE,
    TURN,
    TYPE,
    USER,
    Array,
)

INT, WHOLE, SMALL, FLOAT, SINGLE = np.dtype("i8"), np.dtype("i4"), np.dtype("i2"), np.dtype("f8"), np.dtype("f4")

# Name, record or number type, dimensions of each table.
TABLES: dict[str, tuple[np.dtype[Any], int]] = {
    "jobs": (JOB, 1),  # what is known of each job
    "live": (LIVE, 1),  # what becomes of each job
    "requests": (REQUEST, 1),  # distinct requests
    "nodes": (NODE, 1),  # nodes, those of a pool being neighbours
    "kind_ptr": (INT, 1),  # [kinds + 1] into kind_node
    "kind_node": (INT, 1),  # nodes that jobs of a kind may use, ascending within a kind
    "class_ptr": (INT, 1),  # [kinds + 1] into class_list
    "class_list": (INT, 1),  # node classes that jobs of a kind may use
    "speed": (FLOAT, 2),  # [rows, GPU types]
    "pools": (POOL, 1),  # pools
    "free": (WHOLE, 3),  # [views, nodes, 3 + kinds of other GRES] unused cpu, mem, gpu, others
    # [views, nodes, slots] parts in use of each GPU; no slots unless a job asks for a share, or GPUs differ on a node
    "used": (SMALL, 3),
    "devices": (INT, 3),  # [node classes, slots, 4] type, parts, sharing, name of each GPU; type -1: there is none
    "others": (INT, 2),  # [node classes, kinds of other GRES] that a node has
    "demand": (INT, 2),  # [requests, GPU types + kinds of other GRES] a unit; empty if nobody asks for such
    "node_sets": (INT, 2),  # [rows, 2] a kind, and the row to try next, -1: none
    "total": (INT, 3),  # [views, pools, 3] sums of cpu, mem, gpu
    "runs": (INT, 3),  # [views, nodes, 4] first node, cpu, mem, gpu of each run of nodes that are alike
    "run_count": (INT, 2),  # [views, pools] runs of each
    "levels": (INT, 3),  # [views, levels, words] bits of the nodes with so much free, and of the words that are not 0
    "changed": (INT, 3),  # [2, nodes, 2] nodes in which views may differ (place/levels.py) …
    "changed_count": (INT, 2),  # … [2, pools] and how many of each pool
    "entries": (ENTRY, 1),  # who holds what: chains of entries; entry 0 heads the chain of spare ones
    "spot": (ENTRY, 1),  # scratch: one job's placement
    "running": (INT, 1),  # a pool's running jobs, from its first_job on, by expected end
    "rows": (ROW, 1),  # scratch: the rows of a profile in time order
    "part_bits": (INT, 2),  # [partitions, words] bits of the nodes of each partition
    "reach": (INT, 2),  # backfill `slurm`: [requests, words] bits of the nodes of its partitions
    "usable": (INT, 2),  # backfill `slurm`: [requests, words] bits of the nodes that are large enough
    "bitmaps": (INT, 2),  # backfill `slurm`, scratch: sets of nodes (backfill/bitmaps.py)
    "kind_bits": (INT, 2),  # backfill `slurm`, levels: [kinds, words] bits of the nodes that jobs of a kind may use
    "shapes": (SHAPE, 1),  # backfill `slurm`: distinct units of requests
    "shape_of": (INT, 1),  # backfill `slurm`: [requests] its shape
    # Backfill `slurm`, scratch of a cycle; a node is a piece unless the World has runs (backfill/pieces.py):
    "pieces": (PIECE, 1),  # [nodes] neighbours that the same jobs hold; not used without runs
    "piece_of": (INT, 1),  # [nodes] the piece that begins with a node; not used without runs
    "avail": (INT, 2),  # [slots, pieces] units of a shape that each node of a piece has room for
    "able": (INT, 2),  # [slots, words] bits of the pieces that a shape may use at all
    "roomy": (INT, 2),  # [slots, words] bits of the pieces with room
    "in_sum": (INT, 1),  # [slots] units that all have room for
    "slot_shape": (INT, 1),  # [slots] the shape that a row of `avail` is for
    "leavers": (LEAVER, 1),  # who leaves when (backfill/leavers.py) …
    "left": (LEFT, 1),  # … and what is free then
    "then": (INT, 2),  # [pieces, 4] what is free on each node when the last of `leavers` have left, and a mark
    "gain": (WHOLE, 2),  # [some slots, leavers] units of a shape for which a node has more room then; -1: not known
    "gains_known": (INT, 2),  # [some slots, 2] the mark that a row of `gain` belongs to, and how far it goes
    "sums": (INT, 2),  # [1 + running jobs, 4] CPUs, MB, GPUs free in sum now, and when one leaves, and that time
    "alike_nodes": (INT, 1),  # beside `fitting`: how many nodes from one on are alike; not used without runs
    "tally": (INT, 1),  # backfill `slurm`, scratch: jobs tested of each user, then of each partition
    "fitting": (INT, 1),  # scratch: nodes that placement `slurm` may choose from, or that levels have found …
    "room": (INT, 1),  # … and by node, the units that it could put there, or whether it is taken
    "users": (USER, 1),  # users' holdings and past
    "accounts": (ACCOUNT, 1),  # accounts' holdings and past
    "groups": (GROUP, 1),  # what finished jobs taught the estimator
    "partition_factor": (FLOAT, 1),  # [partitions] of Slurm's multifactor
    "qos_factor": (FLOAT, 1),  # [qos] of Slurm's multifactor
    "points": (FLOAT, 1),  # [jobs] what size and TRES add to Slurm's multifactor, as a site has set it up; may be empty
    "work": (FLOAT, 1),  # seconds each job needs on a node of speed 1: the truth, for the replay engine alone
    "heap": (INT, 1),  # running jobs by (end, index)
    "queue": (INT, 1),  # a pool's queue lies within its first_job … last_job
    "scores": (FLOAT, 1),  # scratch
    "order": (INT, 1),  # scratch
    "scratch": (INT, 1),  # scratch
    "started": (INT, 1),  # scratch: jobs that a pass starts
    # Jobs that differ in age alone (sim/slurm_rl_sim/alike.py), or of one user (renewed.py); empty: not kept
    "alike": (WHOLE, 2),  # [jobs, 3] the group, and the waiting jobs before and behind in it, -1: none
    "alikes": (INT, 2),  # [groups, 5] first and last waiting job, place in its pool's list, the list, and a figure
    "alike_lists": (INT, 2),  # [pools, 2] where a pool's list of groups begins, and how many have waiting jobs
    "candidates": (INT, 2),  # [policies, 2] addresses for `score_queue` and `score` that a meta-policy chooses from
    "caps": (FLOAT, 1),  # [policies] starve_drain while one of them rules
    "choosers": (CHOOSER, 1),  # [pools] a meta-policy's state
    "regime": (SINGLE, 2),  # [pools, features] what it saw when it last chose …
    "worth": (FLOAT, 2),  # [pools, policies] … and what it thought of each policy
    "arms": (FLOAT, 3),  # [pools, policies, figures] what a bandit has learned (policy/bandits.py)
    "chooser_net": (SINGLE, 1),  # weights of the network that chooses (policy/meta_network.py)
    "choices": (FLOAT, 2),  # recorded choices, for training
    "net": (SINGLE, 1),  # weights of a network (policy/network.py)
    "features": (SINGLE, 2),  # scratch: what a network sees of each waiting job …
    "context": (SINGLE, 1),  # scratch: … and of the pool
    "hidden": (SINGLE, 2),  # scratch
    "tape": (SINGLE, 2),  # recorded features, for training
    "turns": (TURN, 1),  # recorded passes, for training
    "events": (EVENT, 1),  # nodes that go down and come back
    "log": (LOG, 1),  # who ran where
    "log_gpus": (INT, 1),  # … on which GPUs, as bits; empty unless GPUs differ on a node
    "log_more": (INT, 1),  # … and on so many nodes behind the named one; empty unless the World has runs
    "prefer": (FLOAT, 2),  # [requests, GPU types] where jobs should rather go; placers `greedy` and `mip`
    "hint_of": (INT, 1),  # [jobs] 1 + the job's first row in `hint`; 0: none; < 0: deferred until its negative
    "hint": (HINT, 1),  # nodes that a plan has chosen for jobs, units on them, and the type of the GPUs
    "tiers": (INT, 1),  # [jobs] of its partition: higher tiers first, whatever the scores; empty: all are equal
    "quotas": (INT, 2),  # [rows, 2] a limit that jobs count towards, and what is used of it (quotas.py); empty: none
    "bounds": (INT, 2),  # [rows, 3] a quota, an amount, what it bounds: lists that jobs share
    "bound_ptr": (INT, 1),  # [lists + 1] into bounds
    "bound_of": (INT, 1),  # [jobs] the list of each job
    "kept": (INT, 2),  # [rows, columns of reserved.py] reservations of nodes, from when to when; empty: none
    "kept_bits": (INT, 2),  # [rows, words] bits of their nodes
    "kept_for": (INT, 1),  # [jobs] 1 + the reservation that a job is for; 0: none
    "open_bits": (INT, 2),  # [1, words], scratch: nodes that reservations leave to a job
    "gpu_mem": (INT, 2),  # [jobs, 2] a job's group, and the level of GPU memory that it will need; for the engine alone
    "gpu_mem_row": (INT, 2),  # [requests, levels] the request of jobs that are known to need a level
    "gpu_mem_known": (INT, 1),  # [groups] the highest level of those that have ended
    "mix": (MIX, 1),  # requests that free GPUs should be of use to; placer `mip`
    "latency": (INT, 1),  # cycles per scheduling pass, in buckets
}

# Tables that a kernel may find empty: it asks for their length, or for another table that says so, before it reads.
MAY_BE_EMPTY = frozenset(
    "runs run_count kind_node class_list used demand node_sets rows work order events log log_gpus log_more tape turns "
    "points alike alikes alike_lists hint_of hint tiers quotas bounds bound_ptr bound_of kept kept_bits kept_for "
    "open_bits mix choices gpu_mem gpu_mem_row gpu_mem_known".split()
)

# Slots for kernels that others call by their address (see links.py).
LINKS = (
    "place",  # nodes for a request
    "place_special",  # a placement's own choice, or PASS
    "place_in_blocks",  # nodes for a gang that blocks or switches matter to
    "room_on_devices",  # GPUs that differ or are shared: units that a node has room for …
    "pick_devices",  # … which GPUs they get …
    "shift_devices",  # … and what is free changes
    "leave_open",  # reservations: the nodes that they leave to a job …
    "place_beside",  # … its nodes among these …
    "reserve_head_beside",  # … and a head's reservation
    "shift_run",  # runs or levels of nodes: what is free changes …
    "change_node",  # … a node goes or comes back …
    "copy_runs",  # … a view is copied …
    "meet_runs",  # … what two views have in common
    "reserve_by_level",  # EASY's reservation where nodes have levels; 0: they have none
    "follow_hint",  # nodes that a plan has chosen
    "backfill_pass",  # which jobs start at an event …
    "backfill_cycle",  # … and at a rule's own ticks
    "order_queue",
    "choose_policy",  # a meta-policy's choice before a queue is scored; 0: none
    "score_queue",  # scores of a queue …
    "score",  # … and of one job
    "start_best",  # a pass that sorts its queue only as far as it looks; 0: it is sorted before
    "start_alike",  # a pass that compares groups of jobs that are alike; 0: there are none
    "renew_order",  # puts a queue that is kept sorted by estimates in order anew; 0: none is
    "join_alike",  # a job joins its group …
    "leave_alike",  # … and leaves it
    "enter_lane",  # the oldest job may go first; 0: there is no lane
    "record_turn",
    "preempt",
    "node_events",
    "learn_memory",  # what a finished job says of the GPU memory of others; 0: nobody is told
)

WORLD = np.dtype(
    [(f"{name}_ptr", "i8") for name in TABLES]
    + [(f"{name}_{i}", "i8") for name, (_, dimensions) in TABLES.items() for i in range(dimensions)]
    + [(f"{name}_at", "i8") for name in LINKS]
    + SCALARS,
    align=True,
)


class World:
    """Owns the record and the arrays behind its addresses; a table that is not given is empty."""

    def __init__(self, **tables: Array) -> None:
        self.record = np.zeros(1, dtype=WORLD)
        self._tables: dict[str, Array] = {}
        for name, (dtype, dimensions) in TABLES.items():
            self[name] = tables.pop(name, np.zeros((0,) * dimensions, dtype=dtype))
        if tables:
            raise TypeError(f"no such table: {', '.join(tables)}")

    def copy(self) -> World:
        """Another World with the same content, sharing nothing."""
        other = World(**{name: table.copy() for name, table in self._tables.items()})
        for name in [name for name, _ in SCALARS] + [f"{name}_at" for name in LINKS]:
            other.record[name] = self.record[name]
        return other

    def unlink(self) -> None:
        """Empties the slots: what is linked next is all that there is."""
        for name in LINKS:
            self.record[f"{name}_at"] = 0

    def fork(self, constant: Collection[str]) -> World:
        """Another World with the same content, sharing only the tables that nobody changes."""
        if len(self["gpu_mem"]):
            constant = frozenset(constant) - {"jobs"}  # what a job asks for may change
        other = World.__new__(World)
        other.record, other._tables = self.record.copy(), dict(self._tables)
        for name in other._tables.keys() - constant:
            table = other._tables[name] = self._tables[name].copy()
            other.record[f"{name}_ptr"] = table.ctypes.data
        return other

    def __getitem__(self, name: str) -> Any:
        """A table, or a setting."""
        return self._tables[name] if name in self._tables else self.record[name][0]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in TABLES:
            self.record[name] = value
            return
        dtype, dimensions = TABLES[name]
        if value.dtype != dtype or value.ndim != dimensions or not value.flags.c_contiguous:
            raise TypeError(f"table {name}: want {dimensions}-d {dtype}, got {value.ndim}-d {value.dtype}")
        self._tables[name] = value  # kept alive as long as its address is
        self.record[f"{name}_ptr"] = value.ctypes.data
        for i, length in enumerate(value.shape):
            self.record[f"{name}_{i}"] = length


def enough_rows(world: World, rows: int, *, on_nodes: bool) -> None:
    """Makes room for a profile of `rows` rows, each with a view of the nodes on request."""
    lengths = {"rows": rows}
    if on_nodes:
        lengths |= dict.fromkeys(("free", "used", "total"), int(FIRST_ROW) + rows)
    for name, length in lengths.items():
        old = world[name]
        if old.shape[0] < length:
            grown = np.zeros((length, *old.shape[1:]), dtype=old.dtype)
            grown[: old.shape[0]] = old
            world[name] = grown


def fill_views(world: World) -> None:
    """Everything unused, in every view."""
    nodes, free, used, total = world["nodes"], world["free"], world["used"], world["total"]
    used[:] = np.where(world["devices"][nodes["klass"]][:, : used.shape[2], TYPE] >= 0, 0, GPU_MILLI)
    free[:, :, OTHER:] = world["others"][nodes["klass"]]
    for column, field in enumerate(("cpu", "mem", "gpu")):
        free[:, :, column] = nodes[field]
        total[:, :, column] = np.bincount(nodes["pool"], weights=nodes[field], minlength=len(world["pools"]))


_member: Any = cgutils.get_record_member
_populate: Any = populate_array
_copy: Any = cgutils.raw_memcpy
_move: Any = cgutils.raw_memmove


def _table(name: str) -> Any:
    """An accessor for kernels: the table behind the address in a World's record; nothing is counted or freed."""
    dtype, dimensions = TABLES[name]
    array_type = types.Array(from_dtype(dtype), dimensions, "C")

    def typing(typing_context: Any, w: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def field(suffix: str) -> Any:
                offset = w.offset(f"{name}_{suffix}")
                return builder.load(_member(builder, arguments[0], offset, intp))

            intp = context.get_value_type(types.intp)
            array = context.make_array(array_type)(context, builder)
            item = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
            shape = [field(str(i)) for i in range(dimensions)]
            strides = [item]
            for length in reversed(shape[1:]):
                strides.insert(0, builder.mul(strides[0], length))
            _populate(
                array,
                data=builder.inttoptr(field("ptr"), array.data.type),
                shape=shape,
                strides=strides,
                itemsize=item,
                meminfo=None,
            )
            return array._getvalue()

        return array_type(w), code

    return intrinsic(typing)


def _copier(name: str) -> Any:
    """For kernels: `(w, source, target, first, last)` copies these rows of a table [views, rows, …] to another view."""
    dtype, dimensions = TABLES[name]

    def typing(typing_context: Any, w: Any, source: Any, target: Any, first: Any, last: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def field(suffix: str) -> Any:
                return builder.load(_member(builder, arguments[0], w.offset(f"{name}_{suffix}"), intp))

            def row(view: Any) -> Any:
                at = builder.mul(builder.add(builder.mul(view, field("1")), start), row_size)
                return builder.inttoptr(builder.add(field("ptr"), at), byte.as_pointer())

            intp, byte = context.get_value_type(types.intp), context.get_value_type(types.uint8)
            _, from_view, to_view, start, end = arguments
            row_size = context.get_constant(types.intp, dtype.itemsize)
            for i in range(2, dimensions):
                row_size = builder.mul(row_size, field(str(i)))
            size = builder.mul(builder.sub(end, start), row_size)
            _copy(builder, row(to_view), row(from_view), size, context.get_constant(types.intp, 1))
            return context.get_dummy_value()

        return types.none(w, *[types.intp] * 4), code

    return intrinsic(typing)


def _mover(name: str) -> Any:
    """For kernels: `(w, source, target, count)` moves rows within a table, to where they may overlap."""
    dtype, _ = TABLES[name]

    def typing(typing_context: Any, w: Any, source: Any, target: Any, count: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            intp, byte = context.get_value_type(types.intp), context.get_value_type(types.uint8)
            address = builder.load(_member(builder, arguments[0], w.offset(f"{name}_ptr"), intp))
            size = context.get_constant(types.intp, dtype.itemsize)

            def row(at: Any) -> Any:
                return builder.inttoptr(builder.add(address, builder.mul(at, size)), byte.as_pointer())

            _move(builder, row(arguments[2]), row(arguments[1]), arguments[3], size)
            return context.get_dummy_value()

        return types.none(w, *[types.intp] * 3), code

    return intrinsic(typing)


move_running = _mover("running")
copy_free = _copier("free")
copy_used = _copier("used")
jobs = _table("jobs")
live = _table("live")
requests = _table("requests")
nodes = _table("nodes")
kind_ptr = _table("kind_ptr")
kind_node = _table("kind_node")
class_ptr = _table("class_ptr")
class_list = _table("class_list")
speed = _table("speed")
pools = _table("pools")
free = _table("free")
used = _table("used")
devices = _table("devices")
others = _table("others")
demand = _table("demand")
node_sets = _table("node_sets")
total = _table("total")
runs = _table("runs")
run_count = _table("run_count")
levels = _table("levels")
changed = _table("changed")
changed_count = _table("changed_count")
entries = _table("entries")
spot = _table("spot")
running = _table("running")
rows = _table("rows")
part_bits = _table("part_bits")
reach = _table("reach")
usable = _table("usable")
bitmaps = _table("bitmaps")
kind_bits = _table("kind_bits")
avail = _table("avail")
roomy = _table("roomy")
shapes = _table("shapes")
shape_of = _table("shape_of")
pieces = _table("pieces")
piece_of = _table("piece_of")
able = _table("able")
in_sum = _table("in_sum")
slot_shape = _table("slot_shape")
leavers = _table("leavers")
left = _table("left")
then = _table("then")
gain = _table("gain")
gains_known = _table("gains_known")
sums = _table("sums")
tally = _table("tally")
fitting = _table("fitting")
room = _table("room")
users = _table("users")
accounts = _table("accounts")
groups = _table("groups")
partition_factor = _table("partition_factor")
qos_factor = _table("qos_factor")
points = _table("points")
work = _table("work")
heap = _table("heap")
queue = _table("queue")
scores = _table("scores")
order = _table("order")
scratch = _table("scratch")
started = _table("started")
alike = _table("alike")
alike_nodes = _table("alike_nodes")
alikes = _table("alikes")
alike_lists = _table("alike_lists")
candidates = _table("candidates")
caps = _table("caps")
choosers = _table("choosers")
regime = _table("regime")
worth = _table("worth")
arms = _table("arms")
chooser_net = _table("chooser_net")
choices = _table("choices")
net = _table("net")
features = _table("features")
context = _table("context")
hidden = _table("hidden")
tape = _table("tape")
turns = _table("turns")
events = _table("events")
log = _table("log")
log_gpus = _table("log_gpus")
log_more = _table("log_more")
prefer = _table("prefer")
hint_of = _table("hint_of")
hint = _table("hint")
tiers = _table("tiers")
quotas = _table("quotas")
bounds = _table("bounds")
bound_ptr = _table("bound_ptr")
bound_of = _table("bound_of")
kept = _table("kept")
kept_bits = _table("kept_bits")
kept_for = _table("kept_for")
open_bits = _table("open_bits")
mix = _table("mix")
gpu_mem = _table("gpu_mem")
gpu_mem_row = _table("gpu_mem_row")
gpu_mem_known = _table("gpu_mem_known")
latency = _table("latency")
