"""Which of the kernels that are called by address a World's settings ask for."""

from __future__ import annotations

from slurm_rl.backfill import CONSERVATIVE, SLURM
from slurm_rl.domain.links import link
from slurm_rl.domain.tables import World
from slurm_rl.place.kernels import GREEDY, MIP, TIER
from slurm_rl.policy.heuristics import LEARNED


def link_kernels(world: World) -> None:
    """Links what a World's placer, backfill rule and policy need: call it when they have been set."""
    names = ["place", "conservative_pass" if world["backfill"] == CONSERVATIVE else "easy_pass"]
    if world["placer"] == TIER:
        names.append("place_tier")
    if world["placer"] >= GREEDY:
        names.append("place_by_type")
    if world["placer"] == MIP:
        names.append("follow_hint")
    if world["backfill"] == SLURM:
        names.append("slurm_cycle")
    if world["fixed_order"] == 0:
        names.append("order_queue")
    if world["code"] == LEARNED:
        names.append("score_queue")
    link(world, *names)
