"""slurm-rl: a learned batch-scheduler backend for Slurm clusters with mixed GPUs."""

__version__ = "0.1.0"
