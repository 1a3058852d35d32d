"""slurm-rl: a learned batch-scheduler backend for Slurm clusters with mixed GPUs."""

from slurm_rl.environments import register_when_gymnasium_is_there

__version__ = "0.1.0"

register_when_gymnasium_is_there()
