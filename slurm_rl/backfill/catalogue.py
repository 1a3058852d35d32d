"""The backfill rules, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slurm_rl.backfill.slurm_settings import SlurmSettings
from slurm_rl.kernel.catalogue import Catalogue, within

if TYPE_CHECKING:
    from slurm_rl.kernel.tables import World

_HERE = "slurm_rl.backfill"


@dataclass(frozen=True, slots=True)
class Rule:
    """A backfill rule: the kernels of its passes, and what it needs and does."""

    name: str
    help: str
    on_event: str  # module:function of this package, called whenever something has happened in a pool
    on_tick: str = ""  # … and every `interval` seconds, while somebody waits
    reserve_head: str = ""  # … for a head beside reservations, where passes call it by address
    interval: int = 0
    books_many: bool = False  # holds nodes for many jobs: wide ones cost most there, and no job can be deferred
    head_blocks: bool = True  # jobs behind one that does not fit start only if the rule lets them
    keeps_bookings: bool = False  # bookings stand from pass to pass, and take entries of their own
    profile: str = ""  # what a profile over time is made of: "nodes" or "bitmaps"; "": the rule has none
    placement: str = "best-fit"  # where jobs go when nobody says otherwise
    defaults: Mapping[str, float] = field(default_factory=dict)  # further settings of a World

    @property
    def kernels(self) -> Mapping[str, str]:
        slots = {
            "backfill_pass": self.on_event,
            "backfill_cycle": self.on_tick,
            "place_beside": "starting:place_beside",
        }
        slots["reserve_head_beside"] = self.reserve_head
        mine = {name: within(_HERE, kernel) for name, kernel in slots.items() if kernel}
        return mine | {"leave_open": "slurm_rl.kernel.reserved:leave_open"}

    @property
    def settings(self) -> dict[str, float]:
        """What a World says of its rule."""
        return {
            "backfill": RULES.code(self.name),
            "books_many": self.books_many,
            "head_blocks": self.head_blocks,
            "interval": self.interval,
            **self.defaults,
        }

    def told(self, slurm: SlurmSettings | None) -> dict[str, float]:
        """The same, with the settings of a site where the rule takes any."""
        return self.settings | (slurm.world if slurm is not None and self.defaults else {})


def make_tables(world: World, rule: Rule) -> None:
    """Gives a World the tables that its rule plans with; its settings must be set."""
    if len(world["kept"]):
        from slurm_rl.kernel.reserved import make_reserved

        make_reserved(world)
    if rule.profile == "bitmaps":
        from slurm_rl.backfill.slurm_tables import make_slurm_tables

        make_slurm_tables(world)


RULES = Catalogue(
    "backfill",
    Rule("none", "Strict order: a job that does not fit holds up all behind it.", "none:none_pass"),
    Rule(
        "firstfit",
        "Every job that fits starts, in order; no job has a reservation.",
        "firstfit:firstfit_pass",
        head_blocks=False,
    ),
    Rule(
        "easy",
        "The first job has a reservation that no job behind it may delay.",
        "easy:easy_pass",
        reserve_head="easy:reserve_head_beside",
    ),
    Rule(
        "conservative",
        "Every job has a reservation that no job behind it may delay.",
        "conservative:conservative_pass",
        books_many=True,
        keeps_bookings=True,
        profile="nodes",
    ),
    Rule(
        "slurm",
        "As Slurm's main scheduler and sched/backfill, from a slurm.conf or with Slurm's defaults.",
        "slurm:main_pass",
        on_tick="slurm:slurm_cycle",
        interval=SlurmSettings().bf_interval,
        books_many=True,
        profile="bitmaps",
        placement="slurm",
        defaults=SlurmSettings().world,
    ),
)
NONE, FIRSTFIT, EASY, SLURM = (RULES.code(name) for name in ("none", "firstfit", "easy", "slurm"))
