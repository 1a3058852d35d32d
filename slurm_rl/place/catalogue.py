"""The placements, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_rl.kernel.catalogue import Catalogue, within

_HERE = "slurm_rl.place"


@dataclass(frozen=True, slots=True)
class Placement:
    """A way to choose nodes; the simple ones are part of `place` (kernels.py) and have no kernel of their own."""

    name: str
    help: str
    kernel: str = ""  # module:function of this package, for the slot `place_special`
    by_type: bool = False  # prefers GPU types, by the table `prefer`: what it would choose changes with the queue
    planned: bool = False  # follows the hints of a Planner, and may defer jobs
    by_block: bool = False  # keeps gangs within blocks, or under few switches
    weighs: bool = False  # counts free GPUs that jobs like the recent ones could not use, by the table `mix`

    @property
    def kernels(self) -> Mapping[str, str]:
        slots = {"place": "kernels:place", "place_special": self.kernel}
        slots["place_in_blocks"] = "blocks:place_by_block"
        slots |= {name: f"on_devices:{name}" for name in ("room_on_devices", "pick_devices", "shift_devices")}
        slots["follow_hint"] = "kernels:follow_hint" if self.planned else ""
        return {name: within(_HERE, kernel) for name, kernel in slots.items() if kernel}

    @property
    def settings(self) -> dict[str, float]:
        """What a World says of its placement."""
        return {"placer": PLACEMENTS.code(self.name), "by_type": self.by_type or self.weighs, "planned": self.planned,
                "weighs": self.weighs, "by_block": self.by_block}  # fmt: skip


PLACEMENTS = Catalogue(
    "placement",
    Placement("first-fit", "The first nodes with room, in the order of the cluster file."),
    Placement("best-fit", "On as few nodes as possible, the fullest first."),
    Placement("spread", "On as few nodes as possible, the emptiest first."),
    Placement("round-robin", "The first nodes with room after the last one that was used."),
    Placement("tier", "On the fewest nodes, or one more, so that the fewest are left in part used.", "tier:place_tier"),
    Placement(
        "greedy",
        "On the GPU type that serves the job fastest, job by job.",
        "by_gpu_type:place_by_type",
        by_type=True,
    ),
    Placement(
        "mip",
        "On the GPU types that serve the jobs at the head of the queue best together: a mixed-integer programme.",
        "by_gpu_type:place_by_type",
        by_type=True,
        planned=True,
        by_block=True,
    ),
    Placement(
        "topology",
        "As greedy, gangs inside one block or under the fewest leaf switches, others where they break up no block.",
        "blocks:place_by_block",
        by_type=True,
        by_block=True,
    ),
    Placement(
        "fgd",
        "Where it makes the fewest free GPUs useless to jobs like the recent ones: fragmentation gradient descent.",
        "fgd:place_fgd",
        weighs=True,
    ),
    Placement(
        "dot-product",
        "The largest product of requested and free amounts.",
        "dot_product:place_dot_product",
    ),
    Placement(
        "slurm",
        "As Slurm's select/cons_tres: the smallest sufficient run of neighbouring nodes.",
        "consecutive:place_slurm",
    ),
)
FIRST_FIT, SPREAD, ROUND_ROBIN, SLURM = (
    PLACEMENTS.code(name) for name in ("first-fit", "spread", "round-robin", "slurm")
)
