"""A training job grows its network while it trains, under the time that Slurm gives it."""

from slurm_rl.grow.budget import Budget
from slurm_rl.grow.deepen import deepen
from slurm_rl.grow.distill import distill
from slurm_rl.grow.errors import CannotGrow
from slurm_rl.grow.grower import Grower
from slurm_rl.grow.places import places
from slurm_rl.grow.widen import widen

__all__ = ["Budget", "CannotGrow", "Grower", "deepen", "distill", "places", "widen"]
