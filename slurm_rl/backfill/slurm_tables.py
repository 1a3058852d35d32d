"""The tables that the rule `slurm` plans with: made once for a World."""

from __future__ import annotations

import itertools

import numpy as np

from slurm_rl.backfill.bitmaps import FIRST_SET
from slurm_rl.kernel.arrays import LEAVER, LEFT, OTHER, PIECE, ROW, SHAPE, Array
from slurm_rl.kernel.build import pack_bits
from slurm_rl.kernel.tables import World

_GAINS = 1 << 20  # numbers in the table `gain`, at most: 4 MB


def make_slurm_tables(world: World) -> None:
    """Gives a World the tables of the rule `slurm`; those of entries and requests must be set."""
    jobs, requests, nodes = world["jobs"], world["requests"], world["nodes"]
    depth = max(min(int(world["bf_depth"]), len(jobs)), 1)
    part = np.zeros(len(requests), dtype=np.int64)
    part[jobs["request"]] = jobs["partition"]
    words = world["part_bits"].shape[1]
    world["rows"] = np.zeros(2 * depth + 4, dtype=ROW)  # a reservation begins two rows at most
    world["bitmaps"] = np.zeros((int(FIRST_SET) + 2 * depth + 4, words), dtype=np.int64)
    world["shapes"], world["shape_of"] = _shapes(world, part)
    # Those that are held back may stand before many that are looked at (L3, V2).
    held = len(world["quotas"]) + len(world["kept"]) > 0
    slots = max(len(world["shapes"]) if held else min(depth, len(world["shapes"])), 1)
    _make_sets(world, part, slots)
    world["counted"] = (
        world["used"].shape[2] == 0
        and world["free"].shape[2] == OTHER
        and not requests["careful"].any()
        and not (requests["chain"] >= 0).any()
        and not (requests["switches"].any() or requests["segment"].any())
    )
    leavers = len(world["entries"])
    gains = max(min(slots, _GAINS // leavers), 1)
    by_runs = len(nodes) if world["by_runs"] else 1
    tables = {
        "pieces": np.zeros(by_runs, dtype=PIECE),
        "piece_of": np.zeros(by_runs, dtype=np.int64),
        "alike_nodes": np.zeros(by_runs, dtype=np.int64),
        "avail": np.zeros((slots, len(nodes)), dtype=np.int64),
        "roomy": np.zeros((slots, words), dtype=np.int64),
        "able": np.zeros((slots, words), dtype=np.int64),
        "in_sum": np.zeros(slots, dtype=np.int64),
        "slot_shape": np.zeros(slots, dtype=np.int64),
        "leavers": np.zeros(leavers, dtype=LEAVER),
        "left": np.zeros(leavers, dtype=LEFT),
        "then": np.zeros((len(nodes), 4), dtype=np.int64),
        "gain": np.zeros((gains, leavers), dtype=np.int32),
        "gains_known": np.zeros((gains, 2), dtype=np.int64),
        "sums": np.zeros((leavers, 4), dtype=np.int64),
        "tally": np.zeros(len(world["users"]) + len(world["part_bits"]), dtype=np.int64),
    }
    for name, table in tables.items():
        world[name] = table
    world["mark"] = 0


def _make_sets(world: World, part: Array, slots: int) -> None:
    """The sets of nodes that jobs of a kind, of a request's partitions, and of a request may use."""
    requests, nodes, words = world["requests"], world["nodes"], world["part_bits"].shape[1]
    kinds = np.zeros((len(world["kind_ptr"]) - 1, len(nodes)), dtype=bool)
    for kind, (at, end) in enumerate(itertools.pairwise(world["kind_ptr"].tolist())):
        kinds[kind, world["kind_node"][at:end]] = True
    world["kind_bits"] = pack_bits(kinds)
    reach = world["part_bits"][part]
    for s in np.flatnonzero(requests["chain"] >= 0).tolist():
        at = int(requests["chain"][s])
        while at >= 0:
            kind, at = world["node_sets"][at].tolist()
            reach[s] |= world["kind_bits"][kind]
    # select/cons_tres leaves out nodes that are too small in CPUs or memory, but not those without the job's GPUs.
    large = pack_bits(
        (nodes["cpu"][None, :] >= requests["cpu"][:, None]) & (nodes["mem"][None, :] >= requests["mem"][:, None])
    )
    usable = reach & large
    # More rows, for what reservations leave to one job, or for the pieces that each slot may use.
    more = 1 if len(world["kept"]) else slots if world["by_runs"] else 0
    world["reach"] = reach
    world["usable"] = np.concatenate([usable, np.zeros((more, words), dtype=np.int64)])


def _shapes(world: World, part: Array) -> tuple[Array, Array]:
    """Distinct shapes of requests, and each request's: units that are alike, from the same nodes."""
    requests = world["requests"]
    columns = [requests[name] for name in ("cpu", "mem", "gpu", "kind", "chain")]
    columns += [np.minimum(np.minimum(requests["units"], requests["per_node"]), _most_on_one(world)), part]
    if not len(requests):
        return np.zeros(1, dtype=SHAPE), np.zeros(1, dtype=np.int64)
    distinct, first, shape_of = np.unique(np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True)
    shapes = np.zeros(len(distinct), dtype=SHAPE)
    for name in ("cpu", "mem", "gpu", "kind"):
        shapes[name] = requests[name][first]
    shapes["most"], shapes["request"] = distinct[:, 5], first
    return shapes, shape_of.reshape(-1).astype(np.int64)


def _most_on_one(world: World) -> Array:
    """Units of each request that the roomiest node of its kind holds when it is empty."""
    requests, nodes = world["requests"], world["nodes"]
    klass, example = np.unique(nodes["klass"], return_index=True)
    most = np.zeros(len(requests), dtype=np.int64)
    for kind in np.unique(requests["kind"]).tolist():
        mine = requests["kind"] == kind
        of = world["class_list"][world["class_ptr"][kind] : world["class_ptr"][kind + 1]]
        for node in nodes[example[np.isin(klass, of)]]:
            room = np.full(int(mine.sum()), np.iinfo(np.int64).max)
            for name in ("cpu", "mem", "gpu"):
                asked = requests[name][mine]
                room = np.where(asked > 0, np.minimum(room, node[name] // np.maximum(asked, 1)), room)
            most[mine] = np.maximum(most[mine], room)
    return most
