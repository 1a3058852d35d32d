"""Links a World: fills its slots with the kernels of its policy, placement and backfill rule."""

from __future__ import annotations

import numpy as np

from slurm_rl.kernel.catalogue import Chooser, Row, find_kernel
from slurm_rl.kernel.links import address_of, link
from slurm_rl.kernel.tables import World

_FOR_SORTING = ("order_queue", "score_queue", "choose_policy")


def link_slot(world: World, row: Row, name: str) -> None:
    """Links what a row names for one slot, if it does."""
    if name in row.kernels:
        link(world, name, find_kernel(row.kernels[name]))


def _addresses(world: World, choice: Row) -> list[int]:
    """What a meta-policy puts into the slots `score_queue` and `score` to let this policy score; 0: nothing."""
    found = {name: choice.kernels.get(name) for name in ("score_queue", "score")}
    return [address_of(world, name, find_kernel(where)) if where else 0 for name, where in found.items()]


def _blocks_matter(world: World) -> bool:
    """Whether some job must keep to blocks, or the placement keeps gangs within them."""
    requests = world["requests"]
    insists = requests["switches"].any() or requests["segment"].any()
    return bool(insists or (world["by_block"] and world["blocks"] > 1))


def _devices_matter(world: World) -> bool:
    """Whether GPUs of a node are told apart, or a request looks at more than sums."""
    return bool(world["used"].shape[2] > 0 or world["requests"]["careful"].any())


def _reserved(world: World) -> bool:
    """Whether nodes are reserved for a time."""
    return len(world["kept"]) > 0


# Slots that are linked for some workloads alone: nothing calls them elsewhere, so their kernels are not compiled.
RARE = {
    "place_in_blocks": _blocks_matter,
    **dict.fromkeys(("room_on_devices", "pick_devices", "shift_devices"), _devices_matter),
    **dict.fromkeys(("leave_open", "place_beside", "reserve_head_beside"), _reserved),
}


def link_kernels(world: World, *rows: Row) -> None:
    """Links what the rows of a World's policy, placement and backfill rule name: call it when all tables are set."""
    sorts = len(world["scores"]) > 0  # a fixed order is kept, not sorted
    for row in rows:
        if sorts and isinstance(row, Chooser) and row.choices:
            world["candidates"] = np.array([_addresses(world, choice) for choice in row.choices], dtype=np.int64)
        for name in row.kernels:
            if name in RARE and not RARE[name](world):
                continue
            if sorts or name not in _FOR_SORTING:
                link_slot(world, row, name)
